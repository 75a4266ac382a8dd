"""Divides ranges of offsets into slices of objects and of the hot tail, and slices into tasks.

Pure functions without Spark. Every committed offset of the ranges is in exactly one slice or has no
message. Offsets that are in no object, for whatever reason, become fetches from the broker.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyroaring import BitMap64

from penstock.client import TopicPlan
from penstock.formats.objects import ROW_GROUP_ROWS
from penstock.formats.plan_api import PlanObject, PlanPartition

OFFSETS_PER_TASK: Final = 1 << 22
OFFSETS_PER_TASK_MIN: Final = ROW_GROUP_ROWS
BYTES_PER_TASK: Final = 64 << 20
"""Target size of a task: each task costs some 20 ms of its own, and none should take minutes."""

OffsetRanges = Mapping[int, tuple[int, int]]
"""By partition, the first offset and the end offset of a range."""


class SliceSpan(NamedTuple):
    """The offsets of one partition in a slice."""

    partition: int
    first: int
    next: int
    base: int = 0
    """The first offset of the object's range, which in a linked object is that of its first row."""


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """Rows of one object."""

    key: str
    size: int
    linked: bool
    timestamp: int
    """Microseconds since 1970; the timestamp of all rows of a linked object."""
    spans: tuple[SliceSpan, ...]
    whole: bool
    """Whether the slice has every row of the object."""
    deleted: tuple[tuple[int, bytes], ...] = ()
    """By partition, the deleted offsets within the spans, as a serialized roaring bitmap."""

    @property
    def offsets(self) -> int:
        return sum(span.next - span.first for span in self.spans)


@dataclass(frozen=True, slots=True)
class FetchSlice:
    """Offsets to fetch from the broker."""

    partition: int
    value: Any
    """The partition's tagged value."""
    first: int
    next: int

    @property
    def offsets(self) -> int:
        return self.next - self.first


Slice = ObjectSlice | FetchSlice


def deleted_of(partition: PlanPartition) -> BitMap64:
    if not partition.deleted:
        return BitMap64()
    return BitMap64.deserialize(base64.b64decode(partition.deleted))


def slice_plan(plan: TopicPlan, ranges: OffsetRanges, from_objects: bool = True) -> list[Slice]:
    """Slices that cover ranges of committed offsets, those of objects first."""
    deleted = {item.partition_id: deleted_of(item) for item in plan.partitions}
    values = {item.partition_id: item.partition_value for item in plan.partitions}
    covered: defaultdict[int, list[SliceSpan]] = defaultdict(list)
    slices: list[Slice] = []
    for item in plan.objects if from_objects else ():
        spans = tuple(_overlaps(item, ranges))
        if not spans:
            continue
        for span in spans:
            covered[span.partition].append(span)
        slices.append(_object_slice(item, spans, deleted))
    for partition, (first, next_) in sorted(ranges.items()):
        for start, stop in _uncovered(covered[partition], first, next_):
            if deleted[partition].range_cardinality(start, stop) < stop - start:
                slices.append(FetchSlice(partition, values[partition], start, stop))
    return slices


def _overlaps(item: PlanObject, ranges: OffsetRanges) -> Iterator[SliceSpan]:
    for partition, first, next_ in item.ranges:
        if partition in ranges:
            start, stop = ranges[partition]
            low, high = max(first, start), min(next_, stop)
            if low < high:
                yield SliceSpan(partition, low, high, first)


def _object_slice(
    item: PlanObject, spans: tuple[SliceSpan, ...], deleted: Mapping[int, BitMap64]
) -> ObjectSlice:
    dead = []
    for span in spans:
        bitmap = deleted[span.partition]
        if bitmap.range_cardinality(span.first, span.next):
            within = BitMap64()
            within.add_range(span.first, span.next)
            dead.append((span.partition, (bitmap & within).serialize()))
    complete = [(span.partition, span.first, span.next) for span in spans] == item.ranges
    whole = complete and (not dead or _lacks_deleted(item, spans, deleted))
    return ObjectSlice(
        item.key,
        item.size,
        item.linked,
        item.first_timestamp,
        spans,
        whole,
        () if whole else tuple(dead),
    )


