"""Metrics: names with their current values, and histograms. They are updated per batch."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple


class Metric(NamedTuple):
    """A metric with a value for each set of labels."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    values: list[tuple[dict[str, str], float | Histogram]]


def single(name: str, kind: str, help_: str, value: float | Histogram) -> Metric:
    """A metric without labels."""
    return Metric(name, kind, help_, [({}, value)])


MILLISECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000)


class Histogram:
    """Counts observed values by upper bound, and sums them up."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = MILLISECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)
