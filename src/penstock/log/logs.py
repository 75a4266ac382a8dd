"""All logs of a broker: opened together, looked after together, closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from penstock.formats.paths import TEMPORARY_SUFFIX, topic_directory
from penstock.formats.scan import Verdict
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.entropy import random_u32, unique_name
from penstock.host.threads import Workers
from penstock.log import commit, files
from penstock.log.births import Births, Newborn
from penstock.log.cache import TailCache
from penstock.log.commit import Committer
from penstock.log.counters import LogCounters
from penstock.log.engine import Engine
from penstock.log.files import find_wal_files
from penstock.log.log import Log
from penstock.log.recover import Recovered, cut_last, recover
from penstock.log.reopen import Mode
from penstock.log.reserve import Reserve
from penstock.log.settings import LogSettings
from penstock.log.state import LogState
from penstock.model import names
from penstock.model.durability import Durability
from penstock.model.errors import FormatError, LogClosed, LogError, PenstockError
from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds

READER_THREADS: Final = 4
TICK_SECONDS: Final = 1.0
SEAL_AT_START_BYTES: Final = 8 << 20
"""A last file of this size is finished at the start instead of being indexed in memory."""
REMOVED_SUFFIX: Final = ".removed"
_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What all logs together may use."""

    cache_bytes_max: int = 256 << 20
    cache_seconds_max: float = 600
    index_bytes_max: int = 128 << 20
    reserve_bytes: int = 4 << 20


