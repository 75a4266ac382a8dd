"""Questions to the spans and lanes of one partition.

Older sources hold smaller offsets, so the first answer in the right order is the answer. Deletions
are read from the log's state after every wait, never kept over one.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pyroaring import BitMap64

from penstock.log.subjects.bits import MatchCache, live_count, live_from, live_last
from penstock.log.subjects.listing import Row, summarise
from penstock.log.subjects.live import Lane, Threads
from penstock.log.subjects.plan import Kept
from penstock.log.subjects.store import Span
from penstock.model.subjects import Filter
from penstock.model.units import PartitionId


class Sources(NamedTuple):
    """What one query asks, oldest first; all of them have the partition."""

    spans: list[Span]
    lanes: list[Lane]


class Queries:
    """Asks sources about live offsets; remembers what matches in spans, since they never change."""

    def __init__(self, kept: Kept, threads: Threads, cache: MatchCache) -> None:
        self._kept, self._threads, self._cache = kept, threads, cache
        self._running: dict[tuple[Span, int, Filter], asyncio.Future[BitMap64]] = {}

    async def last(self, sources: Sources, partition: PartitionId, chosen: Filter) -> int | None:
        for lane in reversed(sources.lanes):
            bits = await self._in_lane(lane, chosen)
            if (found := self._live_last(bits, partition)) is not None:
                return found
        spans = sources.spans
        if chosen.literal and spans:
            index, found = await self._threads(_greatest, spans, partition, chosen.text)
            if found is None or self._alive(partition, found):
                return found
            spans = spans[: index + 1]
        for span in reversed(spans):
            bits = await self._in_span(span, partition, chosen)
            if (found := self._live_last(bits, partition)) is not None:
                return found
        return None

    async def next(
        self, sources: Sources, partition: PartitionId, chosen: Filter, start: int
    ) -> int | None:
        """For literals: looks up one entry a span where `matching` would read them all."""
        start = self._from(partition, start)
        index, found = await self._threads(
            _first_from, sources.spans, partition, chosen.text, start
        )
        if found is not None and self._alive(partition, found):
            return found
        left = Sources(sources.spans[index:], sources.lanes)
        offsets = await self.matching(left, partition, chosen, start, 1)
        return offsets[0] if offsets else None

    async def matching(
        self, sources: Sources, partition: PartitionId, chosen: Filter, start: int, limit: int
    ) -> list[int]:
        found: list[int] = []
        for span in sources.spans:
            if len(found) < limit and span.extents[partition].next > start:
                bits = await self._in_span(span, partition, chosen)
                found += self._live_from(bits, partition, start, limit - len(found))
        for lane in sources.lanes:
            if len(found) < limit and lane.next > start:
                bits = await lane.match(chosen, self._threads)
                found += self._live_from(bits, partition, start, limit - len(found))
        return found

    async def count(
        self, sources: Sources, partition: PartitionId, chosen: Filter, start: int, stop: int
    ) -> int:
        total = 0
        for span in sources.spans:
            if span.extents[partition].next > start and span.extents[partition].first < stop:
                bits = await self._in_span(span, partition, chosen)
                total += self._live_count(bits, partition, start, stop)
        for lane in sources.lanes:
            bits = await lane.match(chosen, self._threads)
            total += self._live_count(bits, partition, start, stop)
        return total

    async def subjects(
        self, sources: Sources, partition: PartitionId, chosen: Filter, after: bytes, limit: int
    ) -> list[Row]:
        rows: list[Row] = []
        behind: bytes | None = after
        while behind is not None and len(rows) < limit:
            of_spans = [
                await self._threads(span.page, partition, chosen, behind, limit)
                for span in sources.spans
            ]
            of_lanes = [
                await lane.page(chosen, behind, limit, self._threads) for lane in sources.lanes
            ]
            pages = [*of_spans, *of_lanes]
            if not pages:
                break
            deleted, start = self._kept.bitmap(partition), self._kept.start(partition)
            more, behind = await self._threads(summarise, pages, limit, start, deleted)
            rows += more
        return rows[:limit]

    # -- details

    async def _in_lane(self, lane: Lane, chosen: Filter) -> BitMap64:
        """By the dict for a subject: others are likely to be asked for, one by one."""
        if not chosen.literal:
            return await lane.match(chosen, self._threads)
        await lane.settle()
        return lane.get(chosen.text)

    async def _in_span(self, span: Span, partition: PartitionId, chosen: Filter) -> BitMap64:
        """From the cache; else computed once for all who ask meanwhile."""
        key = (span, int(partition), chosen)
        bits = self._cache.get(key)
        if bits is not None:
            return bits
        running = self._running.get(key)
        if running is None:
            running = asyncio.ensure_future(self._threads(span.match, partition, chosen))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key))
        bits = await asyncio.shield(running)
        self._cache.put(key, bits)
        return bits

    def _from(self, partition: PartitionId, start: int) -> int:
        return max(start, self._kept.start(partition))

    def _alive(self, partition: PartitionId, offset: int) -> bool:
        deleted = self._kept.bitmap(partition)
        gone = deleted is not None and offset in deleted
        return not gone and offset >= self._kept.start(partition)

    def _live_last(self, bits: BitMap64, partition: PartitionId) -> int | None:
        return live_last(bits, self._kept.bitmap(partition), self._kept.start(partition))

    def _live_from(
        self, bits: BitMap64, partition: PartitionId, start: int, limit: int
    ) -> list[int]:
        return live_from(bits, self._kept.bitmap(partition), self._from(partition, start), limit)

    def _live_count(self, bits: BitMap64, partition: PartitionId, start: int, stop: int) -> int:
        return live_count(bits, self._kept.bitmap(partition), self._from(partition, start), stop)


def _greatest(spans: list[Span], partition: int, subject: bytes) -> tuple[int, int | None]:
    """The greatest offset of a subject, and the number of the span that has it."""
    for index in range(len(spans) - 1, -1, -1):
        found = spans[index].greatest(partition, subject)
        if found is not None:
            return index, found
    return 0, None


def _first_from(
    spans: list[Span], partition: int, subject: bytes, start: int
) -> tuple[int, int | None]:
    """The smallest offset of a subject from `start` on, and the number of the span that has it."""
    for index, span in enumerate(spans):
        if span.extents[partition].next > start:
            found = span.first_from(partition, subject, start)
            if found is not None:
                return index, found
    return len(spans), None
