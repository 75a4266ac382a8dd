"""Which spans to merge next, and what such a merge must know about deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

from pyroaring import BitMap64

from penstock.log.subjects.bits import range_count
from penstock.log.subjects.merge import Merge
from penstock.log.subjects.store import Span
from penstock.model.units import Offset, PartitionId

FAN_IN: Final = 8
"""So many neighbours of a level become one of the next: the number of spans grows with the
logarithm of the number of files."""
SPAN_ENTRIES_MAX: Final = 1 << 27
"""No merge makes a larger span; it bounds how long one takes and the disk space it needs twice."""

_PARTITIONS_A_TURN: Final = 256


class Kept(Protocol):
    """What is left of each partition: the log's state."""

    def start(self, partition: PartitionId, /) -> Offset: ...
    def next(self, partition: PartitionId, /) -> Offset: ...
    def bitmap(self, partition: PartitionId, /) -> BitMap64 | None: ...


def live_messages(span: Span, partition: int, kept: Kept) -> int:
    """How many messages of a span are not deleted; more by those it never had."""
    extent, name = span.extents[partition], PartitionId(partition)
    return range_count(max(extent.first, kept.start(name)), extent.next, kept.bitmap(name))


async def choose(spans: Sequence[Span], kept: Kept, adjoining: bool = False) -> list[Span]:
    """Spans to merge: one that is mostly deleted, else neighbours of one level, else none.

    With `adjoining` only neighbours between which no number is missing: it may be of a lost one.
    """
    for span in spans:
        if await _mostly_dead(span, kept):
            return [span]
    for start in range(len(spans) - FAN_IN + 1):
        chosen = list(spans[start : start + FAN_IN])
        one_level = len({span.level for span in chosen}) == 1
        if adjoining and any(a.name.last + 1 != b.name.first for a, b in pairwise(chosen)):
            continue
        if one_level and sum(span.entries for span in chosen) <= SPAN_ENTRIES_MAX:
            return chosen
    return []


def merge_of(spans: list[Span], kept: Kept) -> Merge:
    """The order to merge these; deletions are told only where the spans have messages."""
    facts: dict[int, tuple[int, bytes]] = {}
    for partition in {p for span in spans for p in span.extents}:
        extents = [span.extents[partition] for span in spans if partition in span.extents]
        deleted = kept.bitmap(PartitionId(partition))
        dead = b""
        if deleted is not None:
            there = BitMap64()
            there.add_range(min(e.first for e in extents), max(e.next for e in extents))
            dead = (there & deleted).serialize()
        facts[partition] = (kept.start(PartitionId(partition)), dead)
    level = spans[0].level + (len(spans) > 1)
    return Merge([span.path for span in spans], level, facts)


async def _mostly_dead(span: Span, kept: Kept) -> bool:
    live = total = 0
    for number, (partition, extent) in enumerate(span.extents.items(), 1):
        live += live_messages(span, partition, kept)
        total += extent.messages
        if number % _PARTITIONS_A_TURN == 0:
            await asyncio.sleep(0)
    return 2 * live < total
