"""Queries over the spans and lanes of one partition.

Older parts of the index have smaller offsets, so the first match in the right order is the result.
Deletions are read from the log's state after every wait and never kept across one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats import postings
from penstock.formats.postings import Int64s, Postings
from penstock.host.tasks import Tasks
from penstock.log.subjects.bitmaps import (
    LiveOffsets,
    MatchCache,
    bits_of,
    live_count,
    live_from,
    live_last,
)
from penstock.log.subjects.memory import Lane, Threads
from penstock.log.subjects.span import IndexSpan
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId


class IndexParts(NamedTuple):
    """The spans and lanes that one query searches, oldest first; all have the partition."""

    spans: list[IndexSpan]
    lanes: list[Lane]


class Queries:
    """Finds live offsets; caches the matches in spans, which never change."""

    def __init__(self, live: LiveOffsets, threads: Threads, cache: MatchCache) -> None:
        self._live, self._threads, self._cache = live, threads, cache
        self._tasks = Tasks()
        self._running: dict[tuple[IndexSpan, int, Filter], asyncio.Future[BitMap64]] = {}

    async def last(
        self, sources: IndexParts, partition: PartitionId, filter_: Filter
    ) -> int | None:
        """The greatest live offset that matches."""
        for lane in reversed(sources.lanes):
            bits = await self._in_lane(lane, filter_)
            if (found := self._live_last(bits, partition)) is not None:
                return found
        spans = sources.spans
        if filter_.literal and spans:
            index, found = await self._threads(_greatest, spans, partition, filter_.text)
            if found is None or self._alive(partition, found):
                return found
            spans = spans[: index + 1]
        for span in reversed(spans):
            bits = await self._in_span(span, partition, filter_)
            if (found := self._live_last(bits, partition)) is not None:
                return found
        return None

    async def next(
        self, sources: IndexParts, partition: PartitionId, filter_: Filter, start: int
    ) -> int | None:
        """For literals: looks up one entry for each span, while `matching` reads all of them."""
        start = self._from(partition, start)
        index, found = await self._threads(
            _first_from, sources.spans, partition, filter_.text, start
        )
        if found is not None and self._alive(partition, found):
            return found
        left = IndexParts(sources.spans[index:], sources.lanes)
        offsets = await self.matching(left, partition, filter_, start, 1)
        return offsets[0] if offsets else None

    async def matching(
        self, sources: IndexParts, partition: PartitionId, filter_: Filter, start: int, limit: int
    ) -> list[int]:
        found: list[int] = []
        for span in sources.spans:
            if len(found) < limit and span.extents[partition].next > start:
                bits = await self._in_span(span, partition, filter_)
                found += self._live_from(bits, partition, start, limit - len(found))
        for lane in sources.lanes:
            if len(found) < limit and lane.next > start:
                bits = await lane.match(filter_, self._threads)
                found += self._live_from(bits, partition, start, limit - len(found))
        return found

    async def count(
        self, sources: IndexParts, partition: PartitionId, filter_: Filter, start: int, stop: int
    ) -> int:
        total = 0
        for span in sources.spans:
            if span.extents[partition].next > start and span.extents[partition].first < stop:
                bits = await self._in_span(span, partition, filter_)
                total += self._live_count(bits, partition, start, stop)
        for lane in sources.lanes:
            bits = await lane.match(filter_, self._threads)
            total += self._live_count(bits, partition, start, stop)
        return total

    async def subjects(
        self, sources: IndexParts, partition: PartitionId, filter_: Filter, after: bytes, limit: int
    ) -> list[SubjectRow]:
        rows: list[SubjectRow] = []
        last: bytes | None = after
        while last is not None and len(rows) < limit:
            of_spans = [
                await self._threads(span.page, partition, filter_, last, limit)
                for span in sources.spans
            ]
            of_lanes = [
                await lane.page(filter_, last, limit, self._threads) for lane in sources.lanes
            ]
            pages = [*of_spans, *of_lanes]
            if not pages:
                break
            deleted, start = self._live.bitmap(partition), self._live.start(partition)
            more, last = await self._threads(summarise, pages, limit, start, deleted)
            rows += more
        return rows[:limit]

    # -- details

    async def _in_lane(self, lane: Lane, filter_: Filter) -> BitMap64:
        """Matches in a lane; a single subject uses the dict, which later queries use too."""
        if not filter_.literal:
            return await lane.match(filter_, self._threads)
        await lane.settle()
        return lane.get(filter_.text)

    async def _in_span(self, span: IndexSpan, partition: PartitionId, filter_: Filter) -> BitMap64:
        """Matches in a span, from the cache or computed once for all concurrent queries."""
        key = (span, int(partition), filter_)
        bits = self._cache.get(key)
        if bits is not None:
            return bits
        running = self._running.get(key)
        if running is None:
            running = self._tasks.start(_awaited(self._threads(span.match, partition, filter_)))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key))
        bits = await asyncio.shield(running)
        self._cache.put(key, bits)
        return bits

    def _from(self, partition: PartitionId, start: int) -> int:
        return max(start, self._live.start(partition))

    def _alive(self, partition: PartitionId, offset: int) -> bool:
        deleted = self._live.bitmap(partition)
        gone = deleted is not None and offset in deleted
        return not gone and offset >= self._live.start(partition)

    def _live_last(self, bits: BitMap64, partition: PartitionId) -> int | None:
        return live_last(bits, self._live.bitmap(partition), self._live.start(partition))

    def _live_from(
        self, bits: BitMap64, partition: PartitionId, start: int, limit: int
    ) -> list[int]:
        return live_from(bits, self._live.bitmap(partition), self._from(partition, start), limit)

    def _live_count(self, bits: BitMap64, partition: PartitionId, start: int, stop: int) -> int:
        return live_count(bits, self._live.bitmap(partition), self._from(partition, start), stop)


async def _awaited(result: Awaitable[BitMap64]) -> BitMap64:
    return await result


def _greatest(spans: list[IndexSpan], partition: int, subject: bytes) -> tuple[int, int | None]:
    """The greatest offset of a subject, and the number of the span that has it."""
    for index in range(len(spans) - 1, -1, -1):
        found = spans[index].greatest(partition, subject)
        if found is not None:
            return index, found
    return 0, None


def _first_from(
    spans: list[IndexSpan], partition: int, subject: bytes, start: int
) -> tuple[int, int | None]:
    """The smallest offset of a subject from `start` on, and the number of the span that has it."""
    for index, span in enumerate(spans):
        if span.extents[partition].next > start:
            found = span.first_from(partition, subject, start)
            if found is not None:
                return index, found
    return len(spans), None


SubjectRow = tuple[bytes, int, Offset]
"""A subject, the number of its live messages, its last live offset."""


def summarise(
    pages: list[Postings], limit: int, start: int, deleted: BitMap64 | None
) -> tuple[list[SubjectRow], bytes | None]:
    """Rows of the first `limit` subjects of all pages, without those that have no live message.

    Also the last subject that was examined, to continue after it; None if there was none.
    """
    entries = _from(postings.arrange(postings.concatenate(pages)), start)
    if not len(entries):
        return [], None
    changes = pc.not_equal(entries.subjects[1:], entries.subjects[:-1])
    starts = np.flatnonzero(np.append(True, changes.to_numpy(zero_copy_only=False)))
    if len(starts) > limit:
        entries, starts = entries.slice(0, int(starts[limit])), starts[:limit]
    counts, lasts = _live(entries, deleted)
    names = entries.subjects.take(starts).to_pylist()
    totals = np.add.reduceat(counts, starts).tolist()
    greatest = np.maximum.reduceat(lasts, starts).tolist()
    rows = zip(names, totals, greatest, strict=True)
    return [(name, total, Offset(last)) for name, total, last in rows if total], names[-1]


def _from(entries: Postings, start: int) -> Postings:
    """The entries without offsets before `start`; some may be empty then."""
    ends = entries.firsts + entries.lengths
    firsts = np.maximum(entries.firsts, start)
    return Postings(entries.subjects, firsts, np.maximum(ends - firsts, 0))


def _live(entries: Postings, deleted: BitMap64 | None) -> tuple[Int64s, Int64s]:
    """The number of live messages of each entry and the last of them, or -1."""
    ends = entries.firsts + entries.lengths
    if deleted is None:
        return entries.lengths, ends - 1
    hit = np.frombuffer((bits_of(entries.firsts, entries.lengths) & deleted).to_array(), np.int64)
    counts = entries.lengths - (np.searchsorted(hit, ends) - np.searchsorted(hit, entries.firsts))
    lasts = np.where(counts > 0, ends - 1, -1)
    for index in np.flatnonzero(np.isin(lasts, hit)).tolist():
        offsets = BitMap64()
        offsets.add_range(int(entries.firsts[index]), int(ends[index]))
        lasts[index] = live_last(offsets, deleted, 0)
    return counts, lasts
