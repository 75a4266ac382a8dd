"""An ordered stream of a partition's batches, for tests of what readers see.

The reader has only its next offset. Every step locates that offset again, so rotation, eviction,
deletion and pruning at the same time must not make it skip or repeat a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from penstock.log import READ_BYTES, InObjects, Log
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import LogClosed, NotInLog, OffsetGone
from penstock.model.units import Offset, PartitionId

ObjectSource = Callable[[InObjects, Offset], Awaitable[list[Batch]]]
"""Reads rows from objects, from an offset on."""


class LogReader:
    """Asynchronous iterator of batches in offset order, each offset once, without deleted messages.

    At the head it waits. It ends when the log is closed. Raises OffsetGone if retention or a purge
    has passed its next offset, and DataDamaged if offsets cannot be read; after `next_offset` was
    set, reading may continue.
    """

    def __init__(
        self,
        log: Log,
        partition: PartitionId,
        start: Offset,
        bytes_max: int = READ_BYTES,
        objects: ObjectSource | None = None,
    ) -> None:
        self._log = log.lookup
        self._partition = partition
        self._bytes_max = bytes_max
        self._objects = objects
        self._ready: deque[Batch] = deque()
        self.next_offset = start

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> Batch:
        while True:
            batch = self._take()
            if batch is None:
                await self._refill()
                continue
            self.next_offset = batch.next_offset
            if batch.messages:
                return batch

    def _take(self) -> Batch | None:
        """The batch at the next offset, without messages that were deleted since it was read.

        None if there is none, or if it was purged: `_refill` then finds out which.
        """
        while self._ready:
            batch = self._ready.popleft()
            if batch.first_offset <= self.next_offset < batch.next_offset:
                left = self._log.without_deleted(batch.starting_at(self.next_offset))
                if left.first_offset == self.next_offset:
                    return left
                self._ready.clear()
        return None

    async def _refill(self) -> None:
        result = await self._read()
        if isinstance(result, AtHead):
            await self._wait()
        elif isinstance(result, Gone):
            raise OffsetGone(self._log.topic, self._partition, self.next_offset, result.earliest)
        elif isinstance(result, InObjects):
            self._ready.extend(await self._from_objects(result))
        else:
            self.next_offset = max(self.next_offset, result[0].first_offset)
            self._ready.extend(result)

    async def _wait(self) -> None:
        """Wait at the head, unless a message was committed since the last read."""
        with self._log.waiters.arrival(self._partition, self.next_offset) as arrival:
            result = await self._read()
            if isinstance(result, AtHead):
                self.next_offset = max(self.next_offset, result.next_offset)
                if self._log.closed:
                    raise StopAsyncIteration
                await arrival

    async def _read(self) -> list[Batch] | AtHead | Gone | InObjects:
        try:
            return await self._log.read(self._partition, self.next_offset, self._bytes_max)
        except LogClosed:
            raise StopAsyncIteration from None

    async def _from_objects(self, where: InObjects) -> list[Batch]:
        if self._objects is None:
            raise NotInLog(self._log.topic, self._partition, where.first_offset, where.next_offset)
        return await self._objects(where, self.next_offset)
