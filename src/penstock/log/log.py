"""The log of one topic: every other part of Penstock appends and reads through this class."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pyroaring import BitMap64

from penstock.formats.frames import Kind
from penstock.log.append.deletes import Deletes
from penstock.log.append.group import Record
from penstock.log.append.links import Links, Objects, Ranges, plan
from penstock.log.append.memory_writer import Evictions, bound_index
from penstock.log.append.settlements import Settlements
from penstock.log.append.write_path import WritePath
from penstock.log.append.writer import Writer
from penstock.log.files.side_files import SideFiles
from penstock.log.files.wal_files import ActiveFile, WalFile
from penstock.log.observer import LogObserver, Observers
from penstock.log.reading.local_files import LocalFiles
from penstock.log.reading.lookup import READ_BYTES, Lookup
from penstock.log.reading.wal_reader import InObjects
from penstock.log.recovery.recover import Recovered
from penstock.log.recovery.reopen import LogMode
from penstock.log.settings import WhenFull
from penstock.log.shared.engine import Engine
from penstock.log.state import Missing
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import LogReadOnly
from penstock.model.resources import Durability
from penstock.model.run import ColumnRun, Run
from penstock.model.units import ONLY_PARTITION, Microseconds, Offset, OffsetRange, PartitionId


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The status of one log at one moment."""

    topic: str
    mode: LogMode
    reason: str
    """Why the log is not open; empty if it is."""
    files: int
    file_bytes: int
    pending_bytes: int
    missing: tuple[Missing, ...]
    """Offsets that were used and cannot be read."""


