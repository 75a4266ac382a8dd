"""Find what the index has lost and the WAL has no more, and get it back from objects.

Spans are numbered by the WAL files they were made from. Where numbers are missing before the first
file that is still here, and the offsets that would be there are live, subjects are missing: a span
was damaged after its files had gone, or the topic was taken over without its files. They are read
from objects, a bounded number of rows at a time, each time as one more span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from penstock.formats.extents import Extent
from penstock.formats.postings import Int64s
from penstock.log.subjects.bits import range_count
from penstock.log.subjects.plan import Kept
from penstock.log.subjects.store import Span
from penstock.model.units import Offset, PartitionId

SPAN_ROWS: Final = 1 << 20
"""Rows that are in memory at a time, unless the numbers of the lost spans do not suffice."""


class Recalled(NamedTuple):
    """The subject of each of these offsets, or the one of all; there are no more before `next`."""

    next: int
    offsets: Int64s
    subjects: pa.BinaryArray | bytes


class Objects(Protocol):
    """Where messages are that have left the WAL."""

    def first_sequence(self) -> int:
        """Of the oldest WAL file that is here."""

    def partitions(self) -> Iterable[PartitionId]: ...

    def start(self, partition: PartitionId, /) -> Offset:
        """The first offset that is in WAL files."""

    async def subjects(self, partition: int, first: int, stop: int, /) -> Recalled:
        """Some from `first` on; raises when they cannot be had now."""


class Hole(NamedTuple):
    """Numbers that no span has, and offsets whose subjects are missing there."""

    first: int
    last: int
    extents: list[Extent]


def find_hole(spans: Sequence[Span], kept: Kept, objects: Objects) -> Hole | None:
    """The oldest hole; None when nothing is missing."""
    end = objects.first_sequence()
    number = 0
    for place, span in enumerate([*spans, None]):
        stop = end if span is None else min(end, span.name.first)
        if number < stop:
            extents = _missing(spans[:place], spans[place:], kept, objects)
            if extents:
                return Hole(number, stop - 1, extents)
        if span is None or span.name.last >= end:
            break
        number = span.name.last + 1
    return None


def _missing(
    before: Sequence[Span], after: Sequence[Span], kept: Kept, objects: Objects
) -> list[Extent]:
    """Live offsets that lie between these spans, or between the last one and the WAL."""
    nexts: dict[int, int] = {}
    for span in before:
        nexts |= {partition: extent.next for partition, extent in span.extents.items()}
    firsts: dict[int, int] = {}
    for span in reversed(after):
        firsts |= {partition: extent.first for partition, extent in span.extents.items()}
    found = []
    for partition in objects.partitions():
        first = max(nexts.get(partition, 0), kept.start(partition))
        stop = firsts.get(partition, objects.start(partition))
        if first < stop and range_count(first, stop, kept.bitmap(partition)):
            found.append(Extent(partition, first, stop))
    return found


async def recall(hole: Hole, objects: Objects) -> tuple[dict[int, list[Recalled]], bool]:
    """Rows of the hole by partition, up to a limit, and whether that is all of them."""
    offsets = sum(extent.next - extent.first for extent in hole.extents)
    rows_max = max(SPAN_ROWS, offsets // (hole.last - hole.first + 1) + 1)
    if hole.first == hole.last:
        rows_max = offsets
    found: dict[int, list[Recalled]] = {}
    rows = 0
    for partition, first, stop in hole.extents:
        offset = first
        while offset < stop:
            if rows >= rows_max:
                return found, False
            some = await objects.subjects(partition, offset, stop)
            found.setdefault(partition, []).append(some)
            rows += len(some.offsets)
            offset = some.next
    return found, True
