"""`penstock config`: settings with their origin, and the page that documents them."""

import json
import os
from pathlib import Path
from typing import Final

import click

from penstock.cli import options
from penstock.config import SETTINGS, Address, Loaded, Setting, all_settings, load, read_value

DOCS_OPENING: Final = """\
# Configuration

Penstock reads its settings in layers. A later layer overrides earlier ones:

1. the defaults in the table below;
2. the YAML file of `--config FILE`. Sections nest: `http.listen` is `listen:` under `http:`.
   `${NAME}` in a value is replaced by that environment variable, which must be set; `$${` is a
   literal `${`;
3. the environment: `PENSTOCK__HTTP__LISTEN` sets `http.listen`. Items of a list are separated by
   commas;
4. flags of `penstock serve`: `--set http.listen=127.0.0.1:9000`, and `--data`, `--http`, `--grpc`,
   `--nats`, `--role` and `--metadata`.

A listener accepts connections on one or more addresses: `127.0.0.1:8080`, `[::1]:8080` for IPv6,
or a list of these (with commas, as a YAML list, or as a repeated flag). `localhost` means the
loopback addresses of this machine. With port 0, all addresses of a listener share one free port.
Only loopback addresses are allowed: 127.0.0.0/8 and `::1`.

`penstock config show` prints every value and the layer it comes from. An unknown key or a value out
of range stops the start with one line that names the key. Secrets are printed as `***` and never
logged.

`storage.mode` says where messages are stored. With `wal_cloud`, objects are uploaded to the bucket
that `storage.cloud` describes. With `local_only`, objects are files in the data directory and
`storage.cloud` is ignored. With `memory`, every topic is in memory, whatever its durability, and
everything is lost when the broker ends.

`storage.stores` configures more object stores by name, each with the settings of `storage.cloud`:
`storage.stores.archive.root` is the root of the store that a namespace selects as `archive`.

| Setting | Default | Must be | Meaning |
|---|---|---|---|
"""
BYTES_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@click.group()
def config() -> None:
    """Show the configuration and its documentation."""


@config.command()
@options.config_file
@options.overrides
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object by key.")
def show(config_file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print every setting with its value and origin."""
    loaded = load(config_file, os.environ, overrides)
    click.echo(_as_json(loaded) if as_json else _as_text(loaded))


@config.command()
def docs() -> None:
    """Print docs/configuration.md."""
    click.echo(configuration_page(), nl=False)


def configuration_page() -> str:
    """The page that documents every setting, generated from the settings."""
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
    if facts.secret or not isinstance(value, int | tuple) or isinstance(value, Address):
        return facts.show(value)
    return value if isinstance(value, int) else [str(item) for item in value]


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
    """The number, followed by a larger unit if it counts bytes."""
    if "bytes" not in facts.key:
        return str(number)
    for unit, size in BYTES_UNITS:
        if number and number % size == 0:
            return f"{number} ({number // size} {unit})"
    return str(number)
