"""One ordered stream of a partition's batches, wherever they lie.

The reader holds nothing but its next offset. Every step asks the log anew where that offset is
(cache, file, objects), so rotation, eviction, deletion and pruning under way cannot make it skip or
repeat. It reads only when asked, so a slow reader holds up nobody and has at most one read in
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from penstock.log.read import InObjects
from penstock.log.waiters import Waiters
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import LogClosed, NotInLog, OffsetGone
from penstock.model.units import Offset, PartitionId

READ_BYTES: Final = 1 << 20

ObjectSource = Callable[[InObjects, Offset], Awaitable[list[Batch]]]
"""Reads rows of objects; from the given offset on."""


class Source(Protocol):
    """What a reader needs of a log."""

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
    """Asynchronous iterator of batches in offset order, each offset once, deleted ones left out.

    At the head it waits. It ends when the log is closed. Raises OffsetGone when retention or a
    purge overtook it and DataDamaged when offsets cannot be read; `next_offset` may then be set and
    reading go on.
    """

    def __init__(
        self,
        log: Source,
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
        """The batch at the next offset, with what was deleted since it was read left out.

        None when there is none, or when it was purged: looking again tells.
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
        answer = await self._read()
        if isinstance(answer, AtHead):
            await self._wait()
        elif isinstance(answer, Gone):
            raise OffsetGone(self._log.topic, self._partition, self.next_offset, answer.earliest)
        elif isinstance(answer, InObjects):
            self._ready.extend(await self._from_objects(answer))
        else:
            self.next_offset = max(self.next_offset, answer[0].first_offset)
            self._ready.extend(answer)

    async def _wait(self) -> None:
        """Sleep at the head, unless a message came between looking and lying down."""
        with self._log.waiters.arrival(self._partition) as arrival:
            answer = await self._read()
            if isinstance(answer, AtHead):
                self.next_offset = max(self.next_offset, answer.next_offset)
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
