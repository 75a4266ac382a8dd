"""The files of a log as a whole: what is in them, reading from them, dropping them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from penstock.formats.extents import Extent
from penstock.host.disk import Disk
from penstock.log.collect import Collected, Cursor, collect
from penstock.log.engine import Engine
from penstock.log.files import ActiveFile, WalFile
from penstock.log.read import InObjects, Unreadable, WalReader
from penstock.log.state import LogState
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import Batch
from penstock.model.units import Offset, PartitionId

_events = structlog.get_logger(__name__)


class LocalFiles:
    """Finished files, oldest first, and the active one if there is one."""

    def __init__(self, engine: Engine, topic: str, finished: list[WalFile]) -> None:
        self._engine = engine
        self._topic = topic
        self._finished = finished
        self._reader = WalReader(engine.disk)
        self._starts: Mapping[int, int] = {}
        self._dropping = asyncio.Lock()
        self.active: ActiveFile | None = None

    @property
    def disk(self) -> Disk:
        """What the files are on."""
        return self._engine.disk

    @property
    def last_finished(self) -> WalFile:
        return self._finished[-1]

    def all(self) -> list[WalFile]:
        return [*self._finished, *([self.active.file] if self.active is not None else [])]

    def start(self, partition: PartitionId) -> Offset:
        """The first offset that is in the files; what is before it is in objects or gone."""
        return Offset(self._starts.get(partition, 0))

    async def load_starts(self) -> None:
        """Learn where the files begin, after opening."""
        self._starts = await self._engine.readers.run(self._reader.starts, self.all())

    def finish(self, old: ActiveFile) -> None:
        """The file is not written any more; readers open it by name from now on."""
        if old.file.seal_position:
            old.file.table = None
        self._finished.append(old.file)
        self.active = None
        self._engine.readers.submit(lambda: self.let_go(old.fd))

    def let_go(self, fd: int) -> None:
        """Close a file; an error changes nothing, what counts of it has been synced."""
        with suppress(OSError):
            self._engine.disk.close(fd)

    async def read(
        self, partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | InObjects | Unreadable | None:
        """None when a file went away meanwhile: look again where the offset is."""
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
        while True:
            files, search = self.all(), self._reader.first_after
            try:
                return await self._engine.readers.run(search, files, partition, timestamp)
            except FileNotFoundError:
                if files == self.all():
                    raise

    async def collect(
        self, cursor: Cursor, bytes_max: int, gap_is_recorded: Callable[[Extent], bool]
    ) -> Collected:
        """Frames from the cursor on."""
        disk, files = self._engine.disk, self.all()
        return await self._engine.readers.run(
            collect, disk, files, cursor, bytes_max, gap_is_recorded
        )

    async def dead(self, starts: Mapping[int, int], frame_kept: int | None) -> list[WalFile]:
        """The oldest files that hold nothing from `starts` on, nor frames from `frame_kept` on."""
        async with self._dropping:
            files, look = self.all(), self._reader.dead_files
            return await self._engine.readers.run(look, files, starts, frame_kept)

    async def drop_dead(self, state: LogState, index: SubjectIndex) -> None:
        """Drop the oldest files whose messages are all before the starts of their partitions."""
        try:
            dead = await self.dead(state.starts(), state.settle_floor)
            if dead:
                index.drop({file.sequence for file in dead})
                await self.drop(dead)
        except OSError as error:
            _events.warning("wal_not_dropped", topic=self._topic, reason=str(error))

    async def drop(self, files: list[WalFile]) -> None:
        """Remove finished files, the oldest ones; what cannot be removed is found at the start."""
        gone = {file.sequence for file in files}
        async with self._dropping:
            kept = [file for file in self.all() if file.sequence not in gone]
            starts = await self._engine.readers.run(self._reader.starts, kept)
            # At one moment: whoever looked between the two would take what was dropped for lost.
            self._finished = [file for file in self._finished if file.sequence not in gone]
            self._starts = starts
            for file in files:
                facts = {"topic": self._topic, "file": file.path.name}
                try:
                    await self._engine.readers.run(self._engine.disk.remove, file.path)
                except OSError as error:
                    _events.warning("wal_not_dropped", **facts, reason=str(error))
                else:
                    _events.info("wal_dropped", **facts)
