"""The log of one topic: every other part of Penstock appends and reads through this class."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path

import structlog

from penstock.formats import bodies
from penstock.formats.frames import Flag, Kind
from penstock.log.arrived import take_in
from penstock.log.deletes import Deletes
from penstock.log.engine import Engine
from penstock.log.files import ActiveFile, WalFile
from penstock.log.group import Record, Sealed
from penstock.log.indexing import bound_memory, index_files, index_frames
from penstock.log.links import Links, Objects, Ranges, plan
from penstock.log.local import LocalFiles
from penstock.log.lookup import Lookup
from penstock.log.memory import MemoryWriter
from penstock.log.read import InObjects
from penstock.log.reader import READ_BYTES, ObjectSource, Reader
from penstock.log.recover import Recovered
from penstock.log.reopen import Mode, Reopener
from penstock.log.settings import WhenFull
from penstock.log.settlements import Settlements
from penstock.log.state import LogState
from penstock.log.status import LogStatus
from penstock.log.subjects.index import SubjectIndex
from penstock.log.waiters import Waiters
from penstock.log.writer import Writer
from penstock.model.batch import AtHead, Batch, Gone, OffsetRange
from penstock.model.durability import Durability
from penstock.model.errors import AppendQueueFull, DurabilityUnmet, LogClosed, LogReadOnly
from penstock.model.run import ColumnRun, Run
from penstock.model.units import ONLY_PARTITION, Microseconds, Offset, PartitionId

_logger = structlog.get_logger(__name__)


class Log:
    """Append-only, partitioned, durable; one writer, any number of readers.

    Appends complete when they are on disk for good. Readers see committed offsets only.
    """

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        topic: str,
        subject: bytes,
        recovered: Recovered,
    ) -> None:
        self.topic = topic
        self.directory = directory
        self._engine = engine
        self._state: LogState = recovered.state
        self._local = LocalFiles(engine, topic, recovered.files)
        self._tail = engine.cache.tail()
        self.durability = self._state.durability
        self._writer = self._make_writer()
        self._unconfirmed = recovered.unconfirmed
        self._reopener = Reopener(engine, topic, directory, self._successor, self._reopened)
        self.index = SubjectIndex(
            directory, subject, engine.child, self._state, engine.readers.run, engine.matches
        )
        self._deletes = Deletes(
            self._writer,
            self._reopener,
            self._state,
            self._check_deletable,
        )
        files = None if self.durability is Durability.MEMORY else self._local
        self.lookup = Lookup(topic, self._state, self._tail, files)
        """The reading side."""
        self.lookup.missing = recovered.missing
        self.links = Links(self._state.transactions)
        self.settlements = Settlements(engine, self._state, self._local)
        self._closing = False
        self._tidying: asyncio.Task[None] | None = None
        self.stored_bytes = 0
        """Bytes of messages, links and deletions since the log was opened."""
        self.pressure_seconds = 0.0
        """How long a publish waits because the uploader is behind."""
        self.refusal = ""
        """Why appends are refused although the disk would take them; empty when they are not."""
        self.admit: Callable[[Run | ColumnRun], None] | None = None
        """Asked before every append; raises when the run is not to be taken."""
        self.on_append: Callable[[Run | ColumnRun, Offset], None] | None = None
        """Told of every run and its first offset at once, before it is durable."""
        self.on_commit: Callable[[set[int]], None] | None = None
        """Told which partitions a group has changed, once it is durable and before its acks."""
        self.on_thrown_away: Callable[[], None] | None = None
        """Told when all that is not durable was thrown away, before those who wait for it."""

    @property
    def waiters(self) -> Waiters:
        """Who waits for messages; see waiters.py for the order of steps."""
        return self.lookup.waiters

    @property
    def settle_floor(self) -> int | None:
        """First frame whose settlements may still be needed; files from there on are kept."""
        return self._state.settle_floor

    # -- writing

    async def publish(self, run: Run | ColumnRun) -> OffsetRange:
        """Append and wait until it is durable; at a full queue wait or refuse, as is configured."""
        if self.pressure_seconds:
            await asyncio.sleep(self.pressure_seconds)
        while True:
            try:
                future = self.append(run)
            except AppendQueueFull:
                if self._engine.settings.when_full is WhenFull.REFUSE:
                    raise
                await self._writer.room(run.measure())
            else:
                return await future

    def append(self, run: Run | ColumnRun) -> asyncio.Future[OffsetRange]:
        """Give a run its offsets and store it; the future completes when it is durable.

        The run's lists belong to the log from now on. Raises RunInvalid, AppendQueueFull,
        LogReadOnly or LogClosed at once, and then nothing has happened; the future raises
        DurabilityUnmet when the disk fails.
        """
        self._check_open()
        if self.admit is not None:
            self.admit(run)
        first = self._writer.next_offset(run.partition)
        future = self._writer.append(run)
        if self.on_append is not None:
            self.on_append(run, first)
        return future

    def link(
        self, app: str, epoch: int, objects: Objects, subjects: bytes = b""
    ) -> asyncio.Future[Ranges]:
        """Give offsets to rows that lie in objects already, all partitions in one frame.

        A second link of the same or an older epoch of `app` changes nothing and answers what
        `links` knows of it.
        """
        self._check_open()
        known = self.links.known(app, epoch)
        if known is not None:
            return known
        made = plan(app, epoch, objects, self._writer.next_offset, subjects)
        return self.links.note(app, epoch, self._writer.link(*made))

    def settle(self, body: bytes, count: int) -> asyncio.Future[None]:
        """Store what subscriptions settled, in the same groups as messages."""
        self._check_open()
        self.settlements.note(body, self._writer.durable_number)
        record = Record(Kind.SETTLE, ONLY_PARTITION, Offset(0), count, body)
        next_offset = self._writer.next_offset(ONLY_PARTITION)
        future: asyncio.Future[None] = self._writer.record(record, next_offset)
        return future

    async def delete(
        self, partition: PartitionId, offsets: Iterable[int], reason: str = "message"
    ) -> None:
        """Delete single messages; durable on return. Works on a full disk too."""
        await self._deletes.messages(partition, offsets, reason)

    async def purge(self, partition: PartitionId, start: Offset, reason: str = "purge") -> None:
        """Drop everything before `start`; durable on return. Works on a full disk too."""
        if await self._deletes.before(partition, start, reason):
            await self._local.drop_dead(self._state, self.index)
            self.index.tidy()

    async def skip(self, partition: PartitionId, next_offset: Offset, reason: str) -> None:
        """Record a hole: the partition goes on at `next_offset`, what is before never existed."""
        await self._deletes.hole(partition, next_offset, reason)

    def drop_soon(
        self, partition: PartitionId, start: Offset, offsets: Iterable[int], reason: str
    ) -> asyncio.Future[None]:
        """Drop what is before `start`, and these, with what was appended last; raises like it."""
        return self._deletes.soon(partition, start, offsets, reason)

    async def room(self, size_bytes: int = 1) -> None:
        """Wait until a run of this size would not be refused for a full queue."""
        await self._writer.room(size_bytes)

    def rotate(self) -> None:
        """Begin a new file soon."""
        self._writer.rotate()

    # -- reading

    def next_offset(self, partition: PartitionId) -> Offset:
        """The committed end: the offset of the next message readers will see."""
        return self._state.next(partition)

    def start_offset(self, partition: PartitionId) -> Offset:
        return self._state.start(partition)

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(p) for p in self._state.nexts]

    def live_count(self, partition: PartitionId) -> int:
        return self._state.live_count(partition)

    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int = READ_BYTES
    ) -> list[Batch] | AtHead | Gone | InObjects:
        """Batches from the first live offset at or after `offset`, about `bytes_max`, without a
        gap.

        Raises DataDamaged when that offset was given out and cannot be read.
        """
        return await self.lookup.read(partition, offset, bytes_max)

    def reader(
        self,
        partition: PartitionId,
        start: Offset,
        bytes_max: int = READ_BYTES,
        objects: ObjectSource | None = None,
    ) -> Reader:
        """One ordered stream from `start` on that waits at the head."""
        return Reader(self.lookup, partition, start, bytes_max, objects)

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset here that is not older than `timestamp`; else the next offset."""
        return await self.lookup.offset_at(partition, timestamp)

    # -- for the tiers

    @property
    def state(self) -> LogState:
        """The committed state; others only look at it."""
        return self._state

    @property
    def writer(self) -> Writer | MemoryWriter:
        return self._writer

    @property
    def files(self) -> LocalFiles:
        return self._local

    async def prune(self, files: list[WalFile]) -> None:
        """Drop the oldest files: everything in them is in objects, and still in the indexes."""
        keep = self.index.unapplied
        await self._local.drop(list(takewhile(lambda file: file.sequence not in keep, files)))

    # -- life

    @property
    def mode(self) -> Mode:
        return self._reopener.mode

    @property
    def closed(self) -> bool:
        return self.mode is Mode.CLOSED

    def status(self) -> LogStatus:
        files = self._local.all()
        return LogStatus(
            topic=self.topic,
            mode=self.mode,
            reason=self._reopener.reason if self.mode is not Mode.OPEN else "",
            files=len(files),
            file_bytes=sum(file.end for file in files),
            pending_bytes=self._writer.pending_bytes,
            missing=tuple(self.lookup.missing),
        )

    async def begin(self, active: ActiveFile | OSError, next_number: int) -> None:
        """Start writing to `active`; called once, by whoever opened the log.

        Where the disk takes no writes, it is told why, and begins a file as soon as that is over.
        """
        assert isinstance(self._writer, Writer)
        self._local.active = None if isinstance(active, OSError) else active
        await self._local.load_starts()
        await index_files(self.index, self._local)
        if isinstance(active, OSError):
            self._writer.take_up(next_number)
            self._reopener.start(active)
        else:
            self._writer.attach(active, next_number, epoch=0)

    def tick(self, now_ns: int) -> None:
        """Called about once a second: rotates an old file even when nobody appends."""
        if self.durability is Durability.MEMORY:
            bound_memory(self.index, self._tail)
        active = self._writer.active
        if active is not None and active.used:
            age = now_ns - active.created_ns
            if age > self._engine.settings.file_seconds_max * 1_000_000_000:
                self._writer.rotate()

    async def close(self) -> None:
        """Make what was taken durable, note that in a last checkpoint, wake every reader."""
        if self._closing:
            return
        self._closing = True
        await self._writer.flush()
        if isinstance(self._writer, Writer) and self._writer.active is not None:
            self._writer.checkpoint(Flag.CLOSE).add_done_callback(asyncio.Future.exception)
            await self._writer.flush()
        await self._reopener.close()
        if self._tidying is not None:
            await self._tidying
        self.lookup.closed = True
        active = self._writer.active
        self._writer.detach()
        if active is not None:
            await self._engine.readers.run(self._local.let_go, active.fd)
        self._tail.clear()
        self.lookup.waiters.wake_all()
        await self.index.close()

    # -- what the writer reports

    def _committed(self, frames: list[Sealed], active: ActiveFile | None) -> None:
        now = self._engine.clock.monotonic_ns()
        arrived = take_in(frames, active, self._state, self._tail, self.index, now)
        self._engine.counters.messages += arrived.messages
        self.stored_bytes += arrived.stored_bytes
        self.lookup.waiters.wake(arrived.partitions)
        if self.on_commit is not None and arrived.changed:
            self.on_commit(arrived.changed)

    def _rotated(self, old: ActiveFile, new: ActiveFile) -> None:
        self._retire(old)
        self._local.active = new
        _logger.info("wal_rotated", topic=self.topic, file=new.file.path.name)
        if self._state.starts() and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.create_task(self._local.drop_dead(self._state, self.index))

    def _failed(self, error: OSError) -> None:
        active = self._writer.active
        assert isinstance(self._writer, Writer)
        assert active is not None
        self._reopener.start(error)
        self._writer.throw_away(DurabilityUnmet(self.topic, self._reopener.reason))
        if self.on_thrown_away is not None:
            self.on_thrown_away()
        self.lookup.waiters.wake_all()
        self._writer.detach()
        self._local.finish(active)

    def _retire(self, old: ActiveFile) -> None:
        self._local.finish(old)
        self.index.sealed(old.file.path, old.file.sequence, old.file.end)

    async def _successor(self) -> tuple[WalFile, bodies.Start, int, int]:
        last, group, engine = self._local.last_finished, self._unconfirmed, self._engine
        if group is not None:
            await engine.readers.run(group.confirm, engine.disk)
            self._unconfirmed = None
            group.replay(last)
            index_frames(self.index, group.scanned.data, group.frames)
            self.lookup.waiters.wake_all()
        return last, self._state.to_start(), self._writer.durable_number, 0

    def _reopened(self, active: ActiveFile) -> None:
        assert isinstance(self._writer, Writer)
        # Only now: without a successor a restart goes on with the failed file, and subjects that
        # were on disk already would be counted twice, or those to come not at all.
        failed = self._local.last_finished
        self.index.sealed(failed.path, failed.sequence, failed.end)
        self._local.active = active
        self._writer.attach(active, active.file.header.first_frame + 1, epoch=0)

    def _make_writer(self) -> Writer | MemoryWriter:
        engine = self._engine
        if self.durability is Durability.MEMORY:
            return MemoryWriter(engine.settings, engine.clock, self._state, self._committed)
        report = (self._committed, self._rotated, self._failed)
        return Writer(engine, self.directory, self._state, *report)

    def _check_open(self) -> None:
        if self._closing or self._reopener.mode is not Mode.OPEN:
            self._check_deletable()
            raise LogReadOnly(self.topic, self._reopener.reason)
        if self.refusal:
            raise LogReadOnly(self.topic, self.refusal)
        # Before it is written: every group that must not be acknowledged costs a new file.
        if isinstance(self._writer, Writer) and not self._writer.may_ack():
            raise LogReadOnly(self.topic, "this broker may no longer own the topic")

    def _check_deletable(self) -> None:
        if self._closing:
            raise LogClosed(self.topic)
        if self._reopener.mode not in (Mode.OPEN, Mode.DELETES_ONLY):
            raise LogReadOnly(self.topic, self._reopener.reason)
