"""Which stretches of which objects, and of the hot tail, make up what is asked for.

Plain values and no Spark: a plan and the wanted offsets go in, slices come out, such that every
committed offset is in exactly one slice or has no message. What no object has, for whatever reason,
is asked of the broker, which gives it or says why not.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyroaring import BitMap64

from penstock.client.plans import Plan
from penstock.formats.objects import ROW_GROUP_ROWS
from penstock.formats.plan_api import PlanObject, PlanPartition

OFFSETS_PER_TASK: Final = 1 << 22
OFFSETS_PER_TASK_MIN: Final = ROW_GROUP_ROWS
BYTES_PER_TASK: Final = 64 << 20
"""A task takes about so much: each costs some 20 ms of its own, and none should take minutes."""

Wanted = Mapping[int, tuple[int, int]]
"""By partition, the first offset and the one behind the last."""


class Span(NamedTuple):
    """Offsets of one partition that a slice answers for."""

    partition: int
    first: int
    next: int
    base: int = 0
    """The first offset of the object's range: that of the first row of a linked object."""


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """Rows of one object."""

    key: str
    size: int
    linked: bool
    timestamp: int
    """Microseconds since 1970: of all rows, if it is linked."""
    spans: tuple[Span, ...]
    whole: bool
    """Whether every row of the object counts."""
    deleted: tuple[tuple[int, bytes], ...] = ()
    """By partition, offsets within the spans whose rows do not count: roaring bitmaps."""

    @property
    def offsets(self) -> int:
        return sum(span.next - span.first for span in self.spans)


@dataclass(frozen=True, slots=True)
class FetchSlice:
    """Offsets to be asked of the broker."""

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


def cut(plan: Plan, wanted: Wanted, from_objects: bool = True) -> list[Slice]:
    """Slices that cover the wanted offsets, which are committed; objects first."""
    deleted = {item.partition_id: deleted_of(item) for item in plan.partitions}
    values = {item.partition_id: item.partition_value for item in plan.partitions}
    taken: defaultdict[int, list[Span]] = defaultdict(list)
    slices: list[Slice] = []
    for item in plan.objects if from_objects else ():
        spans = tuple(_overlaps(item, wanted))
        if not spans:
            continue
        for span in spans:
            taken[span.partition].append(span)
        slices.append(_object_slice(item, spans, deleted))
    for partition, (first, next_) in sorted(wanted.items()):
        for start, stop in _rest(taken[partition], first, next_):
            if deleted[partition].range_cardinality(start, stop) < stop - start:
                slices.append(FetchSlice(partition, values[partition], start, stop))
    return slices


def _overlaps(item: PlanObject, wanted: Wanted) -> Iterator[Span]:
    for partition, first, next_ in item.ranges:
        if partition in wanted:
            start, stop = wanted[partition]
            low, high = max(first, start), min(next_, stop)
            if low < high:
                yield Span(partition, low, high, first)


def _object_slice(
    item: PlanObject, spans: tuple[Span, ...], deleted: Mapping[int, BitMap64]
) -> ObjectSlice:
    dead = []
    for span in spans:
        bitmap = deleted[span.partition]
        if bitmap.range_cardinality(span.first, span.next):
            within = BitMap64()
            within.add_range(span.first, span.next)
            dead.append((span.partition, (bitmap & within).serialize()))
    inside = [(span.partition, span.first, span.next) for span in spans] == item.ranges
    whole = inside and (not dead or _absent(item, spans, deleted))
    return ObjectSlice(
        item.key,
        item.size,
        item.linked,
        item.first_timestamp,
        spans,
        whole,
        () if whole else tuple(dead),
    )


def _absent(item: PlanObject, spans: tuple[Span, ...], deleted: Mapping[int, BitMap64]) -> bool:
    """Whether the object has no rows at the deleted offsets: its rows tell."""
    if item.linked:
        return False
    live = sum(
        span.next - span.first - deleted[span.partition].range_cardinality(span.first, span.next)
        for span in spans
    )
    return live == item.rows


def _rest(spans: list[Span], first: int, next_: int) -> Iterator[tuple[int, int]]:
    """What is left between spans that do not overlap."""
    at = first
    for span in sorted(spans, key=lambda span: span.first):
        if span.first > at:
            yield at, span.first
        at = max(at, span.next)
    if at < next_:
        yield at, next_


def tasks(slices: Iterable[Slice], tasks_min: int = 1, cores: int = 1) -> list[list[Slice]]:
    """The same work divided among tasks of about the same size, such that all cores have some."""
    pieces = list(slices)
    offsets = sum(piece.offsets for piece in pieces)
    share, step = _share(offsets, cores), ROW_GROUP_ROWS
    if tasks_min > 1:
        # That many must come out, wherever row groups end.
        share, step = max(1, min(share, offsets // tasks_min)), 1
    packed: list[list[Slice]] = []
    room = size = 0
    for piece in pieces:
        rest: Slice | None = piece
        while rest is not None:
            taken = _taken(rest, room, step) if size + _bytes(rest) <= BYTES_PER_TASK else 0
            if not taken:
                packed.append([])
                room, size = share, 0
                taken = _taken(rest, room, step)
            part, rest = _parted(rest, taken)
            packed[-1].append(part)
            room, size = room - taken, size + _bytes(part)
    return packed


def _share(offsets: int, cores: int) -> int:
    """How many offsets a task takes: cores that begin together end together."""
    rounds = -(-offsets // (OFFSETS_PER_TASK * cores))
    return max(-(-offsets // max(1, rounds * cores)), OFFSETS_PER_TASK_MIN)


def _bytes(piece: Slice) -> int:
    return piece.size if isinstance(piece, ObjectSlice) else 0


def _taken(piece: Slice, room: int, step: int) -> int:
    """How many offsets of a slice a task takes that has room for so many; of an object, up to the
    nearest end of a row group.
    """
    if room <= 0:
        return 0
    if isinstance(piece, FetchSlice):
        return min(piece.offsets, room)
    if piece.offsets <= room + step // 2:
        return piece.offsets
    before = piece.spans[0].first - piece.spans[0].base
    return max(0, (before + room + step // 2) // step * step - before)


def _parted(piece: Slice, offsets: int) -> tuple[Slice, Slice | None]:
    """The first so many offsets of a slice, and the others."""
    if offsets == piece.offsets:
        return piece, None
    if isinstance(piece, FetchSlice):
        middle = piece.first + offsets
        return replace(piece, next=middle), replace(piece, first=middle)
    low, high = _parted_spans(piece.spans, offsets)
    return replace(piece, spans=low, whole=False), replace(piece, spans=high, whole=False)


def _parted_spans(spans: Iterable[Span], offsets: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    low: list[Span] = []
    high: list[Span] = []
    for span in spans:
        middle = min(span.first + offsets, span.next)
        offsets -= middle - span.first
        if span.first < middle:
            low.append(span._replace(next=middle))
        if middle < span.next:
            high.append(span._replace(first=middle))
    return tuple(low), tuple(high)
