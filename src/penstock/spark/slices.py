"""Which stretches of which objects, and of the hot tail, make up what is asked for.

Plain values and no Spark: a plan and the wanted offsets go in, slices come out, such that every
committed offset is in exactly one slice or has no message. What no object has, for whatever reason,
is asked of the broker, which gives it or says why not.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyroaring import BitMap64

from penstock.client.plans import Plan
from penstock.formats.plan_api import PlanObject, PlanPartition

OFFSETS_PER_TASK: Final = 1 << 20
BYTES_PER_TASK: Final = 64 << 20
"""A task takes about so much of the hot tail, or of objects: each costs some milliseconds."""

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


def tasks(slices: Iterable[Slice], tasks_min: int = 1) -> list[list[Slice]]:
    """The same work divided among tasks: small slices together, large ones apart."""
    pieces = list(slices)
    offsets = sum(piece.offsets for piece in pieces)
    share = max(1, min(OFFSETS_PER_TASK, -(-offsets // tasks_min)))
    if tasks_min > 1 and len(pieces) < 4 * tasks_min:
        pieces = [part for piece in pieces for part in _divided(piece, share)]
    else:
        pieces = [part for piece in pieces for part in _bounded(piece)]
    packed: list[list[Slice]] = []
    held = size = 0
    for piece in pieces:
        held, size = held + piece.offsets, size + _bytes(piece)
        if held > share or size > BYTES_PER_TASK or not packed:
            packed.append([])
            held, size = piece.offsets, _bytes(piece)
        packed[-1].append(piece)
    return packed


def _bounded(piece: Slice) -> Iterable[Slice]:
    return _divided(piece, OFFSETS_PER_TASK) if isinstance(piece, FetchSlice) else [piece]


def _bytes(piece: Slice) -> int:
    return piece.size if isinstance(piece, ObjectSlice) else 0


def _divided(piece: Slice, offsets_max: int) -> Sequence[Slice]:
    """Parts of at most so many offsets; an object is read in parts by its row groups."""
    if piece.offsets <= offsets_max:
        return [piece]
    if isinstance(piece, FetchSlice):
        return [
            replace(piece, first=start, next=min(start + offsets_max, piece.next))
            for start in range(piece.first, piece.next, offsets_max)
        ]
    return [
        replace(
            piece,
            spans=(span._replace(first=start, next=min(start + offsets_max, span.next)),),
            whole=False,
        )
        for span in piece.spans
        for start in range(span.first, span.next, offsets_max)
    ]
