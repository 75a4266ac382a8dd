"""The number of active files that are open at a time."""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.formats.frames import FILE_HEADER_BYTES
from penstock.host.disk import Buffer
from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.recovery.reopen import LogMode
from penstock.model.errors import DurabilityUnmet
from penstock.model.names import TopicName
from penstock.model.run import Run
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Unsynced
from tests.unit.log.messages import eventually, payloads_from

LOGS = 24
LIMIT = 5
LIMITS = SharedLimits(cache_bytes_max=0, reserve_bytes=4096, open_files_max=LIMIT)


class Descriptors(Unsynced):
    """Knows which files are open for writing, and which could not be opened again."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.reopened: list[Path] = []
        self.opened_to_read = 0
        self.refused = False

    def open_read(self, path: Path) -> int:
        self.opened_to_read += path.suffix == ".log"
        return super().open_read(path)

    def open_append(self, path: Path) -> int:
        if self.refused:
            raise OSError(errno.EMFILE, "too many open files")
        self.reopened.append(path)
        fd = super().open_append(path)
        self.open.add(fd)
        return fd

    def create(self, path: Path, pieces: Sequence[Buffer]) -> int:
        fd = super().create(path, pieces)
        self.open.add(fd)
        return fd

    def create_all(self, files: Sequence[tuple[Path, Sequence[Buffer]]]) -> list[int]:
        fds = super().create_all(files)
        self.open.update(fds)
        return fds

    def close(self, fd: int) -> None:
        self.open.discard(fd)
        super().close(fd)


def name(number: int) -> TopicName:
    return TopicName("default", "default", f"t{number}")


async def create_logs(logs: OpenLogs, disk: Descriptors) -> list[Log]:
    opened = await logs(disk, limits=LIMITS)
    return [await opened.create(name(number)) for number in range(LOGS)]


async def push(log: Log, *payloads: bytes) -> None:
    await log.append(Run(b"s", list(payloads)))


async def test_no_more_files_than_the_limit_stay_open(logs: OpenLogs) -> None:
    disk = Descriptors()
    every = await create_logs(logs, disk)
    assert len(disk.open) == LIMIT
    await asyncio.gather(*(push(log, b"a") for log in every))
    assert len(disk.open) == LIMIT
    for log in every:
        await push(log, b"b")
        assert len(disk.open) == LIMIT
    for log in every:
        assert await payloads_from(log) == {0: b"a", 1: b"b"}


async def test_a_closed_file_is_written_on_without_being_read(logs: OpenLogs) -> None:
    disk = Descriptors()
    every = await create_logs(logs, disk)
    path = every[0].files.all()[0].path
    before = path.read_bytes()
    disk.reopened.clear()
    disk.opened_to_read = 0
    await push(every[0], b"a")
    assert (disk.reopened, disk.opened_to_read) == ([path], 0)
    assert path.read_bytes().startswith(before)
    await push(every[0], b"b")
    assert disk.reopened == [path]


async def test_logs_over_the_limit_open_again_with_everything(logs: OpenLogs) -> None:
    every = await create_logs(logs, Descriptors())
    await asyncio.gather(*(push(log, b"a", b"b") for log in every))
    disk = Descriptors()
    crashed = logs.crash()
    again = await crashed(disk, limits=LIMITS)
    assert len(disk.open) == LIMIT
    for number in range(LOGS):
        log = again.get(name(number))
        assert log is not None
        assert await payloads_from(log) == {0: b"a", 1: b"b"}
    await crashed.close()
    assert not disk.open


async def test_a_log_over_the_limit_rotates(logs: OpenLogs) -> None:
    disk = Descriptors()
    every = await create_logs(logs, disk)
    await asyncio.gather(*(push(log, b"a") for log in every))
    for log in every:
        log.rotate()
    await eventually(lambda: all(len(log.files.all()) == 2 for log in every))
    await eventually(lambda: len(disk.open) == LIMIT)
    for log in every:
        await push(log, b"b")
        assert await payloads_from(log) == {0: b"a", 1: b"b"}


async def test_a_log_whose_file_cannot_be_reopened_is_read_only_until_it_has_a_new_one(
    logs: OpenLogs,
) -> None:
    disk = Descriptors()
    every = await create_logs(logs, disk)
    disk.refused = True
    with pytest.raises(DurabilityUnmet):
        await push(every[0], b"a")
    await eventually(lambda: every[0].mode is LogMode.OPEN)
    assert len(every[0].files.all()) == 2
    await push(every[0], b"b")
    assert await payloads_from(every[0]) == {0: b"b"}


async def test_a_file_that_changed_while_it_was_closed_is_not_written(logs: OpenLogs) -> None:
    disk = Descriptors()
    every = await create_logs(logs, disk)
    path = every[0].files.all()[0].path
    with path.open("ab") as file:
        file.write(b"x" * FILE_HEADER_BYTES)
    size = path.stat().st_size
    with pytest.raises(DurabilityUnmet):
        await push(every[0], b"a")
    assert path.stat().st_size == size
    await eventually(lambda: every[0].mode is LogMode.OPEN)
    await push(every[0], b"b")
    assert await payloads_from(every[0]) == {0: b"b"}
