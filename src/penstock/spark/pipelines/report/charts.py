"""Charts as SVG: columns over time, and horizontal bars by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 760
HEIGHT: Final = 220
LEFT: Final = 70
"""Width of the scale to the left of columns."""
TOP: Final = 30
FOOT: Final = 26
NAMES: Final = 230
"""Width of the names to the left of bars."""
BAR: Final = 20
NAME_CHARACTERS_MAX: Final = 32
SCALE: Final = ("", " k", " M", " G", " T", " P", " E")


class ChartPoint(NamedTuple):
    """A value with its label."""

    label: str
    value: float


def short(value: float) -> str:
    """A number in a few characters, such as `12.3 k`."""
    if not math.isfinite(value):
        return "?"
    power = 0
    while abs(value) >= 999.95 and power < len(SCALE) - 1:
        value, power = value / 1000, power + 1
    return f"{round(value, 1):g}{SCALE[power]}"


def columns(title: str, points: Sequence[ChartPoint]) -> str:
    """Values as columns side by side, with labels of the first and the last one."""
    most, wide = _most(points), (WIDTH - LEFT) / max(len(points), 1)
    high, foot = HEIGHT - TOP - FOOT, HEIGHT - FOOT
    parts = [_text(0, 16, title, "title")]
    for share in (0.0, 0.5, 1.0):
        y = foot - high * share
        parts.append(f'<line class="scale" x1="{LEFT}" x2="{WIDTH}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(_text(LEFT - 6, y + 4, short(most * share), "end"))
    for number, point in enumerate(points):
        tall = high * _share(point, most)
        parts.append(
            _bar(point, LEFT + number * wide, foot - tall, max(wide - (wide > 3), 0.5), tall)
        )
    if points:
        parts.append(_text(LEFT, HEIGHT - 8, points[0].label, ""))
    if len(points) > 1:
        parts.append(_text(WIDTH, HEIGHT - 8, points[-1].label, "end"))
    return _svg(HEIGHT, parts)


def bars(title: str, points: Sequence[ChartPoint]) -> str:
    """Values as horizontal bars, each with its label and number."""
    most, room = _most(points), WIDTH - NAMES - 70
    parts = [_text(0, 16, title, "title")]
    for number, point in enumerate(points):
        y, wide = TOP + number * BAR, room * _share(point, most)
        parts.append(_text(NAMES - 6, y + 14, _cut(point.label), "end"))
        parts.append(_bar(point, NAMES, y + 2, wide, BAR - 4))
        parts.append(_text(NAMES + wide + 5, y + 14, short(point.value), ""))
    return _svg(TOP + len(points) * BAR + 4, parts)


def _most(points: Sequence[ChartPoint]) -> float:
    return max((point.value for point in points if math.isfinite(point.value)), default=0.0)


def _share(point: ChartPoint, most: float) -> float:
    """The fraction of the largest value; 0 for values that cannot be drawn."""
    if not math.isfinite(point.value) or most <= 0:
        return 0.0
    return max(point.value, 0.0) / most


def _cut(label: str) -> str:
    if len(label) <= NAME_CHARACTERS_MAX:
        return label
    return f"{label[: NAME_CHARACTERS_MAX - 1]}…"


def _bar(point: ChartPoint, x: float, y: float, wide: float, tall: float) -> str:
    tooltip = _plain(f"{point.label}: {point.value:,.10g}")
    size = f'x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}"'
    return f"<rect {size}><title>{tooltip}</title></rect>"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{_plain(text)}</text>'


def _svg(height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {box}>{"".join(parts)}</svg>'


def _plain(text: str) -> str:
    """Escape a text, and replace characters that XML does not allow."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in text))
