"""Records of the channel API for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from penstock.cli import broker
from penstock.cli.table import render


def tell_record(record: Mapping[str, Any], as_json: bool) -> None:
    """One record: its members a line each, or as JSON."""
    if as_json:
        broker.tell(record)
        return
    width = max(map(len, record), default=0)
    for name, value in record.items():
        click.echo(f"{name:<{width}}  {value}")


def tell_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Rows as a table, or one JSON object a line."""
    if as_json:
        for row in rows:
            broker.tell(row)
        return
    for line in render(rows):
        click.echo(line)


def name_of(url: str) -> str:
    """The last segment of a path, as it was before it was encoded."""
    from urllib.parse import unquote

    return unquote(url.rpartition("/")[2])


def fields(**given: str | None) -> dict[str, str]:
    """Those that were given."""
    return {name: value for name, value in given.items() if value is not None}
