"""A reader: one ordered stream of a partition's batches, from cache, files and objects.

The reader keeps its next offset only. Every step looks up again where that offset is, so rotation,
eviction, deletion and pruning at the same time cannot make it skip or repeat a message. It reads
only when its next batch is awaited, so a slow reader delays nothing and has at most one read in
memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from penstock.log.reading.wal_reader import InObjects
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import LogClosed, NotInLog, OffsetGone
from penstock.model.units import Offset, PartitionId

READ_BYTES: Final = 1 << 20

ObjectSource = Callable[[InObjects, Offset], Awaitable[list[Batch]]]
"""Reads rows from objects, from an offset on."""


class Waiters:
    """Futures of callers that wait for a message at or after an offset, by partition.

    A caller registers *before* it looks at the head again, so that it misses no wake-up.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def arrival(self, partition: int, offset: int = 0) -> Iterator[asyncio.Future[None]]:
        """A future that completes when the partition's end passes `offset`, or the log closes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(partition, {})[future] = offset
        try:
            yield future
        finally:
            future.cancel()
            self._remove(partition, [future])

    def wake(self, partition: int, next_offset: int | None = None) -> None:
        """Complete the futures that wait for an offset before the new end; all if it is None."""
        waiting = self._waiting.get(partition, {})
        woken = [
            future
            for future, offset in waiting.items()
            if next_offset is None or offset < next_offset
        ]
        self._remove(partition, woken)
        for future in woken:
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Complete all futures."""
        for partition in list(self._waiting):
            self.wake(partition)

    def _remove(self, partition: int, futures: Iterable[asyncio.Future[None]]) -> None:
        if waiting := self._waiting.get(partition):
            for future in futures:
                waiting.pop(future, None)
            if not waiting:
                del self._waiting[partition]


class ReadableLog(Protocol):
    """The part of a log that a reader uses."""

    @property
    def topic(self) -> str: ...
    @property
    def waiters(self) -> Waiters: ...
    @property
    def closed(self) -> bool: ...
    def without_deleted(self, batch: Batch, /) -> Batch: ...
    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int, /
    ) -> list[Batch] | AtHead | Gone | InObjects: ...


class Reader:
    """Asynchronous iterator of batches in offset order, each offset once, without deleted messages.

    At the head it waits. It ends when the log is closed. Raises OffsetGone if retention or a purge
    has passed its next offset, and DataDamaged if offsets cannot be read; after `next_offset` was
    set, reading may continue.
    """

    def __init__(
        self,
        log: ReadableLog,
        partition: PartitionId,
        start: Offset,
        bytes_max: int = READ_BYTES,
        objects: ObjectSource | None = None,
    ) -> None:
        self._log = log
        self._partition = partition
        self._bytes_max = bytes_max
        self._objects = objects
        self._ready: deque[Batch] = deque()
        self.next_offset = start

    def __aiter__(self) -> Reader:
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
        """Wait at the head, unless a message was committed meanwhile."""
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
