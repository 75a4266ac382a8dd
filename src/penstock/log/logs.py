"""The logs of a broker.

`start` finds the logs on disk; `load` recovers one of them when its topic is opened. All logs share
threads, caches and one timer, and are closed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from penstock.formats.paths import topic_directory
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.tasks import Tasks
from penstock.host.threads import WorkerThreads
from penstock.log import directories
from penstock.log.log import Log
from penstock.log.opening import LogOpener
from penstock.log.recovery.reopen import LogMode
from penstock.log.settings import LogSettings
from penstock.log.shared.committer import THREADS as COMMITTER_THREADS
from penstock.log.shared.committer import Committer
from penstock.log.shared.counters import LogCounters
from penstock.log.shared.engine import Engine, Reserve
from penstock.log.shared.open_files import OpenFiles
from penstock.log.shared.tail_cache import TailCache
from penstock.log.state import LogState
from penstock.model import names
from penstock.model.errors import LogClosed, LogError, PenstockError
from penstock.model.metrics import Metric
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.units import Nanoseconds

READER_THREADS: Final = 4
TICK_LOGS: Final = 500
"""Logs that are processed before other tasks of the event loop run."""
_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Limits of all logs together."""

    cache_bytes_max: int = 256 << 20
    cache_seconds_max: float = 600
    index_bytes_max: int = 128 << 20
    reserve_bytes: int = 4 << 20
    open_files_max: int = 512


