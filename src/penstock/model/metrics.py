"""Figures to show: what they are called and what they are now."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.histogram import Histogram


class Metric(NamedTuple):
    """One figure, or one for each value of its labels."""

    name: str
    kind: str
    """`counter` or `gauge`; a histogram tells by its values."""
    help: str
    values: list[tuple[dict[str, str], float | Histogram]]


def single(name: str, kind: str, help_: str, value: float | Histogram) -> Metric:
    """A figure without labels."""
    return Metric(name, kind, help_, [({}, value)])
