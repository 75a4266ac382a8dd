"""A start on a read-only disk: the log serves reads and recovers by itself."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from penstock.log.log import Log
from penstock.log.logs import Logs, SharedLimits
from penstock.log.recovery.reopen import LogMode
from penstock.log.settings import LogSettings
from penstock.model.errors import IndexUnavailable, LogError, LogReadOnly
from penstock.model.run import Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId
from tests.log_reader import LogReader
from tests.unit.log.conftest import TOPIC, InThread, OpenLogs
from tests.unit.log.disks import Failure, Faulty, Full, no_failure
from tests.unit.log.messages import P0, eventually, payloads_from

SETTINGS = LogSettings(idle_seconds=600, retry_seconds=0.01, resume_free_bytes=1000)
LIMITS = SharedLimits(cache_bytes_max=0, reserve_bytes=4096)
STORED = {n: b"%d" % n for n in range(6)}
TORN = b"the beginning of a write"


def run(*payloads: bytes, partition: int = 0) -> Run:
    return Run(
        [b"s.%s" % payload for payload in payloads], list(payloads), None, PartitionId(partition)
    )


async def killed(logs: OpenLogs, torn: bytes = b"", sealed: bool = False) -> OpenLogs:
    """The directory of a closed log with the messages `STORED` in two files."""
    disk = Faulty()
    log = await logs.log(disk, settings=SETTINGS, limits=LIMITS)
    await log.append(run(b"0", b"1", b"2"))
    log.rotate()
    await log.append(run(b"3", b"4"))
    await log.append(run(b"5"))
    if sealed:
        disk.fail = failing("create", errno.EIO)
        log.rotate()
        await eventually(lambda: log.mode is LogMode.READ_ONLY)
    left = logs.crash()
    with left.wal_files()[-1].open("ab") as file:
        file.write(torn)
    assert len(left.wal_files()) == 2
    return left


async def opened(logs: OpenLogs, disk: Faulty) -> tuple[Logs, Log]:
    all_logs = await logs(disk, settings=SETTINGS, limits=LIMITS)
    log = all_logs.get(TOPIC)
    assert log is not None, all_logs.unavailable
    return all_logs, log


def mode(log: Log) -> LogMode:
    return log.mode


def failing(operation: str, code: int, name: str = "") -> Failure:
    """Every call of the operation fails, and no file can be made."""

    def fail(called: str, file: str) -> OSError | None:
        hit = called == operation and name in file
        return OSError(code, f"failed {called}") if hit or called == "create" else None

    return fail


@pytest.mark.feature("T04", "T30")
@pytest.mark.parametrize(
    ("operation", "code", "torn", "sealed"),
    [
        ("create", errno.ENOSPC, TORN, False),
        ("create", errno.EDQUOT, TORN, False),
        ("truncate", errno.EIO, TORN, False),
        ("rewrite", errno.ENOSPC, b"", False),
        ("sync", errno.EIO, b"", False),
        ("sync", errno.EIO, TORN, False),
        ("sync", errno.EIO, b"", True),
        ("open_append", errno.EROFS, TORN, False),
        ("create", errno.ENOSPC, b"", True),
    ],
)
async def test_a_log_that_is_read_only_at_the_start_serves_reads_and_recovers_by_itself(
    logs: OpenLogs, operation: str, code: int, torn: bytes, sealed: bool
) -> None:
    left = await killed(logs, torn, sealed)
    before = [path.read_bytes() for path in left.wal_files()]
    disk = Faulty()
    disk.fail = failing(operation, code)
    all_logs, log = await opened(left, disk)
    cause = errno.errorcode[code]
    await asyncio.sleep(0.05)
    assert mode(log) is LogMode.READ_ONLY
    assert cause in log.status().reason
    ready, facts = all_logs.ready()
    assert (ready, facts["troubled"]) == (False, {log.topic: log.status().reason})
    with pytest.raises(LogReadOnly, match=cause):
        log.append(run(b"refused"))
    # Nobody knows whether the last group is on the disk if it cannot be synced.
    confirmed = sealed or operation in ("create", "truncate")
    served = 6 if confirmed else 5
    assert (log.next_offset(P0), len(await payloads_from(log))) == (served, served)
    for subject, offset in ((b"s.1", 1), (b"s.4", 4), (b"s.5", 5 if confirmed else None)):
        assert await log.index.last(P0, Filter.parse(subject)) == offset
    assert [path.read_bytes() for path in left.wal_files()] == before

    disk.fail = no_failure
    await eventually(lambda: log.mode is LogMode.OPEN)
    assert all_logs.ready() == (True, {"logs": 1, "troubled": {}})
    assert await log.append(run(b"6")) == (6, 7)
    assert left.wal_files()[1].read_bytes() == before[1]
    assert disk.synced_again == []
    for place in (None, left.crash(), left):
        seen = log if place is None else (await opened(place, Faulty()))[1]
        assert await payloads_from(seen) == {**STORED, 6: b"6"}
        assert seen.status().missing == ()
        rows = await seen.index.subjects(P0, Filter.parse(b">"))
        assert [(name, count) for name, count, _ in rows] == [(b"s.%d" % n, 1) for n in range(7)]
    assert await seen.append(run(b"7")) == (7, 8)


@pytest.mark.feature("T30")
async def test_messages_that_cannot_be_synced_are_invisible_until_they_are(logs: OpenLogs) -> None:
    left = await killed(logs)
    disk = Faulty()
    disk.fail = failing("sync", errno.EIO)
    _, log = await opened(left, disk)
    reader = LogReader(log, P0, Offset(5))
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    lost = left.crash()
    path = lost.wal_files()[-1]
    path.write_bytes(path.read_bytes()[: log.files.last_finished.end])
    disk.fail = no_failure
    batch = await asyncio.wait_for(waiting, 5)
    assert (batch.first_offset, batch.next_offset) == (5, 6)
    # Had the power gone before, nobody could tell the difference.
    _, log = await opened(lost, Faulty())
    assert await log.append(run(b"another 5")) == (5, 6)


@pytest.mark.feature("T30", "T35")
async def test_deletions_go_on_the_reserve_when_the_disk_is_full_at_the_start(
    logs: OpenLogs,
) -> None:
    left = await killed(logs, TORN)
    disk = Full(left.directory)
    disk.fill()
    _, log = await opened(left, disk)
    assert mode(log) is LogMode.READ_ONLY
    await asyncio.wait_for(log.delete(P0, [4]), 5)
    assert mode(log) is LogMode.DELETES_ONLY
    await asyncio.wait_for(log.purge(P0, Offset(3)), 5)
    assert len(left.wal_files()) == 2
    with pytest.raises(LogReadOnly, match="No space left"):
        log.append(run(b"refused"))
    disk.clear()
    await eventually(lambda: log.mode is LogMode.OPEN)
    assert await log.append(run(b"6")) == (6, 7)
    for seen in (log, (await opened(left.crash(), Faulty()))[1]):
        assert await payloads_from(seen) == {3: b"3", 5: b"5", 6: b"6"}


@pytest.mark.feature("T30", "T35")
async def test_without_a_reserve_deletions_are_refused_at_once(logs: OpenLogs) -> None:
    left = await killed(logs, TORN)
    (left.directory / "reserve").unlink()
    disk = Faulty()
    disk.free, disk.fail = 0, failing("create", errno.ENOSPC)
    _, log = await opened(left, disk)
    for deletion in (log.delete(P0, [4]), log.purge(P0, Offset(3))):
        with pytest.raises(LogReadOnly, match="ENOSPC"):
            await asyncio.wait_for(deletion, 5)
    assert await payloads_from(log) == STORED


@pytest.mark.feature("T04", "T30")
@pytest.mark.parametrize("byte", [20, 90], ids=["header", "body"])
@pytest.mark.parametrize("operation", ["create", "sync"])
async def test_offsets_in_doubt_are_not_given_again_after_a_start_on_a_full_disk(
    logs: OpenLogs, operation: str, byte: int
) -> None:
    log = await logs.log(settings=SETTINGS, limits=LIMITS)
    await log.append(run(b"uno", partition=1))
    await log.append(run(b"0", b"1"))
    end = logs.wal_files()[0].stat().st_size
    await log.append(run(b"2", b"3"))
    left = logs.crash()
    (path,) = left.wal_files()
    data = bytearray(path.read_bytes())
    data[end + byte] ^= 1
    path.write_bytes(data)
    disk = Faulty()
    disk.free, disk.fail = 0, failing(operation, errno.ENOSPC)
    _, log = await opened(left, disk)
    assert log.mode is LogMode.READ_ONLY
    # Started and killed once more before there is room: the doubt remains.
    _, log = await opened(left.crash(), disk)
    disk.free, disk.fail = None, no_failure
    await eventually(lambda: log.mode is LogMode.OPEN)
    first = (await log.append(run(b"new"))).first
    assert first >= 4
    assert await payloads_from(log) == {0: b"0", 1: b"1", first: b"new"}
    assert log.live_count(P0) == 3


@pytest.mark.feature("T30", "T36")
async def test_index_queries_do_not_wait_for_a_disk_that_is_full(
    logs: OpenLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await killed(logs, TORN)

    async def full(*args: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(InThread, "call", full)
    disk = Faulty()
    disk.free, disk.fail = 0, failing("create", errno.ENOSPC)
    _, log = await opened(left, disk)
    with pytest.raises(IndexUnavailable, match="No space left"):
        await asyncio.wait_for(log.index.last(P0, Filter.parse(b"s.0")), 5)
    assert await log.index.last(P0, Filter.parse(b">")) == 5


@pytest.mark.feature("T30", "T36")
async def test_a_last_file_that_is_in_the_index_already_is_not_counted_twice(
    logs: OpenLogs,
) -> None:
    log = await logs.log(settings=SETTINGS, limits=LIMITS)
    await log.append(run(b"0", b"1"))
    log.rotate()
    await eventually(lambda: log.index.applied == 1)
    await logs.close()
    logs.wal_files()[-1].unlink()
    disk = Faulty()
    disk.free, disk.fail = 0, failing("create", errno.ENOSPC)
    _, log = await opened(logs, disk)
    assert mode(log) is LogMode.READ_ONLY
    for _ in range(2):
        rows = await log.index.subjects(P0, Filter.parse(b">"))
        assert [(name, count) for name, count, _ in rows] == [(b"s.0", 1), (b"s.1", 1)]
        disk.free, disk.fail = None, no_failure
        await eventually(lambda: log.mode is LogMode.OPEN)


async def test_a_log_that_cannot_be_created_is_refused_with_the_cause(logs: OpenLogs) -> None:
    disk = Faulty()
    all_logs = await logs(disk, settings=SETTINGS, limits=LIMITS)
    disk.fail = failing("create", errno.ENOSPC)
    with pytest.raises(LogError, match="first file cannot be made"):
        await all_logs.create(TOPIC)
    disk.fail = no_failure
    assert await (await all_logs.create(TOPIC)).append(run(b"0")) == (0, 1)
