"""The writing side of one log: the writer, the file it writes to, and what follows a commit.

A durable group becomes visible here: state, tail cache, subject index and frame table take it in,
observers are notified, waiting readers wake. After an error of the disk everything that was not
durable is discarded, and the log continues in a new file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from penstock.formats import bodies
from penstock.formats.frames import Flag
from penstock.host.tasks import Tasks
from penstock.log.append.committed_frames import apply_frames
from penstock.log.append.group import Sealed
from penstock.log.append.memory_writer import MemoryWriter
from penstock.log.append.writer import Writer
from penstock.log.files.wal_files import ActiveFile, WalFile
from penstock.log.observer import Observers
from penstock.log.reading.local_files import LocalFiles
from penstock.log.reading.waiters import Waiters
from penstock.log.recovery.indexing import index_files, index_frames
from penstock.log.recovery.recover import Recovered
from penstock.log.recovery.reopen import LogMode, Reopener
from penstock.log.shared.engine import Engine
from penstock.log.shared.tail_cache import Tail
from penstock.log.subjects.index import SubjectIndex
from penstock.model.errors import DurabilityUnmet, LogClosed, LogReadOnly
from penstock.model.resources import Durability
from penstock.model.units import PartitionId

_logger = structlog.get_logger(__name__)


class WritePath:
    """Makes durable groups visible and leads the writer from one file to the next."""

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        recovered: Recovered,
        files: LocalFiles,
        tail: Tail,
        index: SubjectIndex,
        waiters: Waiters,
        observers: Observers,
    ) -> None:
        self._engine, self._state, self._topic = engine, recovered.state, recovered.state.topic
        self._files, self._tail, self._index = files, tail, index
        self._waiters, self._observers = waiters, observers
        self._unconfirmed = recovered.unconfirmed
        self._tasks = Tasks()
        self.closing = False
        self.stored_bytes = 0
        """Bytes of messages, links and deletions since the log was opened."""
        self.writer: Writer | MemoryWriter
        if self._state.durability is Durability.MEMORY:
            self.writer = MemoryWriter(engine.settings, engine.clock, self._state, self._committed)
        else:
            report = (self._committed, self._rotated, self._failed)
            self.writer = Writer(engine, directory, self._state, *report)
        self.reopener = Reopener(engine, self._topic, directory, self._successor, self._reopened)

    async def begin(self, active: ActiveFile | OSError, next_number: int) -> None:
        """Write to `active` from now on; given an OSError, once the disk takes writes again."""
        assert isinstance(self.writer, Writer)
        self._files.active = None if isinstance(active, OSError) else active
        await self._files.load_starts()
        await index_files(self._index, self._files)
        if isinstance(active, OSError):
            self.writer.resume(next_number)
            self.reopener.start(active)
        else:
            self.writer.attach(active, next_number, epoch=0)

    def check_deletable(self) -> None:
        """Raises LogClosed or LogReadOnly if the log takes no deletions."""
        if self.closing:
            raise LogClosed(self._topic)
        if self.reopener.mode not in (LogMode.OPEN, LogMode.DELETES_ONLY):
            raise LogReadOnly(self._topic, self.reopener.reason)

    def rotate_if_old(self, now_ns: int) -> None:
        """Begin a new file if the active one has messages and is old."""
        active = self.writer.active
        if active is not None and active.used:
            age_ns = now_ns - active.created_ns
            if age_ns > self._engine.settings.file_seconds_max * 1_000_000_000:
                self.writer.rotate()

    async def finish(self) -> None:
        """Make everything that was appended durable and note that in a last checkpoint."""
        self.closing = True
        await self.writer.flush()
        if isinstance(self.writer, Writer) and self.writer.active is not None:
            self.writer.checkpoint(Flag.CLOSE).add_done_callback(asyncio.Future.exception)
            await self.writer.flush()
        await self.reopener.close()
        await self._tasks.drain()

    async def close_file(self) -> None:
        """Close the active file; nothing is written any more."""
        active = self.writer.active
        self.writer.detach()
        if active is not None:
            await self._engine.readers.run(self._files.close_quietly, active.fd)

    # -- reports of the writer

    def _committed(self, frames: list[Sealed], active: ActiveFile | None) -> None:
        now = self._engine.clock.monotonic_ns()
        group = apply_frames(frames, active, self._state, self._tail, self._index, now)
        self._engine.counters.messages += group.messages
        self.stored_bytes += group.stored_bytes
        for partition in group.partitions:
            self._waiters.wake(partition, self._state.next(PartitionId(partition)))
        self._observers.notify_committed(group.changed)
        for group_committed in self._observers.group_committed:
            group_committed()

    def _rotated(self, old: ActiveFile, new: ActiveFile) -> None:
        self._files.finish(old)
        self._index.sealed(old.file.path, old.file.sequence, old.file.end)
        self._files.active = new
        _logger.info("wal_rotated", topic=self._topic, file=new.file.path.name)
        if self._state.starts() and not len(self._tasks):
            self._tasks.start(self._files.drop_droppable(self._state, self._index))

    def _failed(self, error: OSError) -> None:
        active = self.writer.active
        assert isinstance(self.writer, Writer)
        assert active is not None
        self.reopener.start(error)
        self.writer.discard(DurabilityUnmet(self._topic, self.reopener.reason))
        for discarded in self._observers.discarded:
            discarded()
        self._waiters.wake_all()
        self.writer.detach()
        self._files.finish(active)

    # -- requests of the reopener

    async def _successor(self) -> tuple[WalFile, bodies.StartBody, int, int]:
        last, group, engine = self._files.last_finished, self._unconfirmed, self._engine
        if group is not None:
            await engine.readers.run(group.confirm, engine.disk)
            self._unconfirmed = None
            group.replay(last)
            index_frames(self._index, group.scanned.data, group.frames)
            self._waiters.wake_all()
        return last, self._state.to_start(), self.writer.durable_number, 0

    def _reopened(self, active: ActiveFile) -> None:
        assert isinstance(self.writer, Writer)
        # Only now: without a successor a restart continues with the failed file. Subjects that
        # are on disk already would then be counted twice, or later ones not at all.
        failed = self._files.last_finished
        self._index.sealed(failed.path, failed.sequence, failed.end)
        self._files.active = active
        self.writer.attach(active, active.file.header.first_frame + 1, epoch=0)
