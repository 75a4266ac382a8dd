"""Finds subjects that the index has lost and that left the WAL, and reads them from objects.

Spans are numbered by the WAL files from which they were built. If numbers are missing before the
first file that exists, and the offsets there are live, subjects are missing: a span was damaged
after its files were removed, or the topic was taken over without its files. They are read from
objects, a bounded number of rows at a time, and every time become one more span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from penstock.formats.postings import Int64s
from penstock.log.subjects.bitmaps import LiveOffsets, range_count
from penstock.log.subjects.span import IndexSpan
from penstock.model.units import Offset, PartitionId, PartitionRange

SPAN_ROWS: Final = 1 << 20
"""Rows that are read at a time, or more if the numbers of the lost spans do not suffice."""


class Recalled(NamedTuple):
    """Offsets and their subjects, or the one subject of all; complete before `next`."""

    next: int
    offsets: Int64s
    subjects: pa.BinaryArray | bytes


class Objects(Protocol):
    """Reads subjects of messages that have left the WAL."""

    def first_sequence(self) -> int:
        """The sequence of the oldest WAL file that exists."""

    def partitions(self) -> Iterable[PartitionId]: ...

    def start(self, partition: PartitionId, /) -> Offset:
        """The first offset that is in WAL files."""

    async def subjects(self, partition: int, first: int, stop: int, /) -> Recalled:
        """Read subjects from `first` on, at least one; raises if that is impossible now."""


class MissingSpan(NamedTuple):
    """File sequences that no span covers, and the offsets whose subjects are not indexed."""

    first: int
    last: int
    extents: list[PartitionRange]


def find_missing_span(
    spans: Sequence[IndexSpan], live: LiveOffsets, objects: Objects
) -> MissingSpan | None:
    """The oldest missing span; None if all subjects are indexed."""
    end = objects.first_sequence()
    number = 0
    for index, span in enumerate([*spans, None]):
        stop = end if span is None else min(end, span.name.first)
        if number < stop:
            extents = _unindexed(spans[:index], spans[index:], live, objects)
            if extents:
                return MissingSpan(number, stop - 1, extents)
        if span is None or span.name.last >= end:
            break
        number = span.name.last + 1
    return None


def _unindexed(
    before: Sequence[IndexSpan], after: Sequence[IndexSpan], live: LiveOffsets, objects: Objects
) -> list[PartitionRange]:
    """Live offsets between these spans, or between the last one and the WAL."""
    nexts: dict[int, int] = {}
    for span in before:
        nexts |= {partition: extent.next for partition, extent in span.extents.items()}
    firsts: dict[int, int] = {}
    for span in reversed(after):
        firsts |= {partition: extent.first for partition, extent in span.extents.items()}
    ranges = []
    for partition in objects.partitions():
        first = max(nexts.get(partition, 0), live.start(partition))
        stop = firsts.get(partition, objects.start(partition))
        if first < stop and range_count(first, stop, live.bitmap(partition)):
            ranges.append(PartitionRange(partition, first, stop))
    return ranges


async def recall(missing: MissingSpan, objects: Objects) -> tuple[dict[int, list[Recalled]], bool]:
    """Read rows of a missing span by partition, up to a limit; also whether these are all."""
    offsets = sum(extent.next - extent.first for extent in missing.extents)
    rows_max = max(SPAN_ROWS, offsets // (missing.last - missing.first + 1) + 1)
    if missing.first == missing.last:
        rows_max = offsets
    by_partition: dict[int, list[Recalled]] = {}
    rows = 0
    for partition, first, stop in missing.extents:
        offset = first
        while offset < stop:
            if rows >= rows_max:
                return by_partition, False
            recalled = await objects.subjects(partition, offset, stop)
            by_partition.setdefault(partition, []).append(recalled)
            rows += len(recalled.offsets)
            offset = recalled.next
    return by_partition, True
