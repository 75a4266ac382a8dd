"""The writer of a topic with durability `memory`: groups are committed without a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.formats.frames import Codec, FrameHeader, Kind
from penstock.host.clock import Clock
from penstock.log.append.commit import Acks
from penstock.log.append.group import Group, Record, Sealed
from penstock.log.append.links import Ranges
from penstock.log.files.wal_files import ActiveFile
from penstock.log.settings import LogSettings
from penstock.log.shared.tail_cache import Tail
from penstock.log.state import LogState
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import Batch
from penstock.model.errors import PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Microseconds, Offset, OffsetRange, PartitionId

INDEX_BYTES_MAX: Final = 32 << 20
"""A larger subject index is built again from the cache."""


class MemoryWriter:
    """Commits runs and records at the end of the turn of the event loop."""

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
        self._acks: Acks = []

    def next_offset(self, partition: PartitionId) -> Offset:
        return Offset(self._nexts.get(partition, self._state.floor))

    def append(self, run: Run | ColumnRun) -> asyncio.Future[OffsetRange]:
        size_bytes = run.measure()
        first = self._nexts.get(run.partition, self._state.floor)
        self._group.add(run, Offset(first), size_bytes, self._settings.frame_bytes_max)
        self._nexts[run.partition] = first + run.count
        return self._promise(OffsetRange(Offset(first), Offset(first + run.count)))

    def record(self, record: Record, next_offset: Offset, result: object = None) -> Any:
        self._nexts[record.partition] = next_offset
        self._group.record(record)
        return self._promise(result)

    def link(self, body: bytes, ranges: Ranges) -> asyncio.Future[Ranges]:
        rows = sum(offsets.messages for offsets in ranges.values())
        record = Record(Kind.LINK, PartitionId(0), Offset(0), rows, body)
        for partition, offsets in ranges.items():
            self._nexts[partition] = offsets.next
        self._group.record(record, ranges)
        return self._promise(ranges)

    def check_room(self, size_bytes: int) -> None:
        """Do nothing: there is always room."""

    async def room(self, size_bytes: int = 1) -> None:
        """Return at once: there is always room, since the tail cache drops the oldest batches."""

    async def flush(self) -> None:
        """Wait until everything that was appended can be read."""
        if self._acks:
            await asyncio.wait([future for future, _ in self._acks])

    def uploaded(self, number: int) -> None:
        """Do nothing: the messages are in no object."""

    def give_up_uploads(self, error: PenstockError) -> None:
        """Do nothing: no append waits for an upload."""

    def rotate(self) -> None:
        """Do nothing: there is no file."""

    def detach(self) -> None:
        """Do nothing: there is no file."""

    def _promise(self, result: object) -> asyncio.Future[Any]:
        if not self._acks:
            self._loop.call_soon(self._commit)
        future = self._loop.create_future()
        self._acks.append((future, result))
        return future

    def _commit(self) -> None:
        group, waiters = self._group, self._acks
        self._group, self._acks = Group(), []
        stamped = group.stamp(self._clock.now_us(), Microseconds(self._state.last_timestamp))
        self._committed([_frame(item) for item in stamped], None)
        for future, result in waiters:
            if not future.done():
                future.set_result(result)


class Evictions:
    """Advances the start of a partition when its messages leave the cache.

    `changed` is called with the partitions at the end of the turn of the event loop.
    """

    def __init__(self, state: LogState, changed: Callable[[set[int]], None]) -> None:
        self._state, self._changed = state, changed
        self._partitions: set[int] = set()

    def note(self, partition: PartitionId, start: Offset) -> None:
        """Note that everything before `start` can no longer be read."""
        self._state.restore(partition, start, b"", Offset(0))
        if not self._partitions:
            asyncio.get_running_loop().call_soon(self._report)
        self._partitions.add(partition)

    def _report(self) -> None:
        partitions, self._partitions = self._partitions, set()
        self._changed(partitions)


def bound_index(index: SubjectIndex, tail: Tail) -> None:
    """Forget the subjects of messages that have left the cache, if the index is large."""
    if index.nbytes > INDEX_BYTES_MAX:
        index.forget()
        for batch in tail.batches():
            index.note(batch)


def _frame(item: Batch | Record) -> Sealed:
    kind, stamp = Kind.BATCH, item.first_timestamp if isinstance(item, Batch) else item.timestamp
    if isinstance(item, Record):
        kind = item.kind
    header = FrameHeader(
        0, 0, kind, Codec.NATIVE, 0, item.partition, 0, 0, 0, item.first_offset, stamp, item.count
    )
    return Sealed(header, [], item)
