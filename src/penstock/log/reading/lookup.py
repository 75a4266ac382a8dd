"""Finds where an offset is now, in memory, files or objects, and reads it.

Nothing is remembered between two reads. So rotation, eviction, deletion and pruning may move
messages at any time, provided that these are always in one of the places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from penstock.log.reading.local_files import LocalFiles
from penstock.log.reading.waiters import Waiters
from penstock.log.reading.wal_reader import InObjects, Unreadable
from penstock.log.shared.tail_cache import Tail
from penstock.log.state import LogState, Missing
from penstock.model.batch import AtHead, Batch, Gone, coalesce
from penstock.model.errors import DataDamaged, LogClosed, ReadFailed
from penstock.model.units import Microseconds, Offset, PartitionId

READ_BYTES: Final = 1 << 20
"""About how many bytes a read returns, unless the caller chooses another size."""

SMALL_BATCH_BYTES: Final = 64 << 10
"""Neighbouring batches are joined up to this size when they are read."""

_events = structlog.get_logger(__name__)


class Lookup:
    """Finds and reads committed messages of one log.

    `local` is None for a log in memory, whose messages are gone once the cache has evicted them.
    """

    def __init__(self, topic: str, state: LogState, tail: Tail, local: LocalFiles | None) -> None:
        self.topic = topic
        self.closed = False
        self.waiters = Waiters()
        self.missing: list[Missing] = []
        """Offsets that were used and cannot be read."""
        self._in_objects: Callable[[PartitionId, Offset], bool] = _in_no_object
        self._state, self._tail, self._local = state, tail, local

    def attach_objects(self, in_objects: Callable[[PartitionId, Offset], bool]) -> None:
        """Read offsets that the files have lost from objects, where `in_objects` says they are.

        A later call replaces the objects of an earlier owner.
        """
        self._in_objects = in_objects

    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone | InObjects:
        """Batches without a gap from the first live offset at or after `offset`, up to about
        `bytes_max`.

        Raises DataDamaged if that offset was used and cannot be read, ReadFailed if the disk fails,
        LogClosed if the log is closed.
        """
        while True:
            known = self.peek(partition, offset, bytes_max)
            if known is not None:
                return known
            assert self._local is not None
            live = self._state.next_live(partition, offset)
            result = await self._read_files(self._local, partition, live, bytes_max)
            if result is not None:
                return result

    def peek(
        self, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone | None:
        """What `read` returns, if that is in memory; None if files have to be read."""
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
        """The batch in memory that has this message, unless it is deleted."""
        state = self._state
        readable = state.start(partition) <= offset < state.next(partition)
        if self.closed or not readable or state.next_live(partition, offset) != offset:
            return None
        return self._tail.holding(partition, offset)

    def without_deleted(self, batch: Batch) -> Batch:
        """The batch without messages that are deleted by now."""
        start = self._state.start(batch.partition)
        if batch.first_offset < start:
            batch = batch.starting_at(Offset(min(start, batch.next_offset)))
        deleted = self._state.bitmap(batch.partition)
        return batch if deleted is None else batch.without(deleted)

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset in the files that is not older than `timestamp`.

        If all are older, the next offset.
        """
        # Taken before the search, which does not see messages that are committed meanwhile.
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
        """Read from the files, or find out where else the offset is; None: look it up again."""
        if offset < local.start(partition):
            return InObjects(partition, offset, local.start(partition), ())
        try:
            result = await local.read(partition, offset, bytes_max)
        except OSError as error:
            raise ReadFailed(self.topic, partition, offset, str(error)) from error
        if self.closed or offset < self._state.start(partition):
            return None
        if isinstance(result, list):
            return self._present(result, offset)
        if not isinstance(result, Unreadable):
            return result
        damage = self._damaged(partition, result)
        if not self._in_objects(partition, offset):
            raise damage
        return InObjects(partition, offset, result.next_offset, ())

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


def _in_no_object(_partition: PartitionId, _offset: Offset) -> bool:
    return False