class Logs:
    """The logs below one directory.

    Logs that cannot be recovered are in `unavailable` with the reason; the others serve.
    """

    def __init__(
        self,
        directory: Path,
        settings: LogSettings,
        limits: SharedLimits,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        disk, clock = disk or Disk(), clock or Clock()
        self._directory = directory
        self._limits = limits
        counters = LogCounters()
        self._committers = WorkerThreads(COMMITTER_THREADS, "commit")
        self._engine = Engine(
            settings=settings,
            disk=disk,
            clock=clock,
            readers=WorkerThreads(READER_THREADS, "read"),
            committer=Committer(disk, self._committers, counters),
            open_files=OpenFiles(disk, limits.open_files_max),
            cache=TailCache(
                limits.cache_bytes_max, Nanoseconds(int(limits.cache_seconds_max * 1e9))
            ),
            reserve=Reserve(disk, directory, limits.reserve_bytes),
            child=Child(),
            counters=counters,
        )
        self._opener = LogOpener(self._engine, directory)
        self._logs: dict[TopicName, Log] = {}
        self._creating: set[TopicName] = set()
        self._on_disk: set[str] = set()
        """Directories of logs on disk that are not loaded yet."""
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._ticker: asyncio.Task[None] | None = None
        self.unavailable: dict[str, str] = {}

    @property
    def disk(self) -> Disk:
        return self._engine.disk

    @property
    def cache(self) -> TailCache:
        return self._engine.cache

    @property
    def counters(self) -> LogCounters:
        return self._engine.counters

    async def start(self) -> None:
        """Find the logs on disk, and begin the periodic work on open logs."""
        await self._engine.readers.run(self._engine.disk.make_directories, self._directory)
        await self._engine.readers.run(self._engine.reserve.restore)
        self._on_disk = await self._engine.readers.run(directories.find_logs, self._directory)
        self._ticker = self._tasks.start(self._tick())

    async def open(self) -> None:
        """Start, and load every log on disk."""
        await self.start()
        await self.load_all()

    async def load_all(self) -> None:
        """Load every log on disk that is not open yet."""
        await asyncio.gather(*(self._load(name) for name in sorted(self._on_disk)))

    async def load(self, topic: TopicName) -> Log | None:
        """The log of a topic, recovered from disk if it is not open yet.

        None if there is no log on disk, or if it cannot be recovered: `unavailable` has the reason.
        """
        name = topic_directory(topic)
        if name in self._on_disk:
            await self._load(name)
        return self._logs.get(topic)

    def get(self, topic: TopicName) -> Log | None:
        """The log of a topic, if it is open."""
        return self._logs.get(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether there is a log, open or on disk."""
        return topic in self._logs or topic_directory(topic) in self._on_disk

    def log_directories(self) -> set[str]:
        """Directories of all logs, open or on disk, relative to the directory of all logs."""
        return self._on_disk | {topic_directory(topic) for topic in self._logs}

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    async def create(
        self,
        topic: TopicName,
        durability: Durability = Durability.FSYNC,
        first_offset: int = 0,
    ) -> Log:
        """Create an empty log whose partitions begin at `first_offset`.

        Raises LogError if there is a log of this name.
        """
        state = LogState(str(topic))
        state.floor = first_offset
        state.durability = durability
        return await self.adopt(topic, state, 0)

    async def adopt(
        self, topic: TopicName, state: LogState, first_frame: int, first_sequence: int = 0
    ) -> Log:
        """Create a log that continues `state`, which comes from elsewhere, with an empty WAL.

        Its files are numbered from `first_sequence`; lower numbers are for the subject index of
        earlier messages. Raises LogError if there is a log of this name.
        """
        if self.exists(topic) or topic in self._creating:
            raise LogError(str(topic), "the log exists already")
        if (reason := self.unavailable.get(topic_directory(topic))) is not None:
            raise LogError(str(topic), f"the log exists and is not available: {reason}")
        self._creating.add(topic)
        try:
            self._logs[topic] = await self._opener.create(topic, state, first_frame, first_sequence)
        finally:
            self._creating.discard(topic)
        return self._logs[topic]

    async def set_aside(self, topic: TopicName, suffix: str) -> None:
        """Close a log whose files no longer count, and rename its directory."""
        log = self._logs.pop(topic)
        await log.close()
        await self._engine.readers.run(
            self._engine.disk.move, log.directory, log.directory.with_name(suffix)
        )

    async def set_aside_as(self, suffix: str) -> dict[str, list[Path]]:
        """Directories that were set aside with this suffix, by the directory of their topic."""
        return await self._engine.readers.run(directories.find_set_aside, self._directory, suffix)

    async def remove(self, topic: TopicName) -> None:
        """Close a log and remove its files and those that were set aside; idempotent."""
        log = self._logs.pop(topic, None)
        if log is not None:
            await log.close()
            log.writer.give_up_uploads(LogClosed(log.topic))
        name = topic_directory(topic)
        self._on_disk.discard(name)
        await self._engine.readers.run(
            directories.remove, self._engine.disk, self._directory / name
        )
        self.unavailable.pop(name, None)

    def metrics(self) -> list[Metric]:
        """What the logs have counted, and the state of each log."""
        statuses = [log.status() for log in self]
        by_topic = [({"topic": status.topic}, status) for status in statuses]
        return [
            *self.counters.metrics(),
            *self.cache.metrics(),
            Metric(
                "penstock_wal_bytes_total",
                "gauge",
                "Bytes of WAL files.",
                [(labels, status.file_bytes) for labels, status in by_topic],
            ),
            Metric(
                "penstock_log_open",
                "gauge",
                "1 if the log accepts messages, 0 if it is read-only.",
                [(labels, float(status.mode is LogMode.OPEN)) for labels, status in by_topic],
            ),
            Metric(
                "penstock_log_damaged_offsets",
                "gauge",
                "Acknowledged offsets that cannot be read.",
                [(labels, sum(m.next - m.first for m in s.missing)) for labels, s in by_topic],
            ),
        ]

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Whether every log takes writes, and details of those that do not."""
        troubled = {
            log.topic: log.status().reason
            for log in self._logs.values()
            if log.mode is not LogMode.OPEN
        }
        troubled |= self.unavailable
        return not troubled, {"logs": len(self._logs), "troubled": troubled}

    async def close(self) -> None:
        """Make everything durable, then close files and stop threads and the child process."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        await asyncio.gather(*(log.close() for log in self._logs.values()))
        await self._engine.child.close()
        await self._engine.readers.close()
        await self._committers.close()

    async def _load(self, name: str) -> None:
        """Recover a log once for all callers; the cancellation of a caller does not stop it."""
        if name not in self._loading:
            loading = self._tasks.start(self._recover(name))
            self._loading[name] = loading
            loading.add_done_callback(lambda _: self._loading.pop(name))
        await asyncio.shield(self._loading[name])

    async def _recover(self, name: str) -> None:
        try:
            log = await self._opener.recover(self._directory / name)
        except (PenstockError, OSError) as error:
            self.unavailable[name] = str(error)
            _logger.error("log_unavailable", directory=name, reason=str(error))
        else:
            self._logs[names.topic(log.topic)] = log
        self._on_disk.discard(name)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._engine.settings.tick_seconds)
            now = self._engine.clock.monotonic_ns()
            self._engine.cache.evict(now)
            sizes: dict[Log, int] = {}
            for count, log in enumerate(list(self._logs.values()), 1):
                log.tick(now)
                sizes[log] = log.index.nbytes
                if count % TICK_LOGS == 0:
                    await asyncio.sleep(0)
            self._bound_index(sizes)

    def _bound_index(self, sizes: dict[Log, int]) -> None:
        """Over the limit, rotate the log with the most subjects in memory."""
        if sum(sizes.values()) > self._limits.index_bytes_max:
            largest = max(sizes, key=lambda log: sizes[log])
            if not largest.closed:
                largest.rotate()
