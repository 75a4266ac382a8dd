"""The WAL files of one log: reads from them and removes them when they are not needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import structlog

from penstock.host.disk import Disk
from penstock.log.files.wal_files import ActiveFile, NextOffsets, WalFile
from penstock.log.reading.collect import Collected, Cursor, collect
from penstock.log.reading.wal_reader import InObjects, Unreadable, WalReader
from penstock.log.shared.engine import Engine
from penstock.log.state import LogState
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import Batch
from penstock.model.units import Offset, PartitionId, PartitionRange

_T = TypeVar("_T")

BeforeDrop = Callable[[Mapping[int, int]], Awaitable[None]]
_events = structlog.get_logger(__name__)


class LocalFiles:
    """Finished files, oldest first, and the active one if there is one."""

    def __init__(self, engine: Engine, topic: str, finished: list[WalFile]) -> None:
        self._engine = engine
        self._topic = topic
        self._finished = finished
        self._reader = WalReader(engine.disk)
        self._starts = NextOffsets()
        self._dropping = asyncio.Lock()
        self.active: ActiveFile | None = None
        self._before_drop: tuple[BeforeDrop, ...] = ()

    @property
    def disk(self) -> Disk:
        """The disk that has the files."""
        return self._engine.disk

    @property
    def last_finished(self) -> WalFile:
        return self._finished[-1]

    def all(self) -> list[WalFile]:
        return [*self._finished, *([self.active.file] if self.active is not None else [])]

    def start(self, partition: PartitionId) -> Offset:
        """The first offset in the files; earlier messages are in objects or deleted."""
        return Offset(self._starts.of(partition))

    async def load_starts(self) -> None:
        """Read where the files begin; called once, when the log is opened."""
        self._starts = await self._engine.readers.run(self._reader.starts, self.all())

    def finish(self, old: ActiveFile) -> None:
        """Make the active file a finished one: readers open it by name from now on."""
        if old.file.seal_position:
            old.file.table = None
        self._finished.append(old.file)
        self.active = None
        self._engine.readers.submit(lambda: self.close_quietly(old.fd))

    def close_quietly(self, fd: int | None) -> None:
        """Close a file; an error is ignored, since everything that counts is synced."""
        if fd is not None:
            with suppress(OSError):
                self._engine.disk.close(fd)

    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | InObjects | Unreadable | None:
        """Read from the files.

        None if a file was removed during the read: the caller has to locate the offset again.
        """
        begun, files = self._engine.clock.monotonic_ns(), self.all()
        try:
            found = await self._engine.readers.run(
                self._reader.read, files, partition, offset, bytes_max
            )
        except FileNotFoundError as error:
            if files != self.all():
                return None
            return Unreadable(offset, Offset(offset + 1), f"{error.filename} is not there")
        took_ns = self._engine.clock.monotonic_ns() - begun
        self._engine.counters.read_ms.observe(took_ns / 1e6)
        return found

    async def first_after(self, partition: PartitionId, timestamp: int) -> Offset | None:
        """The first offset in the files that is not older than `timestamp`."""
        return await self._search(self._reader.first_after, partition, timestamp)

    async def stored(self, partition: PartitionId, offset: Offset, bytes_max: int) -> list[Batch]:
        """The next batches from `offset` on that are in the files, with deleted messages.

        Gaps between them are skipped; the list is empty if there are no more. Raises OSError.
        """
        return await self._search(self._reader.stored, partition, offset, bytes_max)

    async def _search(self, search: Callable[..., _T], *arguments: object) -> _T:
        """Search the files in a thread; repeat the search if a file was removed during it."""
        while True:
            files = self.all()
            try:
                return await self._engine.readers.run(search, files, *arguments)
            except FileNotFoundError:
                if files == self.all():
                    raise

    async def collect(
        self, cursor: Cursor, bytes_max: int, gap_is_recorded: Callable[[PartitionRange], bool]
    ) -> Collected:
        """The next frames from the cursor on."""
        disk, files = self._engine.disk, self.all()
        return await self._engine.readers.run(
            collect, disk, files, cursor, bytes_max, gap_is_recorded
        )

    async def droppable_files(
        self, starts: Mapping[int, int], first_needed_frame: int | None
    ) -> list[WalFile]:
        """The oldest files that have no offset from `starts` on, and no needed frame."""
        async with self._dropping:
            files, look = self.all(), self._reader.dead_files
            return await self._engine.readers.run(look, files, starts, first_needed_frame)

    async def drop_droppable(self, state: LogState, index: SubjectIndex) -> None:
        """Remove the oldest files if all their messages are deleted; a failure is logged."""
        try:
            files = await self.droppable_files(state.starts(), state.settle_floor)
            if files:
                index.drop({file.sequence for file in files})
                await self.drop(files)
        except OSError as error:
            _events.warning("wal_not_dropped", topic=self._topic, reason=str(error))

    def before_drop(self, prepare: BeforeDrop) -> Callable[[], None]:
        """Await `prepare(starts)` before files are dropped; returns the function that ends this.

        `starts` has the first offset of each partition that the remaining files hold. An OSError of
        `prepare` is logged and the files are dropped nevertheless, since they may fill the disk.
        """
        self._before_drop = (*self._before_drop, prepare)

        def cancel() -> None:
            self._before_drop = tuple(other for other in self._before_drop if other is not prepare)

        return cancel

    async def _prepare_drop(self, starts: Mapping[int, int]) -> None:
        try:
            for prepare in self._before_drop:
                await prepare(starts)
        except OSError as error:
            _events.error("wal_drop_not_prepared", topic=self._topic, reason=str(error))

    async def drop(self, files: list[WalFile]) -> None:
        """Remove finished files, the oldest ones; those that cannot be removed are found at the
        next start.
        """
        dropped = {file.sequence for file in files}
        async with self._dropping:
            remaining = [file for file in self.all() if file.sequence not in dropped]
            starts = await self._engine.readers.run(self._reader.starts, remaining)
            await self._prepare_drop(starts)
            # Both in one turn of the loop, or a reader would take the dropped offsets for lost.
            self._finished = [file for file in self._finished if file.sequence not in dropped]
            self._starts = starts
            for file in files:
                facts = {"topic": self._topic, "file": file.path.name}
                try:
                    await self._engine.readers.run(self._engine.disk.remove, file.path)
                except OSError as error:
                    _events.warning("wal_not_dropped", **facts, reason=str(error))
                else:
                    _events.info("wal_dropped", **facts)