class Log:
    """Append-only, partitioned, durable; one writer, any number of readers.

    Appends complete when they are durable. Readers see committed offsets only.
    """

    def __init__(
        self, engine: Engine, directory: Path, topic: str, subject: bytes, recovered: Recovered
    ) -> None:
        self.topic, self.directory = topic, directory
        self._engine = engine
        self.state = recovered.state
        """The committed state; for reading only."""
        self.durability = self.state.durability
        in_memory = self.durability is Durability.MEMORY
        self._observers = Observers()
        evictions = Evictions(self.state, self._observers.notify_committed)
        self._tail = engine.cache.tail(evictions.note if in_memory else None)
        self.files = LocalFiles(engine, topic, recovered.files)
        self.side_files = SideFiles(engine.disk, engine.readers, directory)
        self.lookup = Lookup(topic, self.state, self._tail, None if in_memory else self.files)
        """The reading side."""
        self.lookup.missing = recovered.missing
        self.waiters = self.lookup.waiters
        self.index = SubjectIndex(
            directory,
            subject,
            engine.child,
            self.state,
            engine.readers.run,
            engine.matches,
            engine.settings.index_retry_seconds,
        )
        self._path = WritePath(
            engine,
            directory,
            recovered,
            self.files,
            self._tail,
            self.index,
            self.waiters,
            self._observers,
        )
        self.writer = self._path.writer
        self._deletes = Deletes(
            self.writer, self._path.reopener, self.state, self._path.check_deletable
        )
        self.links = Links(self.state.transactions)
        self.settlements = Settlements(engine, self.state, self.files)
        self.pressure_seconds = 0.0
        """How long a publish waits because the uploader is behind."""
        self.refusal = ""
        """Why appends are refused although the disk takes writes; empty if they are not."""

    # -- observing

    def observe(self, observer: LogObserver) -> Callable[[], None]:
        """Report to `observer` from now on; returns the function that ends this."""
        return self._observers.add(observer)

    # -- writing

    def append(self, run: Run | ColumnRun) -> asyncio.Future[OffsetRange]:
        """Assign offsets to a run and store it; the future completes when it is durable.

        The run's lists belong to the log from now on. Raises RunInvalid, AppendQueueFull,
        LogReadOnly or LogClosed, and then nothing has happened; the future raises DurabilityUnmet
        if the disk fails.
        """
        self._check_open()
        first = self.writer.next_offset(run.partition)
        future = self.writer.append(run)
        for appended in self._observers.appended:
            appended(run, first)
        return future

    def link(
        self, app: str, epoch: int, objects: Objects, subjects: bytes = b""
    ) -> asyncio.Future[Ranges]:
        """Assign offsets to rows that are in objects already, all partitions in one frame.

        A second link with the same or an older epoch of `app` changes nothing and returns the
        ranges that `links` has of it.
        """
        self._check_open()
        known = self.links.known(app, epoch)
        if known is not None:
            return known
        body, ranges = plan(app, epoch, objects, self.writer.next_offset, subjects)
        return self.links.note(app, epoch, self.writer.link(body, ranges))

    def settle(self, body: bytes, count: int) -> asyncio.Future[None]:
        """Store settlements of subscriptions in a frame, in the same groups as messages."""
        self._check_open()
        self.settlements.note(body, self.writer.durable_number)
        record = Record(Kind.SETTLE, ONLY_PARTITION, Offset(0), count, body)
        next_offset = self.writer.next_offset(ONLY_PARTITION)
        future: asyncio.Future[None] = self.writer.record(record, next_offset)
        return future

    async def delete(
        self, partition: PartitionId, offsets: Iterable[int], reason: str = "message"
    ) -> None:
        """Delete single messages; durable on return. Works on a full disk too."""
        await self._deletes.messages(partition, offsets, reason)

    async def purge(
        self, partition: PartitionId, start: Offset, reason: str = "purge", past_end: bool = False
    ) -> None:
        """Delete everything before `start`; durable on return. Works on a full disk too.

        With `past_end`, a `start` beyond the end is the offset of the next message.
        """
        if await self._deletes.before(partition, start, reason, past_end=past_end):
            await self.files.drop_droppable(self.state, self.index)
            self.index.tidy()

    async def skip(self, partition: PartitionId, next_offset: Offset, reason: str) -> None:
        """Record a gap: the partition continues at `next_offset`."""
        await self._deletes.gap(partition, next_offset, reason)

    async def restore(self, partition: PartitionId, offsets: BitMap64) -> None:
        """Make offsets of a recorded gap readable because their messages are in objects; durable
        on return.
        """
        await self._deletes.undo(partition, offsets)
        for restored in self._observers.restored:
            restored(partition, Offset(offsets.min()))
        await self.index.forget_before(partition, Offset(offsets.max()))

    def drop_soon(
        self, partition: PartitionId, start: Offset, offsets: Iterable[int], reason: str
    ) -> asyncio.Future[None]:
        """Delete everything before `start`, and `offsets`, in the group that is being formed."""
        return self._deletes.soon(partition, start, offsets, reason)

    @property
    def when_full(self) -> WhenFull:
        """What an append does when the queue is full."""
        return self._engine.settings.when_full

    def check_room(self, size_bytes: int) -> None:
        """Raise AppendQueueFull if a run of this size would be refused now."""
        self.writer.check_room(size_bytes)

    async def room(self, size_bytes: int = 1) -> None:
        """Wait until a run of this size would not be refused because the queue is full."""
        await self.writer.room(size_bytes)

    def rotate(self) -> None:
        """Begin a new file with the next group, or at once if there is none."""
        self.writer.rotate()

    # -- reading

    def next_offset(self, partition: PartitionId) -> Offset:
        """The high watermark: the offset of the next message that readers will see."""
        return self.state.next(partition)

    def start_offset(self, partition: PartitionId) -> Offset:
        """The log start offset: the first one that is not deleted by a purge or by retention."""
        return self.state.start(partition)

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(p) for p in self.state.nexts]

    def live_count(self, partition: PartitionId) -> int:
        return self.state.live_count(partition)

    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int = READ_BYTES
    ) -> list[Batch] | AtHead | Gone | InObjects:
        """Batches without a gap from the first live offset at or after `offset`, up to about
        `bytes_max`.

        Raises DataDamaged if that offset was used and cannot be read.
        """
        return await self.lookup.read(partition, offset, bytes_max)

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset in the files that is not older than `timestamp`, or else the next
        offset.
        """
        return await self.lookup.offset_at(partition, timestamp)

    # -- tiers

    @property
    def stored_bytes(self) -> int:
        """Bytes of messages, links and deletions since the log was opened."""
        return self._path.stored_bytes

    async def prune(self, files: list[WalFile]) -> None:
        """Remove the oldest files, whose messages are all in objects; the indexes keep them."""
        unindexed = self.index.unapplied
        dropped = takewhile(lambda file: file.sequence not in unindexed, files)
        await self.files.drop(list(dropped))

    # -- life cycle

    @property
    def mode(self) -> LogMode:
        return self._path.reopener.mode

    @property
    def closed(self) -> bool:
        return self.mode is LogMode.CLOSED

    def status(self) -> LogStatus:
        files = self.files.all()
        return LogStatus(
            topic=self.topic,
            mode=self.mode,
            reason=self._path.reopener.reason if self.mode is not LogMode.OPEN else "",
            files=len(files),
            file_bytes=sum(file.end for file in files),
            pending_bytes=self.writer.pending_bytes,
            missing=tuple(self.lookup.missing),
        )

    async def begin(self, active: ActiveFile | OSError, next_number: int) -> None:
        """Write to `active` from now on; given an OSError, once the disk takes writes again."""
        await self._path.begin(active, next_number)

    def tick(self, now_ns: int) -> None:
        """Rotate an old file even if nothing is appended; called about once a second."""
        if self.durability is Durability.MEMORY:
            bound_index(self.index, self._tail)
        self._path.rotate_if_old(now_ns)

    async def close(self) -> None:
        """Make everything that was appended durable, write a last checkpoint, wake every reader."""
        if self._path.closing:
            return
        await self._path.finish()
        await self.side_files.close()
        self.lookup.closed = True
        await self._path.close_file()
        self._tail.clear()
        self.waiters.wake_all()
        await self.index.close()

    def _check_open(self) -> None:
        path = self._path
        if path.closing or path.reopener.mode is not LogMode.OPEN:
            path.check_deletable()
            raise LogReadOnly(self.topic, path.reopener.reason)
        if self.refusal:
            raise LogReadOnly(self.topic, self.refusal)
        # Before it is written: every group that must not be acknowledged costs a new file.
        if isinstance(self.writer, Writer) and not self.writer.may_ack():
            raise LogReadOnly(self.topic, "this broker may no longer own the topic")
