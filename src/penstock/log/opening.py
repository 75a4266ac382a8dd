"""Opens one log: recovers it from disk, or creates it, and gives it a file to write to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import structlog

from penstock.formats.paths import topic_directory
from penstock.formats.scan import Verdict
from penstock.host.entropy import random_u32, unique_name
from penstock.log import directories
from penstock.log.directories import LogCreation, NewLog
from penstock.log.files.wal_files import ActiveFile, create, new_header, seal
from penstock.log.log import Log
from penstock.log.recovery.recover import Recovered, cut_last, recover
from penstock.log.shared.engine import Engine
from penstock.log.state import LogState
from penstock.model import names
from penstock.model.errors import FormatError, LogError
from penstock.model.names import TopicName
from penstock.model.resources import Durability

_logger = structlog.get_logger(__name__)


class LogOpener:
    """Opens the logs below `root`; raises LogError, FormatError or OSError."""

    def __init__(self, engine: Engine, root: Path) -> None:
        self._engine, self._root = engine, root
        self._creation = LogCreation(engine.disk, engine.readers)

    async def recover(self, directory: Path) -> Log:
        """The log in a directory, which belongs to the topic that its first frame names."""
        engine = self._engine
        recovered = await engine.readers.run(recover, engine.disk, directory, "")
        topic = recovered.state.topic
        if not topic:
            raise FormatError("the first frame, which names the topic, is damaged in all files")
        if directory != self._root / topic_directory(names.topic(topic)):
            if recovered.active is not None:
                engine.disk.close(recovered.active.open(engine.disk))
            raise FormatError(f"it is a copy: the log of {topic} has another directory")
        _report_damage(recovered)
        await engine.readers.run(directories.remove_unfinished, engine.disk, directory)
        engine.counters.truncations += sum(f.kept_aside is not None for f in recovered.findings)
        if recovered.active is not None:
            await engine.readers.run(_seal_large, engine, directory, recovered)
        return await self._begin(directory, recovered)

    async def create(
        self, topic: TopicName, state: LogState, first_frame: int, first_sequence: int
    ) -> Log:
        """A new log that continues `state`; its files are numbered from `first_sequence`."""
        directory = self._root / topic_directory(topic)
        state.lineage = unique_name()
        recovered = Recovered(state, [], None, first_frame, first_sequence - 1)
        if state.durability is Durability.MEMORY:
            return Log(self._engine, directory, str(topic), _subject(topic), recovered)
        begun = state.last_timestamp or self._engine.clock.now_us()
        header = new_header(None, first_sequence, random_u32(), first_frame, begun)
        try:
            recovered.active = await self._creation.create(
                NewLog(directory, header, state.to_start())
            )
        except OSError as error:
            raise LogError(str(topic), f"its first file cannot be made: {error}") from error
        recovered.next_number = first_frame + 1
        return await self._begin(directory, recovered)

    async def _begin(self, directory: Path, recovered: Recovered) -> Log:
        engine, name = self._engine, recovered.state.topic
        log = Log(engine, directory, name, _subject(names.topic(name)), recovered)
        active: ActiveFile | OSError | None = recovered.active or recovered.failure
        if active is None:
            try:
                active = await engine.readers.run(_first_file, engine, directory, recovered)
            except OSError as error:
                if not recovered.files:
                    raise LogError(name, f"its first file cannot be made: {error}") from error
                active = error
        number = recovered.next_number
        if isinstance(active, ActiveFile):
            number = max(number, active.file.header.first_frame + 1)
        await log.begin(active, number)
        return log


def _seal_large(engine: Engine, directory: Path, recovered: Recovered) -> None:
    """Seal a large last file if the disk has room, so that the child process indexes it."""
    active = recovered.active
    if active is None or active.file.end < engine.settings.seal_at_start_bytes:
        return
    if not _has_free_space(engine, directory):
        return
    try:
        seal(engine.disk, active, recovered.next_number, epoch=0)
        active.file.table = None
        recovered.next_number += 1
    except OSError as error:
        # The file ends where it was durable: nothing is written to it after a failed sync.
        _logger.error("seal_failed", topic=recovered.state.topic, reason=str(error))
    with suppress(OSError):
        engine.disk.close(active.open(engine.disk))
    recovered.files.append(active.file)
    recovered.active = None


def _has_free_space(engine: Engine, directory: Path) -> bool:
    try:
        return engine.disk.free_bytes(directory) >= engine.settings.resume_free_bytes
    except OSError:
        return False


def _first_file(engine: Engine, directory: Path, recovered: Recovered) -> ActiveFile:
    """Create the first file of a log, or the next one if the last file is finished."""
    previous = recovered.files[-1] if recovered.files else None
    begun = recovered.state.last_timestamp or engine.clock.now_us()
    header = new_header(
        previous, recovered.sequence + 1, random_u32(), recovered.next_number, begun
    )
    active = create(engine.disk, directory, header, recovered.state.to_start(), epoch=0)
    if previous is not None and recovered.uncut:
        try:
            cut_last(engine.disk, previous)
        except OSError as error:
            # The new file names the end of the old one: bytes after it are never read.
            _logger.warning("wal_not_cut", file=previous.path.name, reason=str(error))
    return active


def _report_damage(recovered: Recovered) -> None:
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
    """The subject of rows of a typed topic: the topic's id."""
    return topic.topic.encode()
