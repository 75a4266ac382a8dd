"""Directories of logs on disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.host.disk import Buffer, Disk
from penstock.log import directories
from penstock.log.log import Log
from penstock.log.logs import Logs
from penstock.log.shared.committer import FILES_FOR_FILESYSTEM_SYNC
from penstock.model.errors import LogError
from penstock.model.names import TopicName
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty, Unsynced, on


def make(root: Path, name: str, *files: str) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    for file in files:
        (directory / file).write_bytes(b"")
    return directory


WAL = "wal-0000000000-0000000000000000.log"


def test_a_log_is_a_directory_with_wal_files(tmp_path: Path) -> None:
    make(tmp_path, "t/n/a", WAL)
    make(tmp_path, "t/n/empty")
    make(tmp_path, "t/n/other", "notes.txt")
    make(tmp_path, "t/n/b.overtaken-1", WAL)
    (tmp_path / "t/n/file").write_bytes(b"")
    assert directories.find_logs(tmp_path) == {"t/n/a"}


def test_set_aside_directories_are_found_by_topic(tmp_path: Path) -> None:
    first = make(tmp_path, "t/n/a.overtaken-1", WAL)
    second = make(tmp_path, "t/n/a.overtaken-2", WAL)
    make(tmp_path, "t/n/a", WAL)
    found = directories.find_set_aside(tmp_path, ".overtaken-")
    assert found == {"t/n/a": [first, second]}


def test_unfinished_files_are_removed_and_others_stay(tmp_path: Path) -> None:
    directory = make(tmp_path, "a", WAL, WAL + ".tmp", "notes.tmp")
    directories.remove_unfinished(Disk(), directory)
    assert sorted(path.name for path in directory.iterdir()) == ["notes.tmp", WAL]


def test_a_log_is_removed_with_all_that_was_set_aside_of_it(tmp_path: Path) -> None:
    log = make(tmp_path, "a", WAL)
    make(tmp_path, "a.overtaken-1", WAL)
    make(tmp_path, "a.removed", WAL)
    other = make(tmp_path, "ab", WAL)
    directories.remove(Disk(), log)
    directories.remove(Disk(), log)
    assert list(tmp_path.iterdir()) == [other]


MANY = 4 * FILES_FOR_FILESYSTEM_SYNC


class Counting(Unsynced):
    """Counts the syncs that make new logs durable."""

    def __init__(self) -> None:
        self.alone = 0
        self.groups: list[int] = []
        self.syncs = 0

    def create(self, path: Path, pieces: Sequence[Buffer]) -> int:
        self.alone += 1
        return super().create(path, pieces)

    def create_all(self, files: Sequence[tuple[Path, Sequence[Buffer]]]) -> list[int]:
        self.groups.append(len(files))
        return super().create_all(files)

    def sync_filesystem(self, fd: int) -> None:
        self.syncs += 1


def name(number: int) -> TopicName:
    return TopicName("default", "default", f"t{number}")


async def create_logs(logs: Logs, count: int) -> list[Log | BaseException]:
    making = (logs.create(name(number)) for number in range(count))
    return list(await asyncio.gather(*making, return_exceptions=True))


async def test_logs_that_are_created_at_once_share_their_syncs_and_are_durable(
    logs: OpenLogs,
) -> None:
    disk = Counting()
    opened = await logs(disk)
    for log in await create_logs(opened, MANY):
        assert isinstance(log, Log)
        await log.append(Run(b"s", [b"x"]))
    assert sum(disk.groups) + disk.alone == MANY
    assert len(disk.groups) < 3
    assert disk.alone < FILES_FOR_FILESYSTEM_SYNC
    again = await logs()
    for number in range(MANY):
        found = again.get(name(number))
        assert found is not None
        assert found.next_offset(PartitionId(0)) == Offset(1)


async def test_a_single_log_is_created_at_once(logs: OpenLogs) -> None:
    disk = Counting()
    opened = await logs(disk)
    await opened.create(name(1))
    assert (disk.alone, disk.groups, disk.syncs) == (1, [], 0)


async def test_a_log_that_cannot_be_created_does_not_affect_the_others(logs: OpenLogs) -> None:
    opened = await logs()
    occupied = logs.directory / "default/default/t3"
    occupied.parent.mkdir(parents=True)
    occupied.write_bytes(b"no directory")
    created = await create_logs(opened, MANY)
    refused = created.pop(3)
    assert isinstance(refused, LogError)
    assert "its first file cannot be made" in str(refused)
    assert all(isinstance(log, Log) for log in created)


async def test_no_log_is_created_when_the_disk_cannot_sync(logs: OpenLogs) -> None:
    disk = Faulty()
    opened = await logs(disk)
    disk.fail = on("sync", errno.EIO, times=1 << 20)
    assert all(isinstance(log, LogError) for log in await create_logs(opened, MANY))
    assert list(logs.directory.rglob("wal-*")) == []
    disk.fail = on("", 0)
    assert all(isinstance(log, Log) for log in await create_logs(opened, MANY))


async def test_logs_are_not_created_after_the_close(logs: OpenLogs) -> None:
    opened = await logs()
    await opened.close()
    with pytest.raises(RuntimeError, match="closed"):
        await opened.create(name(1))
