"""Rows as an aligned table for people."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence


def render(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Lines of a table with a frame; columns in the order they first appear, nothing for no row."""
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
    """Columns of a terminal: wide characters take two, marks on others none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
