"""A topic that this broker serves: the only way to append to it, to read it and to follow it.

Nothing above this package knows whether a message is in memory, in the WAL or in an object. Every
append passes the same three checks here: the offsets are reserved, the queue and the uploader have
room (or the configured policy waits or refuses), and the rules of the topic admit the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from pyroaring import BitMap64

from penstock.log import (
    InObjects,
    Log,
    LogMode,
    LogObserver,
    NotInMemory,
    Settlements,
    SideFiles,
    SubjectRow,
    WhenFull,
    range_count,
)
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import AppendQueueFull, NotInLog
from penstock.model.resources import Durability, Topic
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.subjects import Filter
from penstock.model.units import Microseconds, Offset, OffsetRange, PartitionId
from penstock.tiers import TopicTier
from penstock.topics.partitions import Partitions

READ_BYTES: Final = 1 << 20

Admission = Callable[[Run | ColumnRun, Origin], None]
"""A rule of a topic: raises what the publisher is answered when it does not admit a run."""


class OpenTopic:
    """A topic that this broker owns and serves.

    `log` and `tier` are for the modules of this package; `tier` is None where messages live in
    memory only.
    """

    def __init__(
        self,
        topic: Topic,
        log: Log,
        tier: TopicTier | None,
        partitions: Partitions,
        stream: bytes = b"",
    ) -> None:
        """`stream` is the configuration with which the topic was created as a stream, if it was."""
        self.topic, self.log, self.tier = topic, log, tier
        self.partitions, self.stream = partitions, stream
        self.signed_only = False
        """Whether only signed broadcasts may enter; then no objects are linked."""
        self._observations: list[Callable[[], None]] = []
        self._admissions: list[Admission] = []
        self._opened_partitions: dict[PartitionId, OpenPartition] = {}

    def partition(self, partition: PartitionId) -> OpenPartition:
        """The messages of one partition, which must exist."""
        opened = self._opened_partitions.get(partition)
        if opened is None:
            opened = self._opened_partitions[partition] = OpenPartition(self, partition)
        return opened

    def stop(self) -> None:
        """The topic is no longer served here: notify no observer, let waiting readers return."""
        for cancel in self._observations:
            cancel()
        self.partitions.stop()
        self.log.waiters.wake_all()

    # -- state

    @property
    def durable(self) -> bool:
        """Whether messages survive the process."""
        return self.log.durability is not Durability.MEMORY

    @property
    def writable(self) -> bool:
        """Whether an append would be tried, as far as is known now."""
        return self.log.mode is LogMode.OPEN and not self.log.refusal

    @property
    def closed(self) -> bool:
        return self.log.closed

    @property
    def lineage(self) -> str:
        """Identifies the WAL: another disk, or another topic of the name, has another one."""
        return self.log.state.lineage

    @property
    def last_timestamp(self) -> Microseconds:
        """The timestamp of the last message or record; 0 before the first."""
        return Microseconds(self.log.state.last_timestamp)

    @property
    def floor(self) -> Offset:
        """The first offset of a partition that has no message yet."""
        return Offset(self.log.state.floor)

    @property
    def deletions(self) -> int:
        """Ascends with every deletion."""
        return self.log.state.deletions

    async def flush(self) -> None:
        """Wait until everything appended so far is durable, or has failed."""
        await self.log.writer.flush()

    # -- observers and rules

    def observe(self, observer: LogObserver) -> Callable[[], None]:
        """Notify an observer of appends and commits while the topic is served.

        Returns the function that ends this early.
        """
        cancel = self.log.observe(observer)
        self._observations.append(cancel)
        return cancel

    def add_admission(self, admission: Admission) -> Callable[[], None]:
        """Apply a rule to every append from now on; returns the function that removes it.

        The rule that was added last is applied first.
        """
        self._admissions.insert(0, admission)
        return partial(self._admissions.remove, admission)

    def admit(self, run: Run | ColumnRun, origin: Origin) -> None:
        """Raise what a rule of the topic raises, unless every rule admits the run."""
        for admission in self._admissions:
            admission(run, origin)

    @property
    def side_files(self) -> SideFiles:
        """Files beside the WAL, for what is derived from its messages."""
        return self.log.side_files

    # -- settlements of subscriptions

    @property
    def settlements(self) -> Settlements:
        """Reads settlements back, and tells the log which of them are still needed."""
        return self.log.settlements

    @property
    def durable_frame(self) -> int:
        """The number of the next frame that will be durable."""
        return self.log.writer.durable_number

    @property
    def active_frame(self) -> int:
        """The first frame of the WAL file that is written now; 0 if there is none."""
        active = self.log.writer.active
        return 0 if active is None else active.file.header.first_frame

    def settle(self, body: bytes, count: int) -> asyncio.Future[None]:
        """Store what subscriptions settled; raises AppendQueueFull, LogReadOnly or LogClosed."""
        return self.log.settle(body, count)

    async def settle_when_possible(self, body: bytes, count: int) -> None:
        """Store what subscriptions settled, once the queue has room; durable on return."""
        while True:
            try:
                return await self.log.settle(body, count)
            except AppendQueueFull:
                await self.log.room(len(body))


class OpenPartition:
    """One partition of an open topic."""

    __slots__ = ("_log", "id", "subjects", "topic")

    def __init__(self, topic: OpenTopic, partition: PartitionId) -> None:
        self.topic, self._log, self.id = topic, topic.log, partition
        self.subjects = PartitionSubjects(topic.log, partition)

    # -- offsets

    @property
    def start_offset(self) -> Offset:
        """The log start offset: everything before was deleted."""
        return self._log.start_offset(self.id)

    @property
    def next_offset(self) -> Offset:
        """The high watermark: the offset of the next message that readers will see."""
        return self._log.next_offset(self.id)

    @property
    def appended_offset(self) -> Offset:
        """The offset that the next append will get; messages before it may not be durable yet."""
        return self._log.writer.next_offset(self.id)

    @property
    def wal_start(self) -> Offset:
        """The first offset that is in WAL files; earlier ones are in objects only."""
        return Offset(self._log.files.start(self.id))

    @property
    def live_count(self) -> int:
        """How many messages there are."""
        return self._log.live_count(self.id)

    @property
    def deleted(self) -> BitMap64 | None:
        """Offsets from the log start on that were deleted one by one; None if none was."""
        return self._log.state.bitmap(self.id)

    def next_live(self, offset: int) -> Offset:
        """The first offset from this one on that is not deleted; the end if there is none."""
        return self._log.state.next_live(self.id, Offset(offset))

    def count_live(self, first: int, stop: int) -> int:
        """How many messages have offsets in this range."""
        first, stop = max(first, self.start_offset), min(stop, self.next_offset)
        return range_count(first, stop, self.deleted)

    async def offset_at(self, timestamp: Microseconds) -> Offset:
        """The first live offset that is not older than `timestamp`, else the next offset."""
        if self.topic.tier is not None:
            return await self.topic.tier.offset_at(self.id, timestamp)
        return await self._log.offset_at(self.id, timestamp)

    # -- appending

    def has_reserved(self, count: int) -> bool:
        """Whether so many more offsets are reserved for this broker."""
        writer = self._log.writer
        return self.topic.tier is None or writer.next_offset(self.id) + count <= writer.offset_limit

    async def reserve(self, count: int) -> None:
        """Reserve so many offsets. Ahead of time that is done for usual appends, not for large."""
        if self.topic.tier is not None and not self.has_reserved(count):
            await self.topic.tier.reserve(self.appended_offset - self.next_offset + count)

    def takes_at_once(self, count: int) -> bool:
        """Whether an append need not wait for offsets or the uploader; the queue may be full."""
        return not self._log.pressure_seconds and self.has_reserved(count)

    def append(
        self, run: Run | ColumnRun, origin: Origin = Origin.CLIENT
    ) -> asyncio.Future[OffsetRange]:
        """Give a run of this partition its offsets; the future completes when it is durable.

        Waits for nothing: call `make_room` before, unless AppendQueueFull is handled. Raises what
        the rules of the topic raise, RunInvalid, AppendQueueFull, LogReadOnly or LogClosed, and
        then nothing has happened; the future raises DurabilityUnmet when the disk fails.
        """
        self.topic.admit(run, origin)
        return self._log.append(run)

    async def make_room(self, count: int, size_bytes: int, *, patient: bool = False) -> None:
        """Wait until a run can be appended: for offsets, for the uploader, for the queue.

        Raises AppendQueueFull where the configured policy is to refuse, unless `patient`.
        """
        await self._wait_for_offsets_and_uploads(count)
        if self._log.when_full is WhenFull.REFUSE and not patient:
            self._log.check_room(size_bytes)
        else:
            await self._log.room(size_bytes)

    async def publish(self, *runs: Run | ColumnRun, origin: Origin = Origin.CLIENT) -> OffsetRange:
        """Append runs that follow one another, as soon as possible; durable on return.

        Raises what `append` raises; AppendQueueFull only where the policy is to refuse.
        """
        await self._wait_for_offsets_and_uploads(sum(run.count for run in runs))
        while True:
            try:
                if len(runs) > 1:
                    self._log.check_room(sum(run.measure() for run in runs))
                appended = [self.append(run, origin) for run in runs]
            except AppendQueueFull:
                if self._log.when_full is WhenFull.REFUSE:
                    raise
                await self._log.room(sum(run.measure() for run in runs))
            else:
                break
        if len(appended) == 1:
            return await appended[0]
        ranges = await asyncio.gather(*appended)
        return OffsetRange(ranges[0].first, ranges[-1].next)

    async def _wait_for_offsets_and_uploads(self, count: int) -> None:
        await self.reserve(count)
        if self._log.pressure_seconds:
            await asyncio.sleep(self._log.pressure_seconds)

    # -- deleting

    async def delete(self, offsets: Iterable[int], reason: str = "message") -> None:
        """Delete single messages; durable on return. Works on a full disk too."""
        await self._log.delete(self.id, offsets, reason)

    async def purge(self, start: int, reason: str = "purge", *, past_end: bool = False) -> None:
        """Delete everything before `start`; durable on return. Works on a full disk too.

        With `past_end`, a start behind the end is the offset of the next message.
        """
        await self._log.purge(self.id, Offset(start), reason, past_end=past_end)

    async def skip(self, next_offset: int, reason: str) -> None:
        """Record a gap: the partition continues at `next_offset`."""
        await self._log.skip(self.id, Offset(next_offset), reason)

    def drop_soon(self, start: int, offsets: Iterable[int], reason: str) -> asyncio.Future[None]:
        """Delete what is before `start`, and these offsets, in the group that forms now."""
        return self._log.drop_soon(self.id, Offset(start), offsets, reason)

    # -- reading

    def wake(self) -> None:
        """Let every reader that waits for messages look again."""
        self._log.waiters.wake(self.id)

    def arrival(self, offset: int = 0) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that completes with the next commit whose end is after `offset`.

        Register, look again, then wait.
        """
        return self._log.waiters.arrival(self.id, offset)

    def peek(self, offset: int, bytes_max: int = READ_BYTES) -> list[Batch] | AtHead | Gone | None:
        """Batches from the first live offset at or after this, if in memory; else None."""
        return self._log.lookup.peek(self.id, Offset(offset), bytes_max)

    def cached_batch(self, offset: int) -> Batch | None:
        """The batch with the message of this offset, if it lives and is in memory."""
        return self._log.lookup.holding(self.id, Offset(offset))

    async def read(self, offset: int, bytes_max: int = READ_BYTES) -> list[Batch] | AtHead | Gone:
        """Batches from the first live offset at or after `offset`, wherever they are stored.

        Looks anew for every call, so that rotation, eviction, upload and pruning make no reader
        skip or repeat a message. Raises what the log and the stores raise.
        """
        log = self._log
        while True:
            answer = await log.read(self.id, Offset(offset), bytes_max)
            if not isinstance(answer, InObjects):
                return answer
            if self.topic.tier is None:
                raise NotInLog(log.topic, self.id, answer.first_offset, answer.next_offset)
            batches = await self.topic.tier.read(answer, Offset(offset))
            # After a purge in the meantime another look tells that the offset is gone.
            if offset >= self.start_offset:
                first = Offset(offset)
                return [log.lookup.without_deleted(batch.starting_at(first)) for batch in batches]

    async def stored_since(self, timestamp: int, bytes_max: int) -> AsyncIterator[list[Batch]]:
        """All messages in WAL files from a timestamp on, deleted ones included."""
        files = self._log.files
        offset = await files.first_after(self.id, timestamp)
        while offset is not None:
            batches = await files.stored(self.id, offset, bytes_max)
            yield batches
            offset = batches[-1].next_offset if batches else None