def _lacks_deleted(
    item: PlanObject, spans: tuple[SliceSpan, ...], deleted: Mapping[int, BitMap64]
) -> bool:
    """Whether the object has no rows at the deleted offsets, by its number of rows."""
    if item.linked:
        return False
    live = sum(
        span.next - span.first - deleted[span.partition].range_cardinality(span.first, span.next)
        for span in spans
    )
    return live == item.rows


def _uncovered(spans: list[SliceSpan], first: int, next_: int) -> Iterator[tuple[int, int]]:
    """The ranges between spans, which do not overlap."""
    at = first
    for span in sorted(spans, key=lambda span: span.first):
        if span.first > at:
            yield at, span.first
        at = max(at, span.next)
    if at < next_:
        yield at, next_


def divide_into_tasks(
    slices: Iterable[Slice], tasks_min: int = 1, cores: int = 1
) -> list[list[Slice]]:
    """Divide slices among tasks of similar size, with work for all cores."""
    pieces = list(slices)
    offsets = sum(piece.offsets for piece in pieces)
    share, step = _share(offsets, cores), ROW_GROUP_ROWS
    if tasks_min > 1:
        # The minimum number of tasks matters more than the ends of row groups.
        share, step = max(1, min(share, offsets // tasks_min)), 1
    packed: list[list[Slice]] = []
    room = size = 0
    for piece in pieces:
        remaining: Slice | None = piece
        while remaining is not None:
            count = (
                _offsets_to_take(remaining, room, step)
                if size + _bytes(remaining) <= BYTES_PER_TASK
                else 0
            )
            if not count:
                packed.append([])
                room, size = share, 0
                count = _offsets_to_take(remaining, room, step)
            part, remaining = _split(remaining, count)
            packed[-1].append(part)
            room, size = room - count, size + _bytes(part)
    return packed


def _share(offsets: int, cores: int) -> int:
    """Number of offsets of a task, chosen so that all cores finish at about the same time."""
    rounds = -(-offsets // (OFFSETS_PER_TASK * cores))
    return max(-(-offsets // max(1, rounds * cores)), OFFSETS_PER_TASK_MIN)


def _bytes(piece: Slice) -> int:
    return piece.size if isinstance(piece, ObjectSlice) else 0


def _offsets_to_take(piece: Slice, room: int, step: int) -> int:
    """How many offsets of a slice to add to a task with this room.

    A slice of an object is cut at the end of a row group, the nearest multiple of `step`.
    """
    if room <= 0:
        return 0
    if isinstance(piece, FetchSlice):
        return min(piece.offsets, room)
    if piece.offsets <= room + step // 2:
        return piece.offsets
    before = piece.spans[0].first - piece.spans[0].base
    return max(0, (before + room + step // 2) // step * step - before)


def _split(piece: Slice, offsets: int) -> tuple[Slice, Slice | None]:
    """Split a slice behind its first `offsets` offsets."""
    if offsets == piece.offsets:
        return piece, None
    if isinstance(piece, FetchSlice):
        middle = piece.first + offsets
        return replace(piece, next=middle), replace(piece, first=middle)
    low, high = _split_spans(piece.spans, offsets)
    return replace(piece, spans=low, whole=False), replace(piece, spans=high, whole=False)


def _split_spans(
    spans: Iterable[SliceSpan], offsets: int
) -> tuple[tuple[SliceSpan, ...], tuple[SliceSpan, ...]]:
    low: list[SliceSpan] = []
    high: list[SliceSpan] = []
    for span in spans:
        middle = min(span.first + offsets, span.next)
        offsets -= middle - span.first
        if span.first < middle:
            low.append(span._replace(next=middle))
        if middle < span.next:
            high.append(span._replace(first=middle))
    return tuple(low), tuple(high)
