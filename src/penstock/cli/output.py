"""Output of commands: aligned tables and records for people, JSON lines for programs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import click


def print_json(value: object) -> None:
    """Print a value, such as a struct of the API, as one line of JSON."""
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def print_record(record: Mapping[str, Any], as_json: bool) -> None:
    """Print a record with one field a line, or as JSON."""
    if as_json:
        print_json(record)
        return
    width = max(map(len, record), default=0)
    for name, value in record.items():
        click.echo(f"{name:<{width}}  {value}")


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows as a table, or as one JSON object a line."""
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(rows)


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    for line in table_lines(rows):
        click.echo(line)


def print_resources(resources: Sequence[Any], as_json: bool) -> None:
    """Print the ids of API resources, or each resource as JSON."""
    for resource in resources:
        if as_json:
            print_json(resource)
        else:
            click.echo(resource.name.rpartition("/")[2])


def last_segment(url: str) -> str:
    """The last segment of a path, decoded."""
    return unquote(url.rpartition("/")[2])


def table_lines(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Lines of a framed table; columns are in the order they first appear. No rows, no lines."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return
    cells = [columns, *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    frame = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    yield frame
    for number, line in enumerate(cells):
        padded = (text + " " * (w - _width(text)) for text, w in zip(line, widths, strict=True))
        yield "| " + " | ".join(padded) + " |"
        if number == 0:
            yield frame
    yield frame


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def _width(text: str) -> int:
    """Terminal columns of a text: wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