class PartitionSubjects:
    """Finds messages of one partition by their subjects."""

    __slots__ = ("_index", "_partition")

    def __init__(self, log: Log, partition: PartitionId) -> None:
        self._index, self._partition = log.index, partition

    def cached_last(self, subject: bytes) -> Offset | NotInMemory | None:
        """The last offset of a subject, None if there is none; from memory alone."""
        return self._index.peek_last(self._partition, subject)

    async def last(self, chosen: Filter) -> Offset | None:
        """The last offset whose subject matches."""
        return await self._index.last(self._partition, chosen)

    async def next(self, chosen: Filter, offset: int) -> Offset | None:
        """The first offset from this one on whose subject matches."""
        return await self._index.next(self._partition, chosen, Offset(offset))

    async def matching(self, chosen: Filter, offset: int, limit: int) -> list[Offset]:
        """Up to `limit` offsets from this one on whose subjects match, in order."""
        return await self._index.matching(self._partition, chosen, Offset(offset), limit)

    async def count(self, chosen: Filter, first: int, stop: int) -> int:
        """How many messages of this range have subjects that match."""
        return await self._index.count(self._partition, chosen, Offset(first), Offset(stop))

    async def list(self, chosen: Filter, after: bytes, limit: int) -> list[SubjectRow]:
        """The first subjects behind `after`, in order, with their live messages."""
        return await self._index.subjects(self._partition, chosen, after, limit)
