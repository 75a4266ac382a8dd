"""The results of a benchmark, and their form as text: aligned columns without colours."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Final

import msgspec

Cell = str | int | float | None
_GAP: Final = "  "


class Table(msgspec.Struct):
    """Figures under one title; the name of a column includes the unit."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    notes: list[str] = []


class Target(msgspec.Struct):
    """A target and the measured figure."""

    promise: str
    measured: str
    met: bool


class Report(msgspec.Struct):
    """The results of one benchmark."""

    tables: list[Table]
    targets: list[Target] = []


def machine() -> str:
    """The machine of the figures and its load, which shows whether others used it."""
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}, load {load:.2f} at the start"
    )


def table_text(table: Table) -> str:
    """A table with the first column aligned to the left and numbers to the right."""
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
