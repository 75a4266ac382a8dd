"""The writing side of a topic with durability `memory`: the same steps without a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.formats.frames import Codec, FrameHeader, Kind
from penstock.host.clock import Clock
from penstock.log.files import ActiveFile
from penstock.log.group import Group, Record, Sealed
from penstock.log.links import Ranges
from penstock.log.settings import LogSettings
from penstock.log.state import LogState
from penstock.log.writer import Waiters
from penstock.model.batch import Batch, OffsetRange
from penstock.model.errors import PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Microseconds, Offset, PartitionId


class MemoryWriter:
    """Takes runs and records and commits them at the end of the loop's turn."""

    active: ActiveFile | None = None
    durable_number = 0
    pending_bytes = 0
    offset_limit = 0

    def __init__(
        self,
        settings: LogSettings,
        clock: Clock,
        state: LogState,
        committed: Callable[[list[Sealed], ActiveFile | None], None],
    ) -> None:
        self._settings, self._clock = settings, clock
        self._state, self._committed = state, committed
        self._loop = asyncio.get_running_loop()
        self._nexts = dict(state.nexts)
        self._group = Group()
        self._waiters: Waiters = []

    def next_offset(self, partition: PartitionId) -> Offset:
        return Offset(self._nexts.get(partition, self._state.floor))

    def append(self, run: Run | ColumnRun) -> asyncio.Future[OffsetRange]:
        size_bytes = run.measure()
        first = self._nexts.get(run.partition, self._state.floor)
        self._group.add(run, Offset(first), size_bytes, self._settings.frame_bytes_max)
        self._nexts[run.partition] = first + run.count
        return self._promise(OffsetRange(Offset(first), Offset(first + run.count)))

    def record(self, record: Record, next_offset: Offset, answer: object = None) -> Any:
        self._nexts[record.partition] = next_offset
        self._group.record(record)
        return self._promise(answer)

    def link(self, body: bytes, ranges: Ranges) -> asyncio.Future[Ranges]:
        rows = sum(given.messages for given in ranges.values())
        record = Record(Kind.LINK, PartitionId(0), Offset(0), rows, body)
        for partition, given in ranges.items():
            self._nexts[partition] = given.next
        self._group.record(record, ranges)
        return self._promise(ranges)

    async def room(self, size_bytes: int = 1) -> None:
        """There is always room: the tail cache drops the oldest."""

    async def flush(self) -> None:
        """Wait until everything taken so far can be read."""
        if self._waiters:
            await asyncio.wait([future for future, _ in self._waiters])

    def uploaded(self, number: int) -> None:
        """Nothing of it goes to objects."""

    def give_up_uploads(self, error: PenstockError) -> None:
        """Nothing waits for objects."""

    def rotate(self) -> None:
        """There is no file."""

    def detach(self) -> None:
        """There is no file."""

    def _promise(self, answer: object) -> asyncio.Future[Any]:
        if not self._waiters:
            self._loop.call_soon(self._commit)
        future = self._loop.create_future()
        self._waiters.append((future, answer))
        return future

    def _commit(self) -> None:
        group, waiters = self._group, self._waiters
        self._group, self._waiters = Group(), []
        stamped = group.stamp(self._clock.now_us(), Microseconds(self._state.last_timestamp))
        self._committed([_frame(item) for item in stamped], None)
        for future, answer in waiters:
            if not future.done():
                future.set_result(answer)


def _frame(item: Batch | Record) -> Sealed:
    kind, stamp = Kind.BATCH, item.first_timestamp if isinstance(item, Batch) else item.timestamp
    if isinstance(item, Record):
        kind = item.kind
    header = FrameHeader(
        0, 0, kind, Codec.NATIVE, 0, item.partition, 0, 0, 0, item.first_offset, stamp, item.count
    )
    return Sealed(header, [], item)
