"""The reading side of a log: where an offset is now, and what is there.

Nothing is remembered between two reads, so whatever moves messages from one place to the next
(rotation, eviction, deletion, pruning) only has to leave them in one place or the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from penstock.log.cache import Tail
from penstock.log.local import LocalFiles
from penstock.log.read import InObjects, Unreadable
from penstock.log.replay import Missing
from penstock.log.state import LogState
from penstock.log.waiters import Waiters
from penstock.model.batch import AtHead, Batch, Gone, coalesce
from penstock.model.errors import DataDamaged, LogClosed, ReadFailed
from penstock.model.units import Microseconds, Offset, PartitionId

SMALL_BATCH_BYTES: Final = 64 << 10
"""Neighbouring batches are joined up to this when they are read."""

_events = structlog.get_logger(__name__)


class Lookup:
    """Finds and reads committed messages of one log.

    `local` is None for a log that lives in memory: what the cache has dropped is gone.
    """

    def __init__(self, topic: str, state: LogState, tail: Tail, local: LocalFiles | None) -> None:
        self.topic = topic
        self.closed = False
        self.waiters = Waiters()
        self.missing: list[Missing] = []
        """Offsets that were given out and cannot be read."""
        self.in_objects: Callable[[PartitionId, Offset], bool] = lambda partition, offset: False
        """Whether the bucket has an offset that the files have lost."""
        self._state, self._tail, self._local = state, tail, local

    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone | InObjects:
        """Batches from the first live offset at or after `offset`, about `bytes_max`, no gap.

        Raises DataDamaged when that offset was given out and cannot be read, ReadFailed when the
        disk does not give it now, LogClosed in the end.
        """
        while True:
            known = self.peek(partition, offset, bytes_max)
            if known is not None:
                return known
            assert self._local is not None
            live = self._state.next_live(partition, offset)
            answer = await self._read_files(self._local, partition, live, bytes_max)
            if answer is not None:
                return answer

    def peek(
        self, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone | None:
        """The same from memory, at once; None when it has to be read from elsewhere."""
        if self.closed:
            raise LogClosed(self.topic)
        start = self._state.start(partition)
        if offset < start:
            return Gone(self._state.next_live(partition, start))
        offset = self._state.next_live(partition, offset)
        if offset >= self._state.next(partition):
            return AtHead(self._state.next(partition))
        cached = self._tail.get(partition, offset, bytes_max)
        if cached:
            return self._present(cached, offset)
        if self._local is not None:
            return None
        first = self._tail.first(partition)
        if first is None or first <= offset:
            first = self._state.next(partition)
        return Gone(first)

    def holding(self, partition: PartitionId, offset: Offset) -> Batch | None:
        """A batch in memory that has this message, if it is alive."""
        state = self._state
        kept = state.start(partition) <= offset < state.next(partition)
        if self.closed or not kept or state.next_live(partition, offset) != offset:
            return None
        return self._tail.holding(partition, offset)

    def without_deleted(self, batch: Batch) -> Batch:
        """The batch as it is now: what was deleted or purged is left out."""
        start = self._state.start(batch.partition)
        if batch.first_offset < start:
            batch = batch.starting_at(Offset(min(start, batch.next_offset)))
        deleted = self._state.bitmap(batch.partition)
        return batch if deleted is None else batch.without(deleted)

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset in the files that is not older than `timestamp`.

        The next offset if all are older.
        """
        # From before the search: what is committed meanwhile was not looked at, and is not older.
        found, end = None, self._state.next(partition)
        if self._local is not None:
            try:
                found = await self._local.first_after(partition, timestamp)
            except OSError as error:
                start = self._state.start(partition)
                raise ReadFailed(self.topic, partition, start, str(error)) from error
        else:
            found = self._tail.first_after(partition, timestamp)
        if found is None:
            return self._state.next_live(partition, max(end, self._state.start(partition)))
        return self._state.next_live(partition, max(found, self._state.start(partition)))

    async def _read_files(
        self, local: LocalFiles, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | InObjects | None:
        """From the files, or where else it is; None when it must be looked for again."""
        if offset < local.start(partition):
            return InObjects(partition, offset, local.start(partition), ())
        try:
            answer = await local.read(partition, offset, bytes_max)
        except OSError as error:
            raise ReadFailed(self.topic, partition, offset, str(error)) from error
        if self.closed or offset < self._state.start(partition):
            return None
        if isinstance(answer, list):
            return self._present(answer, offset)
        if not isinstance(answer, Unreadable):
            return answer
        damage = self._damaged(partition, answer)
        if not self.in_objects(partition, offset):
            raise damage
        return InObjects(partition, offset, answer.next_offset, ())

    def _present(self, batches: list[Batch], offset: Offset) -> list[Batch]:
        batches[0] = batches[0].starting_at(offset)
        return [self.without_deleted(batch) for batch in coalesce(batches, SMALL_BATCH_BYTES)]

    def _damaged(self, partition: PartitionId, what: Unreadable) -> DataDamaged:
        first, next_ = what.first_offset, what.next_offset
        for known in self.missing:
            if known.partition == partition and known.first <= first < known.next:
                return DataDamaged(self.topic, partition, first, known.next, what.cause)
        missing = Missing(partition, first, next_)
        self.missing.append(missing)
        facts = {"partition": partition, "first": first, "next": next_, "cause": what.cause}
        _events.error("data_damaged", topic=self.topic, **facts)
        return DataDamaged(self.topic, partition, first, next_, what.cause)
