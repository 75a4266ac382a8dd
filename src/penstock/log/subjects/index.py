"""The subject index of one topic: last, next and count by subject, without reading the log.

Three places, oldest first: spans on disk (sealed files), parts in memory of sealed files that have
no span yet, and the live part (the active file). A query takes all three at one moment and asks
them in order. Deletions are not in the index: what is found is compared with the log's state, and
only the merging of spans forgets what is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from penstock.host.child import Child
from penstock.log.subjects.bits import MatchCache, range_count, range_from, range_last
from penstock.log.subjects.listing import Row
from penstock.log.subjects.live import INLINE_MESSAGES, Lane, Threads
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.plan import Kept
from penstock.log.subjects.queries import Queries, Sources
from penstock.log.subjects.rebuild import Objects
from penstock.log.subjects.spans import Part, SealedFile, Spans
from penstock.log.subjects.store import SpanDamaged
from penstock.model.batch import Batch, OffsetRange
from penstock.model.columns import Columns
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId

CACHE_BYTES_MAX: Final = 4 << 20
REBUILDS_MAX: Final = 3
"""How often one query waits for a damaged span to be made again."""

_T = TypeVar("_T")


class Miss(Enum):
    """Memory alone cannot tell; ask `last`."""

    MISS = "miss"


class SubjectIndex:
    """Finds live offsets by subject filter; derived, complete up to the last noted batch.

    `kept` is the log's state, `threads` runs blocking calls; a `cache` may be shared by topics.
    """

    def __init__(
        self,
        directory: Path,
        topic_subject: bytes,
        child: Child,
        kept: Kept,
        threads: Threads,
        cache: MatchCache | None = None,
    ) -> None:
        self._topic_subject, self._kept, self._threads = topic_subject, kept, threads
        self._spans = Spans(directory, topic_subject, child, kept, threads)
        self._live: Part = {}
        cache = MatchCache(CACHE_BYTES_MAX) if cache is None else cache
        self._queries = Queries(kept, threads, cache)

    # -- taking in

    def note(self, batch: Batch) -> None:
        """Take in a committed batch; costs the same whatever its size."""
        assert batch.positions is None, "only a batch as it was stored has all its subjects"
        content = batch.content
        subject = content.subject if isinstance(content, Columns) else self._topic_subject
        self._note(batch.partition, Piece(batch.first_offset, batch.count, subject))

    def note_rows(
        self, partition: PartitionId, offsets: OffsetRange, subjects: pa.BinaryArray | None = None
    ) -> None:
        """Take in committed offsets of rows that lie in objects: with the topic's subject, unless
        they have some of their own.
        """
        subject = self._topic_subject if subjects is None else subjects
        self._note(partition, Piece(offsets.first, offsets.messages, subject))

    def forget(self) -> None:
        """Forget all that was noted and is not sealed: for a log without files."""
        self._live = {}

    def sealed(self, path: Path, sequence: int, end: int | None = None) -> None:
        """The active file was sealed: what is noted from now on belongs to the next one.

        Its subjects stay in memory until they are on disk. `end` as in SealedFile.
        """
        part, self._live = self._live, {}
        self._spans.freeze(SealedFile(path, sequence, end), part)

    def drop(self, sequences: set[int]) -> None:
        """These WAL files are gone because all their messages are deleted."""
        self._spans.drop(sequences)

    def tidy(self) -> None:
        """Much was deleted: have spans that are mostly dead written anew, in the background."""
        self._spans.wake()

    def covers(self, sequence: int) -> bool:
        """Whether the subjects of this WAL file are on disk."""
        return self._spans.covers(sequence)

    def recall(self, objects: Objects) -> None:
        """From now on messages that have left the WAL can be looked up in objects: have their
        subjects, where they are missing, read from there. Queries wait for it.
        """
        self._spans.recall(objects)

    async def catch_up(self, files: Iterable[SealedFile]) -> None:
        """At start: open what there is and have the missing made, from these sealed files.

        Returns before that is finished; queries wait for it, or raise IndexUnavailable when it
        fails; `settled` waits too.
        """
        await self._spans.open(files)

    # -- asking

    def peek_last(self, partition: PartitionId, subject: bytes) -> Offset | Miss | None:
        """The greatest live offset of a subject from memory alone, at once."""
        deleted, start = self._kept.bitmap(partition), self._kept.start(partition)
        for lane in reversed(self._lanes(partition)):
            if lane.behind > INLINE_MESSAGES:
                return Miss.MISS
            lane.enter(INLINE_MESSAGES)
            found = lane.last(subject, deleted, start)
            if found is not None:
                return Offset(found)
        unknown = self._spans.holds(partition) or not self._spans.complete
        return Miss.MISS if unknown else None

    async def last(self, partition: PartitionId, chosen: Filter) -> Offset | None:
        """The greatest live offset that matches."""
        if chosen.everything:
            start, stop = self._kept.start(partition), self._kept.next(partition)
            found = range_last(start, stop, self._kept.bitmap(partition))
        else:
            found = await self._ask(partition, lambda s: self._queries.last(s, partition, chosen))
        return None if found is None else Offset(found)

    async def next(self, partition: PartitionId, chosen: Filter, start: Offset) -> Offset | None:
        """The smallest live offset from `start` on that matches."""
        if not chosen.literal:
            offsets = await self.matching(partition, chosen, start, 1)
            return offsets[0] if offsets else None
        found = await self._ask(
            partition, lambda s: self._queries.next(s, partition, chosen, start)
        )
        return None if found is None else Offset(found)

    async def matching(
        self, partition: PartitionId, chosen: Filter, start: Offset, limit: int
    ) -> list[Offset]:
        """The first `limit` live offsets from `start` on that match, in order."""
        if chosen.everything:
            start, stop = max(start, self._kept.start(partition)), self._kept.next(partition)
            found = range_from(start, stop, self._kept.bitmap(partition), limit)
        else:
            found = await self._ask(
                partition, lambda s: self._queries.matching(s, partition, chosen, start, limit)
            )
        return [Offset(offset) for offset in found]

    async def count(
        self, partition: PartitionId, chosen: Filter, start: Offset, stop: Offset
    ) -> int:
        """How many live offsets from `start` up to, not including, `stop` match."""
        if chosen.everything:
            start = max(start, self._kept.start(partition))
            stop = min(stop, self._kept.next(partition))
            return range_count(start, stop, self._kept.bitmap(partition))
        return await self._ask(
            partition, lambda s: self._queries.count(s, partition, chosen, start, stop)
        )

    async def subjects(
        self, partition: PartitionId, chosen: Filter, after: bytes = b"", limit: int = 1000
    ) -> list[Row]:
        """The first `limit` subjects behind `after` that match and have live messages, in order."""
        return await self._ask(
            partition, lambda s: self._queries.subjects(s, partition, chosen, after, limit)
        )

    # -- life

    @property
    def nbytes(self) -> int:
        """Memory of subjects that are not on disk yet; the cache bounds itself."""
        parts = (*self._spans.parts, self._live)
        return sum(lane.nbytes for part in parts for lane in part.values())

    @property
    def unapplied(self) -> set[int]:
        """Sequences of sealed files that must stay until their subjects are on disk."""
        return self._spans.unapplied

    @property
    def applied(self) -> int:
        """How many sealed files were taken in since the start."""
        return self._spans.applied

    async def settled(self) -> None:
        """Wait until no work is left in the background."""
        await self._spans.idle()

    async def close(self) -> None:
        """Stop the background work and let go of the files; what is not on disk is made again."""
        await self._spans.close()

    # -- details

    def _note(self, partition: int, piece: Piece) -> None:
        lane = self._live.get(partition)
        if lane is None:
            lane = self._live[partition] = Lane()
        lane.add(piece)

    def _lanes(self, partition: int) -> list[Lane]:
        parts = (*self._spans.parts, self._live)
        return [part[partition] for part in parts if partition in part]

    async def _ask(self, partition: PartitionId, query: Callable[[Sources], Awaitable[_T]]) -> _T:
        """Run a query over all there is; a damaged span is made again first."""
        rebuilds = 0
        while True:
            await self._spans.completed()
            with self._spans.hold(partition) as spans:
                try:
                    return await query(Sources(spans, self._lanes(partition)))
                except SpanDamaged as damage:
                    rebuilds += 1
                    if rebuilds > REBUILDS_MAX:
                        raise
                    self._spans.damaged(damage)