class Logs:
    """The logs below one directory.

    A log that cannot be recovered does not keep the others from serving: `unavailable` tells why.
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
        self._committers = Workers(commit.THREADS, "commit")
        self._engine = Engine(
            settings=settings,
            disk=disk,
            clock=clock,
            readers=Workers(READER_THREADS, "read"),
            committer=Committer(disk, self._committers, counters),
            cache=TailCache(
                limits.cache_bytes_max, Nanoseconds(int(limits.cache_seconds_max * 1e9))
            ),
            reserve=Reserve(disk, directory, limits.reserve_bytes),
            child=Child(),
            counters=counters,
        )
        self._births = Births(disk, self._engine.readers)
        self._logs: dict[TopicName, Log] = {}
        self._making: set[TopicName] = set()
        self._ticker: asyncio.Task[None] | None = None
        self.unavailable: dict[str, str] = {}

    @property
    def cache(self) -> TailCache:
        return self._engine.cache

    @property
    def counters(self) -> LogCounters:
        return self._engine.counters

    async def open(self) -> None:
        """Recover every log on disk, then keep them in order until `close`."""
        await self._engine.readers.run(self._engine.disk.make_directories, self._directory)
        await self._engine.readers.run(self._engine.reserve.restore)
        found = await self._engine.readers.run(_log_directories, self._directory)
        await asyncio.gather(*(self._open_found(directory) for directory in found))
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def get(self, topic: TopicName) -> Log | None:
        return self._logs.get(topic)

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    async def create(self, topic: TopicName, durability: Durability = Durability.FSYNC) -> Log:
        """A new, empty log; raises LogError when there is one of this name."""
        state = LogState(str(topic))
        state.durability = durability
        return await self.adopt(topic, state, 0)

    async def adopt(
        self, topic: TopicName, state: LogState, first_frame: int, first_sequence: int = 0
    ) -> Log:
        """A log that goes on from `state`, which came from elsewhere, with an empty WAL.

        Its files are counted from `first_sequence`; the numbers before are for the subject index of
        what came before. Raises LogError when there is a log of this name.
        """
        if topic in self._logs or topic in self._making:
            raise LogError(str(topic), "the log exists already")
        if (trouble := self.unavailable.get(topic_directory(topic))) is not None:
            raise LogError(str(topic), f"the log exists and is not available: {trouble}")
        self._making.add(topic)
        try:
            self._logs[topic] = await self._make(topic, state, first_frame, first_sequence)
        finally:
            self._making.discard(topic)
        return self._logs[topic]

    async def set_aside(self, topic: TopicName, suffix: str) -> None:
        """Close a log whose files no longer count and move them out of the way, for people."""
        log = self._logs.pop(topic)
        await log.close()
        await self._engine.readers.run(
            self._engine.disk.move, log.directory, log.directory.with_name(suffix)
        )

    async def remove(self, topic: TopicName) -> None:
        """Close a log and remove its files, also those that were set aside; may be repeated."""
        log = self._logs.pop(topic, None)
        if log is not None:
            await log.close()
            log.writer.give_up_uploads(LogClosed(log.topic))
        name = topic_directory(topic)
        await self._engine.readers.run(_remove, self._engine.disk, self._directory / name)
        self.unavailable.pop(name, None)

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Whether every log can be written, and what is wrong with those that cannot."""
        troubled = {
            log.topic: log.status().reason
            for log in self._logs.values()
            if log.mode is not Mode.OPEN
        }
        troubled |= self.unavailable
        return not troubled, {"logs": len(self._logs), "troubled": troubled}

    async def close(self) -> None:
        """Make everything durable, then let go of files, threads and the child process."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
        await asyncio.gather(*(log.close() for log in self._logs.values()))
        await self._engine.child.close()
        await self._engine.readers.close()
        await self._committers.close()

    async def _open_found(self, directory: Path) -> None:
        try:
            log = await self._open(directory)
        except (PenstockError, OSError) as error:
            name = str(directory.relative_to(self._directory))
            self.unavailable[name] = str(error)
            _logger.error("log_unavailable", directory=name, reason=str(error))
            return
        self._logs[names.topic(log.topic)] = log

    async def _open(self, directory: Path) -> Log:
        engine = self._engine
        recovered = await engine.readers.run(recover, engine.disk, directory, "")
        if not recovered.state.topic:
            raise FormatError("the first frame, which tells the topic, is damaged in all files")
        _report(recovered)
        await engine.readers.run(_remove_unfinished, engine.disk, directory)
        engine.counters.truncations += sum(f.kept_aside is not None for f in recovered.findings)
        if recovered.active is not None:
            await engine.readers.run(_seal_large, engine, directory, recovered)
        return await self._begin(directory, recovered)

    async def _make(
        self, topic: TopicName, state: LogState, first_frame: int, first_sequence: int
    ) -> Log:
        directory = self._directory / topic_directory(topic)
        state.lineage = unique_name()
        recovered = Recovered(state, [], None, first_frame, first_sequence - 1)
        if state.durability is Durability.MEMORY:
            return Log(self._engine, directory, str(topic), _subject(topic), recovered)
        begun = state.last_timestamp or self._engine.clock.now_us()
        header = files.new_header(None, first_sequence, random_u32(), first_frame, begun)
        try:
            recovered.active = await self._births.make(Newborn(directory, header, state.to_start()))
        except OSError as error:
            raise LogError(str(topic), f"its first file cannot be made: {error}") from error
        recovered.next_number = first_frame + 1
        return await self._begin(directory, recovered)

    async def _begin(self, directory: Path, recovered: Recovered) -> Log:
        engine, name = self._engine, recovered.state.topic
        log = Log(engine, directory, name, _subject(names.topic(name)), recovered)
        active: files.ActiveFile | OSError | None = recovered.active or recovered.failure
        if active is None:
            try:
                active = await engine.readers.run(_first_file, engine, directory, recovered)
            except OSError as error:
                if not recovered.files:
                    raise LogError(name, f"its first file cannot be made: {error}") from error
                active = error
        number = recovered.next_number
        if isinstance(active, files.ActiveFile):
            number = max(number, active.file.header.first_frame + 1)
        await log.begin(active, number)
        return log

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._engine.clock.monotonic_ns()
            self._engine.cache.evict(now)
            for log in self._logs.values():
                log.tick(now)
            self._bound_index()

    def _bound_index(self) -> None:
        """Over the limit, the log with the most subjects in memory begins a new file."""
        sizes = {log: log.index.nbytes for log in self._logs.values()}
        if sum(sizes.values()) > self._limits.index_bytes_max:
            max(sizes, key=lambda log: sizes[log]).rotate()


def _log_directories(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.glob("*/*/*")
        if "." not in path.name and path.is_dir() and find_wal_files(path)
    )


def _remove_unfinished(disk: Disk, directory: Path) -> None:
    """What was being written when an earlier process ended."""
    for path in directory.glob(f"wal-*{TEMPORARY_SUFFIX}"):
        with suppress(OSError):
            disk.remove(path)


def _remove(disk: Disk, directory: Path) -> None:
    """Under another name first: half of it would be taken for a damaged log."""
    parent, doomed = directory.parent, directory.with_name(f"{directory.name}{REMOVED_SUFFIX}")
    if directory.is_dir():
        disk.remove_directory(doomed)
        disk.move(directory, doomed)
    if parent.is_dir():
        for path in parent.glob(f"{directory.name}.*"):
            disk.remove_directory(path)
        disk.sync_directory(parent)


def _seal_large(engine: Engine, directory: Path, recovered: Recovered) -> None:
    """Finish a large last file, if there is room, so that the child indexes it and not the loop."""
    active = recovered.active
    if active is None or active.file.end < SEAL_AT_START_BYTES:
        return
    if not _roomy(engine, directory):
        return
    try:
        files.seal(engine.disk, active, recovered.next_number, epoch=0)
        active.file.table = None
        recovered.next_number += 1
    except OSError as error:
        # It ends unsealed where it was durable; a file that failed a sync is not written again.
        _logger.error("seal_failed", topic=recovered.state.topic, reason=str(error))
    with suppress(OSError):
        engine.disk.close(active.fd)
    recovered.files.append(active.file)
    recovered.active = None


def _roomy(engine: Engine, directory: Path) -> bool:
    try:
        return engine.disk.free_bytes(directory) >= engine.settings.resume_free_bytes
    except OSError:
        return False


def _first_file(engine: Engine, directory: Path, recovered: Recovered) -> files.ActiveFile:
    """The next file of a log whose last one is finished, or the first of all."""
    previous = recovered.files[-1] if recovered.files else None
    begun = recovered.state.last_timestamp or engine.clock.now_us()
    header = files.new_header(
        previous, recovered.sequence + 1, random_u32(), recovered.next_number, begun
    )
    made = files.create(engine.disk, directory, header, recovered.state.to_start(), epoch=0)
    if previous is not None and recovered.uncut:
        try:
            cut_last(engine.disk, previous)
        except OSError as error:
            # The new file names the end of the old one: nobody reads what is behind it.
            _logger.warning("wal_not_cut", file=previous.path.name, reason=str(error))
    return made


def _report(recovered: Recovered) -> None:
    topic = recovered.state.topic
    for finding in recovered.findings:
        damage = finding.damage
        level = _logger.warning if damage.verdict is Verdict.TORN else _logger.error
        level(
            "wal_damage",
            topic=topic,
            verdict=damage.verdict.value,
            file=finding.path.name,
            position=damage.position,
            end=damage.end,
            kept_aside=finding.kept_aside.name if finding.kept_aside else None,
        )


def _subject(topic: TopicName) -> bytes:
    """Rows of a typed topic carry the topic's id as their subject."""
    return topic.topic.encode()
