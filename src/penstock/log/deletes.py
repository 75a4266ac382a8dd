"""Deletions as frames: single messages, everything before an offset, offsets that never were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from penstock.formats import bodies
from penstock.formats.bodies import Delete
from penstock.formats.frames import Kind
from penstock.log.group import Record
from penstock.log.memory import MemoryWriter
from penstock.log.reopen import Reopener
from penstock.log.state import LogState
from penstock.log.writer import Writer
from penstock.model.units import Offset, PartitionId


class Deletes:
    """Writes delete frames, on a full disk too; `check` raises when the log takes none."""

    def __init__(
        self,
        writer: Writer | MemoryWriter,
        reopener: Reopener,
        state: LogState,
        check: Callable[[], None],
    ) -> None:
        self._writer, self._reopener, self._state = writer, reopener, state
        self._check = check

    async def messages(self, partition: PartitionId, offsets: Iterable[int], reason: str) -> None:
        """Delete single messages."""
        start, stop = self._state.start(partition), self._writer.next_offset(partition)
        bitmap = BitMap64(offset for offset in offsets if start <= offset < stop)
        if bitmap:
            await self._write(partition, Delete(0, bitmap.serialize(), reason))

    async def before(self, partition: PartitionId, start: Offset, reason: str) -> bool:
        """Drop everything before `start`; whether there was anything."""
        start = min(start, self._writer.next_offset(partition))
        if start <= self._state.start(partition):
            return False
        await self._write(partition, Delete(start, b"", reason))
        return True

    async def hole(self, partition: PartitionId, next_offset: Offset, reason: str) -> None:
        """The partition goes on at `next_offset`; what is before it never existed."""
        await self._reopener.ready_for_deletion()
        first = self._writer.next_offset(partition)
        if next_offset > first:
            bitmap = BitMap64()
            bitmap.add_range(first, next_offset)
            bitmap.run_optimize()
            await self._write(partition, Delete(0, bitmap.serialize(), reason), next_offset)

    def soon(
        self, partition: PartitionId, start: Offset, offsets: Iterable[int], reason: str
    ) -> asyncio.Future[None]:
        """Delete in the group that forms now; the future completes when that is durable."""
        self._check()
        next_offset, deleted = self._writer.next_offset(partition), BitMap64(offsets)
        delete = Delete(start, deleted.serialize() if deleted else b"", reason)
        record = Record(Kind.DELETE, partition, next_offset, 0, bodies.encode(delete))
        future: asyncio.Future[None] = self._writer.record(record, next_offset)
        return future

    async def _write(
        self, partition: PartitionId, delete: Delete, skip_to: Offset | None = None
    ) -> None:
        await self._reopener.ready_for_deletion()
        self._check()
        next_offset = skip_to or self._writer.next_offset(partition)
        record = Record(Kind.DELETE, partition, next_offset, 0, bodies.encode(delete))
        await self._writer.record(record, next_offset)
