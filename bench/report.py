"""What a bench hands back, and how that looks as text: aligned columns, no colours."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Final

import msgspec

Cell = str | int | float | None
_GAP: Final = "  "


class Table(msgspec.Struct):
    """Figures under one title; a number's unit stands in its column's name."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    notes: list[str] = []


class Target(msgspec.Struct):
    """A promise and what was measured."""

    promise: str
    measured: str
    met: bool


class Report(msgspec.Struct):
    """All of one bench."""

    tables: list[Table]
    targets: list[Target] = []


def machine() -> str:
    """Where the figures were taken; the load tells whether the machine was ours alone."""
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}, load {load:.2f} at the start"
    )


def table_text(table: Table) -> str:
    """First column to the left, numbers to the right."""
    grid = [table.columns, *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = [_line(row, widths) for row in grid]
    lines.insert(1, _GAP.join("-" * width for width in widths))
    return "\n".join([table.title, *lines, *table.notes])


def summary_text(targets: Sequence[Target]) -> str:
    grid = [[t.promise, t.measured, "met" if t.met else "NOT MET"] for t in targets]
    table = Table("Targets", ["promise", "measured", "result"], [list(row) for row in grid])
    return table_text(table)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0].ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return _GAP.join([first, *rest]).rstrip()


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value
