"""Writes delete frames: single messages, everything before an offset, gaps without messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from penstock.formats import bodies
from penstock.formats.bodies import DeleteBody
from penstock.formats.frames import Kind
from penstock.log.append.group import Record
from penstock.log.append.memory_writer import MemoryWriter
from penstock.log.append.writer import Writer
from penstock.log.recovery.reopen import Reopener
from penstock.log.state import LogState
from penstock.model.units import Offset, PartitionId


class Deletes:
    """Writes delete frames, on a full disk too; `check` raises if the log takes none."""

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
            await self._ready()
            await self._write(partition, DeleteBody(0, bitmap.serialize(), reason))

    async def before(
        self, partition: PartitionId, start: Offset, reason: str, *, past_end: bool = False
    ) -> bool:
        """Delete everything before `start`; return whether there was anything.

        With `past_end`, a `start` beyond the end is the offset of the next message.
        """
        await self._ready()
        end = self._writer.next_offset(partition)
        if not past_end:
            start = min(start, end)
        if start <= self._state.start(partition):
            return False
        await self._write(partition, DeleteBody(start, b"", reason), max(start, end))
        return True

    async def gap(self, partition: PartitionId, next_offset: Offset, reason: str) -> None:
        """Continue the partition at `next_offset`; the offsets before it have no message."""
        await self._ready()
        first = self._writer.next_offset(partition)
        if next_offset <= first:
            return
        if self._empty(partition):
            # Constant in size, unlike the bitmap of a range.
            delete = DeleteBody(next_offset, b"", reason)
        else:
            bitmap = BitMap64()
            bitmap.add_range(first, next_offset)
            bitmap.run_optimize()
            delete = DeleteBody(0, bitmap.serialize(), reason)
        await self._write(partition, delete, next_offset)

    async def undo(self, partition: PartitionId, offsets: BitMap64) -> None:
        """Record that these offsets of a gap have messages, unless that is recorded already."""
        hidden = BitMap64(offsets)
        hidden.remove_range(self._state.start(partition), self._state.next(partition))
        hidden |= offsets & (self._state.bitmap(partition) or BitMap64())
        if hidden:
            await self._ready()
            await self._write(partition, DeleteBody(0, b"", "returned", hidden.serialize()))

    def soon(
        self, partition: PartitionId, start: Offset, offsets: Iterable[int], reason: str
    ) -> asyncio.Future[None]:
        """Delete in the group that is being formed; the future completes when it is durable."""
        self._check()
        deleted = BitMap64(offsets)
        return self._write(
            partition, DeleteBody(start, deleted.serialize() if deleted else b"", reason)
        )

    def _empty(self, partition: PartitionId) -> bool:
        """Whether the partition has no message, durable or not."""
        pending = self._writer.next_offset(partition) - self._state.next(partition)
        return not pending and not self._state.live_count(partition)

    async def _ready(self) -> None:
        await self._reopener.ready_for_deletion()
        self._check()

    def _write(
        self, partition: PartitionId, delete: DeleteBody, skip_to: Offset | None = None
    ) -> asyncio.Future[None]:
        """Append the frame now; the future completes when it is durable."""
        next_offset = skip_to or self._writer.next_offset(partition)
        record = Record(Kind.DELETE, partition, next_offset, 0, bodies.encode(delete))
        future: asyncio.Future[None] = self._writer.record(record, next_offset)
        return future
