"""`penstock config`: what is set, where it came from, and the page that documents it all."""

import json
import os
from pathlib import Path
from typing import Final

import click

from penstock.cli import options
from penstock.config import SETTINGS, Loaded, all_settings, load, read_value
from penstock.config.rules import Setting

DOCS_OPENING: Final = """\
# Configuration

Every setting of Penstock. Later layers win over earlier ones:

1. the defaults below;
2. the YAML file given by `--config FILE`; sections nest, so `http.listen` is `listen:` under
   `http:`. `${NAME}` in a value is replaced by that environment variable, which must be set; write
   `$${` for a plain `${`;
3. the environment: `PENSTOCK__HTTP__LISTEN` sets `http.listen`. A list is given with commas;
4. flags of `penstock serve`: `--set http.listen=127.0.0.1:9000`, and `--data`, `--http`, `--grpc`,
   `--role` and `--metadata`.

`penstock config show` tells every value and the layer it came from. An unknown key, or a value out
of its range, stops the start with one line that names it. Secrets are shown as `***` and never
written to the log.

With `storage.mode` `local_only` the bucket is a directory of the data directory, whatever
`storage.cloud` says; with `wal_cloud` that section says where the bucket is. With `memory` every
topic lives in memory, whatever it asks for, and nothing outlives the broker. `storage.progress` is
checked but not used yet.

`storage.stores` holds further object stores by name, each with the settings of `storage.cloud`:
`storage.stores.archive.root` is the root of one that a namespace may name as `archive`.

| Setting | Default | Must be | Meaning |
|---|---|---|---|
"""
BYTES_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@options.config_file
@options.overrides
@click.option("--json", "as_json", is_flag=True, help="One JSON object, by key.")
def show(config_file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print every setting, its value, and where that came from."""
    loaded = load(config_file, os.environ, overrides)
    click.echo(_as_json(loaded) if as_json else _as_text(loaded))


@config.command()
def docs() -> None:
    """Print docs/configuration.md."""
    click.echo(configuration_page(), nl=False)


def configuration_page() -> str:
    """The page that documents every setting, made from the settings themselves."""
    return DOCS_OPENING + "".join(_row(facts) for facts in SETTINGS.values())


def _as_text(loaded: Loaded) -> str:
    rows = [
        (key, facts.show(read_value(loaded.config, key)) or '""', loaded.origins[key])
        for key, facts in all_settings(loaded.config).items()
    ]
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(
        f"{key:{key_width}}  {value:{value_width}}  {origin}" for key, value, origin in rows
    )


def _as_json(loaded: Loaded) -> str:
    return json.dumps(
        {
            key: {"value": _plain(facts, loaded), "origin": loaded.origins[key]}
            for key, facts in all_settings(loaded.config).items()
        },
        indent=2,
    )


def _plain(facts: Setting, loaded: Loaded) -> object:
    value = read_value(loaded.config, facts.key)
    return value if type(value) in (int, tuple) else facts.show(value)


def _row(facts: Setting) -> str:
    default = facts.show(facts.default)
    must_be = facts.rule
    if facts.kind is int:
        must_be = f"{_sized(facts, facts.low)} to {_sized(facts, facts.high)}"
        default = _sized(facts, int(default))
    elif default:
        default = f"`{default}`"
    meaning = f"{facts.meaning} (secret)" if facts.secret else facts.meaning
    return f"| `{facts.key}` | {default or 'empty'} | {must_be} | {meaning} |\n"


def _sized(facts: Setting, number: int) -> str:
    """The number as it is given, and in a unit people read if it counts bytes."""
    if "bytes" not in facts.key:
        return str(number)
    for unit, size in BYTES_UNITS:
        if number and number % size == 0:
            return f"{number} ({number // size} {unit})"
    return str(number)
