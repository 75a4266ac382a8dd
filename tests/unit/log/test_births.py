"""New logs, made alone and together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.host.disk import Buffer
from penstock.log.commit import FILES_FOR_FILESYSTEM_SYNC
from penstock.log.log import Log
from penstock.log.logs import Logs
from penstock.model.errors import LogError
from penstock.model.names import TopicName
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty, Unsynced, on

MANY = 4 * FILES_FOR_FILESYSTEM_SYNC


class Counting(Unsynced):
    """Counts what makes new logs durable."""

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


async def make(logs: Logs, count: int) -> list[Log | BaseException]:
    making = (logs.create(name(number)) for number in range(count))
    return list(await asyncio.gather(*making, return_exceptions=True))


async def test_logs_that_are_asked_for_at_once_share_their_syncs_and_last(logs: OpenLogs) -> None:
    disk = Counting()
    opened = await logs(disk)
    for log in await make(opened, MANY):
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


async def test_a_log_alone_is_made_at_once(logs: OpenLogs) -> None:
    disk = Counting()
    opened = await logs(disk)
    await opened.create(name(1))
    assert (disk.alone, disk.groups, disk.syncs) == (1, [], 0)


async def test_one_that_cannot_be_made_does_not_keep_the_others(logs: OpenLogs) -> None:
    opened = await logs()
    taken = logs.directory / "default/default/t3"
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"no directory")
    made = await make(opened, MANY)
    refused = made.pop(3)
    assert isinstance(refused, LogError)
    assert "its first file cannot be made" in str(refused)
    assert all(isinstance(log, Log) for log in made)


async def test_when_nothing_can_be_synced_no_log_is_made(logs: OpenLogs) -> None:
    disk = Faulty()
    opened = await logs(disk)
    disk.fail = on("sync", errno.EIO, times=1 << 20)
    assert all(isinstance(log, LogError) for log in await make(opened, MANY))
    assert list(logs.directory.rglob("wal-*")) == []
    disk.fail = on("", 0)
    assert all(isinstance(log, Log) for log in await make(opened, MANY))


async def test_logs_asked_for_when_all_are_closed_are_refused(logs: OpenLogs) -> None:
    opened = await logs()
    await opened.close()
    with pytest.raises(RuntimeError, match="closed"):
        await opened.create(name(1))
