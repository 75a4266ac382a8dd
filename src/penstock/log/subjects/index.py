"""The subject index of one topic: last, next and count by subject, without reading the log.

It has three parts, oldest first: spans on disk (sealed files), parts in memory of sealed files that
have no span yet, and the live part (the active file). A query takes all three at one moment and
asks them in order. Deletions are not in the index: results are compared with the log's state, and
only a merge of spans drops deleted offsets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from penstock.formats import link_subjects
from penstock.formats.bodies import LinkBody
from penstock.host.child import Child
from penstock.log.subjects.bitmaps import (
    LiveOffsets,
    MatchCache,
    range_count,
    range_from,
    range_last,
)
from penstock.log.subjects.memory import INLINE_MESSAGES, Lane, Threads
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.queries import IndexParts, Queries, SubjectRow
from penstock.log.subjects.rebuild import Objects
from penstock.log.subjects.span import SpanDamaged
from penstock.log.subjects.span_catalog import Part, SealedFile
from penstock.log.subjects.spans import RETRY_SECONDS, Spans
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.subjects import Filter
from penstock.model.units import Offset, OffsetRange, PartitionId

CACHE_BYTES_MAX: Final = 4 << 20
REBUILDS_MAX: Final = 3
"""How often one query waits until a damaged span is built again."""

_T = TypeVar("_T")


class NotInMemory(Enum):
    """The result is not in memory alone; call `last`."""

    MISS = "miss"


class SubjectIndex:
    """Finds live offsets by subject filter; complete up to the last noted batch.

    `live` is the log's state, `threads` runs blocking calls; topics may share a `cache`. After an
    error, background work continues in `retry_seconds`, and then less often.
    """

    def __init__(
        self,
        directory: Path,
        topic_subject: bytes,
        child: Child,
        live: LiveOffsets,
        threads: Threads,
        cache: MatchCache | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._topic_subject, self._live_offsets, self._threads = topic_subject, live, threads
        self._spans = Spans(directory, topic_subject, child, live, threads, retry_seconds)
        self._live: Part = {}
        cache = MatchCache(CACHE_BYTES_MAX) if cache is None else cache
        self._queries = Queries(live, threads, cache)

    # -- adding

    def note(self, batch: Batch) -> None:
        """Add a committed batch; costs the same whatever its size."""
        assert batch.positions is None, "only a batch as it was stored has all its subjects"
        content = batch.content
        subject = content.subject if isinstance(content, Columns) else self._topic_subject
        self._note(batch.partition, Piece(batch.first_offset, batch.count, subject))

    def note_rows(
        self, partition: PartitionId, offsets: OffsetRange, subjects: pa.BinaryArray | None = None
    ) -> None:
        """Add committed offsets of rows that are in objects, with their subjects or, if None, the
        topic's subject.
        """
        subject = self._topic_subject if subjects is None else subjects
        self._note(partition, Piece(offsets.first, offsets.messages, subject))

    def note_link(self, link: LinkBody) -> None:
        """Add the rows of a committed link."""
        for extent, subjects in link_subjects.parts(link):
            offsets = OffsetRange(Offset(extent.first), Offset(extent.next))
            self.note_rows(PartitionId(extent.partition), offsets, subjects)

    def forget(self) -> None:
        """Forget everything that is not sealed; for a log without files."""
        self._live = {}

    def sealed(self, path: Path, sequence: int, end: int | None = None) -> None:
        """Begin a new live part, because the active file was sealed.

        The subjects of the sealed file stay in memory until they are on disk; bytes after `end` of
        it do not count.
        """
        part, self._live = self._live, {}
        self._spans.freeze(SealedFile(path, sequence, end), part)

    def drop(self, sequences: set[int]) -> None:
        """Forget WAL files that were removed because all their messages are deleted."""
        self._spans.drop(sequences)

    def tidy(self) -> None:
        """Have spans of mostly deleted messages written again, in the background."""
        self._spans.wake()

    def covers(self, sequence: int) -> bool:
        """Whether the subjects of this WAL file are on disk."""
        return self._spans.catalog.covers(sequence)

    def recall(self, objects: Objects) -> None:
        """Read missing subjects of messages that left the WAL from `objects`; queries wait."""
        self._spans.recall(objects)

    async def forget_before(self, partition: PartitionId, offset: Offset) -> None:
        """Index offsets before `offset` again: offsets of a gap have messages now."""
        await self._spans.forget_before(partition, offset)

    async def catch_up(self, files: Iterable[SealedFile]) -> None:
        """Open the spans on disk and have missing ones built from these sealed files; called once.

        Returns before they are built. Queries wait for them, or raise IndexUnavailable if building
        fails; `settled` waits too.
        """
        await self._spans.open(files)

    # -- queries

    def peek_last(self, partition: PartitionId, subject: bytes) -> Offset | NotInMemory | None:
        """The greatest live offset of a subject, from memory alone, without waiting."""
        deleted, start = self._live_offsets.bitmap(partition), self._live_offsets.start(partition)
        for lane in reversed(self._lanes(partition)):
            if lane.unindexed > INLINE_MESSAGES:
                return NotInMemory.MISS
            lane.enter(INLINE_MESSAGES)
            found = lane.last(subject, deleted, start)
            if found is not None:
                return Offset(found)
        unknown = self._spans.catalog.holds(partition) or not self._spans.complete
        return NotInMemory.MISS if unknown else None

    async def last(self, partition: PartitionId, filter_: Filter) -> Offset | None:
        """The greatest live offset that matches."""
        if filter_.everything:
            start, stop = self._live_offsets.start(partition), self._live_offsets.next(partition)
            found = range_last(start, stop, self._live_offsets.bitmap(partition))
        else:
            found = await self._query(
                partition, lambda s: self._queries.last(s, partition, filter_)
            )
        return None if found is None else Offset(found)

    async def next(self, partition: PartitionId, filter_: Filter, start: Offset) -> Offset | None:
        """The smallest live offset from `start` on that matches."""
        if not filter_.literal:
            offsets = await self.matching(partition, filter_, start, 1)
            return offsets[0] if offsets else None
        found = await self._query(
            partition, lambda s: self._queries.next(s, partition, filter_, start)
        )
        return None if found is None else Offset(found)

    async def matching(
        self, partition: PartitionId, filter_: Filter, start: Offset, limit: int
    ) -> list[Offset]:
        """The first `limit` live offsets from `start` on that match, in order."""
        if filter_.everything:
            start, stop = (
                max(start, self._live_offsets.start(partition)),
                self._live_offsets.next(partition),
            )
            found = range_from(start, stop, self._live_offsets.bitmap(partition), limit)
        else:
            found = await self._query(
                partition, lambda s: self._queries.matching(s, partition, filter_, start, limit)
            )
        return [Offset(offset) for offset in found]

    async def count(
        self, partition: PartitionId, filter_: Filter, start: Offset, stop: Offset
    ) -> int:
        """How many live offsets from `start` up to, but not including, `stop` match."""
        if filter_.everything:
            start = max(start, self._live_offsets.start(partition))
            stop = min(stop, self._live_offsets.next(partition))
            return range_count(start, stop, self._live_offsets.bitmap(partition))
        return await self._query(
            partition, lambda s: self._queries.count(s, partition, filter_, start, stop)
        )

    async def subjects(
        self, partition: PartitionId, filter_: Filter, after: bytes = b"", limit: int = 1000
    ) -> list[SubjectRow]:
        """The first `limit` subjects after `after` that match and have live messages, in order."""
        return await self._query(
            partition, lambda s: self._queries.subjects(s, partition, filter_, after, limit)
        )

    # -- life cycle

    @property
    def nbytes(self) -> int:
        """Memory of subjects that are not on disk yet, without the cache of matches."""
        parts = (*self._spans.catalog.parts, self._live)
        return sum(lane.nbytes for part in parts for lane in part.values())

    @property
    def unapplied(self) -> set[int]:
        """Sequences of sealed files that must stay until their subjects are on disk."""
        return self._spans.catalog.unapplied

    @property
    def applied(self) -> int:
        """How many sealed files were indexed on disk since the start."""
        return self._spans.applied

    async def settled(self) -> None:
        """Wait until the background work is finished."""
        await self._spans.idle()

    async def close(self) -> None:
        """Stop the background work and close the files; the next start builds missing spans."""
        await self._spans.close()

    # -- details

    def _note(self, partition: int, piece: Piece) -> None:
        lane = self._live.get(partition)
        if lane is None:
            lane = self._live[partition] = Lane()
        lane.add(piece)

    def _lanes(self, partition: int) -> list[Lane]:
        parts = (*self._spans.catalog.parts, self._live)
        return [part[partition] for part in parts if partition in part]

    async def _query(
        self, partition: PartitionId, query: Callable[[IndexParts], Awaitable[_T]]
    ) -> _T:
        """Run a query over all parts; if a span is damaged, build it again and retry."""
        rebuilds = 0
        while True:
            await self._spans.completed()
            with self._spans.catalog.hold(partition) as spans:
                try:
                    return await query(IndexParts(spans, self._lanes(partition)))
                except SpanDamaged as damage:
                    rebuilds += 1
                    if rebuilds > REBUILDS_MAX:
                        raise
                    self._spans.damaged(damage)
