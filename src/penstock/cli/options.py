"""Options that several commands share."""

from pathlib import Path
from typing import Final

import click

config_file: Final = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration file (YAML).",
)
overrides: Final = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting, such as storage.wal.fsync_interval_ms=5; may be repeated.",
)
