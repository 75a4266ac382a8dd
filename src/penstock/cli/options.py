"""Options that several commands share, and the values that commands derive from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.model import names
from penstock.model.names import TopicName

if TYPE_CHECKING:
    from penstock.client import SyncClient

url: Final = click.option(
    "--url",
    metavar="URL",
    help="Broker, such as http://127.0.0.1:8080.  [default: $PENSTOCK_URL, else port 8080 here]",
)
namespace: Final = click.option(
    "--namespace",
    default=str(names.DEFAULT_NAMESPACE),
    show_default=True,
    metavar="T/N",
    help="Namespace of topics that are named by their id alone.",
)
partition_value: Final = click.option(
    "--partition-value", metavar="VALUE", help="Value of the topic's partition column."
)
as_json: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
data: Final = click.option("--data", metavar="DIR", help="Data directory.  [default: ./data]")
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
    help="A setting, such as storage.wal.fsync_interval_ms=5; repeatable.",
)


def connect(url_: str | None) -> SyncClient:
    """A client of the broker that `--url` selects."""
    from penstock.client import SyncClient

    return SyncClient(url_)


def topic_name(topic: str, namespace_: str) -> TopicName:
    return names.topic(topic, names.namespace(namespace_))
