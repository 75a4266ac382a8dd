"""One partition of an open topic: every append, read, deletion and lookup by subject.

Callers do not know whether a message is in memory, in the WAL or in an object. Every append passes
three checks: the offsets are reserved, the queue and the uploader have room (or the configured
policy waits or refuses), and the admissions of the topic accept the run.
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
    NotInMemory,
    SubjectIndex,
    SubjectRow,
    WhenFull,
    range_count,
)
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import AppendQueueFull, NotInLog
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.subjects import Filter
from penstock.model.units import Microseconds, Offset, OffsetRange, PartitionId
from penstock.tiers import TopicTier

READ_BYTES: Final = 1 << 20

Admission = Callable[[Run | ColumnRun, Origin], None]
"""A rule of a topic: raises the error that the publisher receives if it refuses a run."""


class Admissions:
    """The rules that every append to a topic must satisfy."""

    def __init__(self) -> None:
        self._rules: list[Admission] = []

    def add(self, rule: Admission) -> Callable[[], None]:
        """Apply a rule to every append from now on; returns the function that removes it.

        The rule that was added last is applied first.
        """
        self._rules.insert(0, rule)
        return partial(self._rules.remove, rule)

    def check(self, run: Run | ColumnRun, origin: Origin) -> None:
        """Raise the error of the first rule that refuses the run."""
        for rule in self._rules:
            rule(run, origin)


class OpenPartition:
    """One partition of an open topic: appends, deletes, reads and waits for messages."""

    __slots__ = ("_admissions", "_log", "_tier", "id", "subjects")

    def __init__(
        self, log: Log, tier: TopicTier | None, admissions: Admissions, partition: PartitionId
    ) -> None:
        self._log, self._tier, self._admissions, self.id = log, tier, admissions, partition
        self.subjects = PartitionSubjects(log.index, partition)

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
        if self._tier is not None:
            return await self._tier.offset_at(self.id, timestamp)
        return await self._log.offset_at(self.id, timestamp)

    # -- appending

    def has_reserved(self, count: int) -> bool:
        """Whether offsets for `count` more messages are reserved for this broker."""
        writer = self._log.writer
        return self._tier is None or writer.next_offset(self.id) + count <= writer.offset_limit

    async def reserve(self, count: int) -> None:
        """Reserve offsets for `count` messages.

        The tier reserves enough offsets ahead of time for usual appends, but not for large ones.
        """
        if self._tier is not None and not self.has_reserved(count):
            await self._tier.reserve(self.appended_offset - self.next_offset + count)

    def takes_at_once(self, count: int) -> bool:
        """Whether an append need not wait for offsets or the uploader; the queue may be full."""
        return not self._log.pressure_seconds and self.has_reserved(count)

    def append(
        self, run: Run | ColumnRun, origin: Origin = Origin.CLIENT
    ) -> asyncio.Future[OffsetRange]:
        """Assign offsets to a run of this partition; the future completes when it is durable.

        Waits for nothing: call `make_room` before, unless AppendQueueFull is handled. Raises what
        the admissions raise, RunInvalid, AppendQueueFull, LogReadOnly or LogClosed, without having
        changed anything; the future raises DurabilityUnmet when the disk fails.
        """
        self._admissions.check(run, origin)
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
        """Delete everything before `start`, and `offsets`, in the group that is being formed."""
        return self._log.drop_soon(self.id, Offset(start), offsets, reason)

    # -- reading

    def wake(self) -> None:
        """Wake every reader that waits for messages of this partition, so that it reads again."""
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
        """The batch that contains the message at this offset, if it is live and in memory."""
        return self._log.lookup.holding(self.id, Offset(offset))

    async def read(self, offset: int, bytes_max: int = READ_BYTES) -> list[Batch] | AtHead | Gone:
        """Batches from the first live offset at or after `offset`, wherever they are stored.

        Every call locates the offset again, so that rotation, eviction, upload and pruning make no
        reader skip or repeat a message. Raises what the log and the stores raise.
        """
        log = self._log
        while True:
            answer = await log.read(self.id, Offset(offset), bytes_max)
            if not isinstance(answer, InObjects):
                return answer
            if self._tier is None:
                raise NotInLog(log.topic, self.id, answer.first_offset, answer.next_offset)
            batches = await self._tier.read(answer, Offset(offset))
            # If a purge has deleted the offset meanwhile, the next look finds that it is gone.
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

    def __init__(self, index: SubjectIndex, partition: PartitionId) -> None:
        self._index, self._partition = index, partition

    def cached_last(self, subject: bytes) -> Offset | NotInMemory | None:
        """The last offset of a subject, None if there is none; from memory alone."""
        return self._index.peek_last(self._partition, subject)

    async def last(self, filter_: Filter) -> Offset | None:
        """The last offset whose subject matches."""
        return await self._index.last(self._partition, filter_)

    async def next(self, filter_: Filter, offset: int) -> Offset | None:
        """The first offset from this one on whose subject matches."""
        return await self._index.next(self._partition, filter_, Offset(offset))

    async def matching(self, filter_: Filter, offset: int, limit: int) -> list[Offset]:
        """Up to `limit` offsets from this one on whose subjects match, in order."""
        return await self._index.matching(self._partition, filter_, Offset(offset), limit)

    async def count(self, filter_: Filter, first: int, stop: int) -> int:
        """How many messages of this range have subjects that match."""
        return await self._index.count(self._partition, filter_, Offset(first), Offset(stop))

    async def list(self, filter_: Filter, after: bytes, limit: int) -> list[SubjectRow]:
        """The first subjects behind `after`, in order, with their live messages."""
        return await self._index.subjects(self._partition, filter_, after, limit)
