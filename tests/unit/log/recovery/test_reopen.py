"""A log on a failing disk: its errors, the messages that survive, and its recovery."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from penstock.formats.bodies import ObjectRef
from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.recovery.reopen import LogMode
from penstock.log.settings import LogSettings
from penstock.model.errors import DurabilityUnmet, LogReadOnly, ReadFailed
from penstock.model.names import TopicName
from penstock.model.run import Run
from penstock.model.units import Offset, OffsetRange, PartitionId
from tests.log_reader import LogReader
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty, Full, no_failure, on
from tests.unit.log.messages import P0, eventually, payloads_from

SETTINGS = LogSettings(idle_seconds=600, retry_seconds=0.01, resume_free_bytes=1000)
LIMITS = SharedLimits(cache_bytes_max=0, reserve_bytes=4096)
OTHER = TopicName("default", "default", "other")


def run(*payloads: bytes) -> Run:
    return Run(b"s", list(payloads))


async def opened(logs: OpenLogs, disk: Faulty) -> Log:
    return await logs.log(disk, settings=SETTINGS, limits=LIMITS)


def mode(log: Log) -> LogMode:
    return log.mode


async def outcome(future: asyncio.Future[OffsetRange]) -> OffsetRange | str:
    """The offsets, or why there are none."""
    try:
        return await future
    except DurabilityUnmet as error:
        return error.reason


async def open_again(log: Log) -> None:
    await eventually(lambda: log.mode is LogMode.OPEN)


EIO = "Input/output error (EIO)"
ENOSPC = "No space left on device (ENOSPC)"


# -- one failure


@pytest.mark.feature("T30")
@pytest.mark.parametrize("operation", ["sync", "write", "writev"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
async def test_pending_appends_fail_and_the_log_continues_in_a_new_file(
    logs: OpenLogs, operation: str, code: int
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    assert await log.append(run(b"0", b"1")) == (0, 2)
    disk.fail = on(operation, code)
    first = log.append(run(b"lost-2"))
    await asyncio.sleep(0)
    second = log.append(run(b"lost-3"))
    answers = [await outcome(future) for future in (first, second)]
    reason = log.status().reason
    assert answers == [f"{_text(code)}"] * 2
    assert mode(log) is LogMode.READ_ONLY
    assert reason == answers[0]
    with pytest.raises(LogReadOnly) as caught:
        log.append(run(b"refused"))
    assert caught.value.reason == reason
    assert await payloads_from(log) == {0: b"0", 1: b"1"}
    await open_again(log)
    assert log.status().reason == ""
    assert await log.append(run(b"2")) == (2, 3)
    names = [path.name[:14] for path in logs.wal_files()]
    assert names == ["wal-0000000000", "wal-0000000001"]
    stored = {0: b"0", 1: b"1", 2: b"2"}
    assert await payloads_from(log) == stored
    assert disk.synced_again == []
    crashed = await logs.crash().log(limits=LIMITS)
    assert await payloads_from(crashed) == stored
    restarted = await opened(logs, Faulty())
    assert await payloads_from(restarted) == stored
    assert restarted.status().missing == ()
    assert await restarted.append(run(b"3")) == (3, 4)


def _text(code: int) -> str:
    return f"{os.strerror(code)} ({errno.errorcode[code]})"


@pytest.mark.feature("T30")
async def test_other_logs_go_on_meanwhile(logs: OpenLogs) -> None:
    disk = Faulty()
    all_logs = await logs(disk, settings=SETTINGS, limits=LIMITS)
    log = await all_logs.create(TopicName("default", "default", "t"))
    other = await all_logs.create(OTHER)
    disk._names[_fd_of(log)] = "broken"
    disk.fail = lambda operation, name: (
        OSError(errno.EIO, "Input/output error")
        if (operation, name) == ("sync", "broken") or operation == "create"
        else None
    )
    assert await outcome(log.append(run(b"lost"))) == EIO
    assert await other.append(run(b"fine")) == (0, 1)
    assert (log.mode, other.mode) == (LogMode.READ_ONLY, LogMode.OPEN)
    ready, facts = all_logs.ready()
    assert (ready, facts["troubled"]) == (False, {"default/default/t": EIO})
    disk.fail = no_failure
    await open_again(log)
    assert await log.append(run(b"0")) == (0, 1)
    assert all_logs.ready()[0]


def _fd_of(log: Log) -> int:
    active = log.files.active
    assert active is not None
    assert active.fd is not None
    return active.fd


@pytest.mark.feature("T30")
async def test_short_writes_are_completed(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    disk.fail = on("writev", errno.EINTR, times=5)
    assert await log.append(run(b"x" * 100, b"y" * 100)) == (0, 2)
    disk.fail = no_failure
    stored = {0: b"x" * 100, 1: b"y" * 100}
    assert await payloads_from(log) == stored
    assert await payloads_from(await logs.crash().log(limits=LIMITS)) == stored


@pytest.mark.feature("T30")
async def test_a_failed_group_does_not_reappear_even_if_all_of_it_reached_the_file(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = on("sync", errno.EIO)
    assert await outcome(log.append(run(b"never acknowledged"))) == EIO
    assert b"never acknowledged" in logs.wal_files()[0].read_bytes()
    await open_again(log)
    assert await log.append(run(b"1")) == (1, 2)
    log = await opened(logs, Faulty())
    assert await payloads_from(log) == {0: b"0", 1: b"1"}
    assert await log.append(run(b"2")) == (2, 3)


@pytest.mark.feature("T30")
async def test_consecutive_failures_lose_nothing(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    stored: dict[int, bytes] = {}
    for n in range(6):
        payload = b"stored-%d" % n
        stored[(await log.append(run(payload))).first] = payload
        disk.fail = on("sync" if n % 2 else "writev", errno.EIO, times=1 + n % 3)
        assert await outcome(log.append(run(b"lost-%d" % n))) == EIO
        await open_again(log)
        disk.fail = no_failure
    assert sorted(stored) == list(range(6))
    for seen in (log, await logs.crash().log(limits=LIMITS)):
        assert await payloads_from(seen) == stored
    assert disk.synced_again == []


@pytest.mark.feature("T30")
async def test_frame_numbers_go_on_without_a_hole_or_a_repeat_over_failures(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    for operation, name in (("sync", ".log"), ("create", ""), ("sync_directory", "")):
        await log.append(run(b"x"))
        disk.fail = on(operation, errno.EIO, name=name)
        log.rotate()
        await outcome(log.append(run(b"lost")))
        await open_again(log)
        disk.fail = no_failure
    await log.append(run(b"y"))
    expected = 0
    for file in log.files.all():
        assert file.header.first_frame == expected
        data = file.path.read_bytes()[: file.end]
        expected += _frames_in(data, expected)


def _frames_in(data: bytes, first: int) -> int:
    """How many frames these bytes hold; their numbers must ascend from `first`."""
    position, number = 64, first
    while position < len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        assert int.from_bytes(data[position + 16 : position + 24], "little") == number
        position += (64 + size + 4 + 7) // 8 * 8
        number += 1
    return number - first


@pytest.mark.feature("T30")
async def test_creating_a_file_is_retried_with_growing_delays(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    disk.fail = lambda operation, name: (
        OSError(errno.EIO, "Input/output error") if operation in ("sync", "create") else None
    )
    before = disk.count("create")
    await outcome(log.append(run(b"lost")))
    await asyncio.sleep(0.35)
    tries = disk.count("create") - before
    assert 1 <= tries <= 7
    assert mode(log) is LogMode.READ_ONLY
    disk.fail = no_failure
    await open_again(log)
    assert await log.append(run(b"0")) == (0, 1)


# -- in the middle of a rotation


@pytest.mark.feature("T30")
@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("write", "wal-0000000000"),
        ("sync", "wal-0000000000"),
        ("create", "wal-0000000001"),
        ("write", "wal-0000000001-0000000000000003.log.tmp"),
        ("sync", "wal-0000000001-0000000000000003.log.tmp"),
        ("sync_directory", ""),
        ("writev", "wal-0000000001-0000000000000003.log"),
    ],
    ids=[
        "the seal is not written",
        "the seal is not synced",
        "the file is not created",
        "the new file is not written",
        "the new file is not synced",
        "the new name is not synced",
        "the group is not written",
    ],
)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_failure_at_any_step_of_a_rotation_loses_nothing(
    logs: OpenLogs, operation: str, name: str, code: int
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = on(operation, code, name=name)
    log.rotate()
    assert await outcome(log.append(run(b"lost"))) == _text(code)
    assert await payloads_from(log) == {0: b"0"}
    await open_again(log)
    assert await log.append(run(b"1")) == (1, 2)
    log.rotate()
    assert await log.append(run(b"2")) == (2, 3)
    stored = {0: b"0", 1: b"1", 2: b"2"}
    assert await payloads_from(log) == stored
    assert disk.synced_again == []
    for seen in (
        await logs.crash().log(limits=LIMITS),
        await opened(logs, Faulty()),
    ):
        assert await payloads_from(seen) == stored
        assert seen.status().missing == ()
        assert await seen.append(run(b"3")) == (3, 4)


@pytest.mark.feature("T30")
async def test_an_idle_rotation_that_fails_is_retried_without_an_append(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = on("create", errno.EIO)
    log.rotate()
    await eventually(lambda: log.mode is LogMode.READ_ONLY)
    await open_again(log)
    assert await log.append(run(b"1")) == (1, 2)
    assert await payloads_from(await logs.crash().log(limits=LIMITS)) == {0: b"0", 1: b"1"}


@pytest.mark.feature("T30")
async def test_a_log_killed_before_its_new_file_exists_keeps_acknowledged_messages(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = lambda operation, name: (
        OSError(errno.EIO, "Input/output error") if operation in ("sync", "create") else None
    )
    await outcome(log.append(run(b"in doubt")))
    seen = await logs.crash().log(limits=LIMITS)
    found = await payloads_from(seen)
    assert found in ({0: b"0"}, {0: b"0", 1: b"in doubt"})
    assert await seen.append(run(b"next")) == (len(found), len(found) + 1)


# -- a full disk


@pytest.mark.feature("T30", "T35")
async def test_deletes_and_purges_succeed_on_a_full_disk_by_the_reserve(logs: OpenLogs) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    await log.append(run(*(b"%d" % n for n in range(10))))
    disk.fill()
    assert await outcome(log.append(run(b"lost"))) == ENOSPC
    await asyncio.sleep(0.05)
    assert mode(log) is LogMode.READ_ONLY
    await asyncio.wait_for(log.delete(P0, [7]), 5)
    assert mode(log) is LogMode.DELETES_ONLY
    assert not (logs.directory / "reserve").exists()
    await asyncio.wait_for(log.purge(P0, Offset(5)), 5)
    assert await payloads_from(log) == {n: b"%d" % n for n in (5, 6, 8, 9)}
    with pytest.raises(LogReadOnly, match="No space left"):
        log.append(run(b"refused"))
    crashed = await logs.crash().log(limits=LIMITS)
    assert await payloads_from(crashed) == {n: b"%d" % n for n in (5, 6, 8, 9)}


@pytest.mark.feature("T30", "T35")
async def test_a_purge_on_a_full_disk_does_not_reach_offsets_that_were_thrown_away(
    logs: OpenLogs,
) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    await log.append(run(b"0", b"1"))
    disk.fill()
    assert await outcome(log.append(run(b"lost", b"lost", b"lost"))) == ENOSPC
    purging = asyncio.create_task(log.purge(P0, Offset(1000)))
    await asyncio.wait_for(purging, 5)
    assert log.start_offset(P0) == 2
    disk.clear()
    await open_again(log)
    assert await log.append(run(b"2")) == (2, 3)
    assert await payloads_from(log) == {2: b"2"}


@pytest.mark.feature("T30")
async def test_appends_resume_once_space_is_free_and_the_reserve_is_restored(
    logs: OpenLogs,
) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fill()
    assert await outcome(log.append(run(b"lost"))) == ENOSPC
    await log.delete(P0, [0])
    disk.full, disk.free = False, SETTINGS.resume_free_bytes - 1
    await asyncio.sleep(0.1)
    assert mode(log) is LogMode.DELETES_ONLY
    disk.clear()
    await open_again(log)
    assert await log.append(run(b"1")) == (1, 2)
    await eventually((logs.directory / "reserve").exists)
    assert await payloads_from(await logs.crash().log(limits=LIMITS)) == {1: b"1"}


@pytest.mark.feature("T30")
async def test_appends_resume_after_a_full_disk_without_any_deletion(logs: OpenLogs) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fill()
    assert await outcome(log.append(run(b"lost"))) == ENOSPC
    creates = disk.count("create")
    await asyncio.sleep(0.1)
    assert disk.count("create") == creates
    disk.clear()
    await open_again(log)
    assert await log.append(run(b"1")) == (1, 2)
    assert await payloads_from(log) == {0: b"0", 1: b"1"}


@pytest.mark.feature("T30")
async def test_a_deletion_fails_at_once_if_the_reserve_is_too_small(
    logs: OpenLogs,
) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    await log.append(run(b"0", b"1"))
    disk.fill()
    disk.fail = lambda operation, name: (
        OSError(errno.ENOSPC, "No space left on device")
        if operation in ("write", "create", "allocate")
        else None
    )
    assert await outcome(log.append(run(b"lost"))) == ENOSPC
    before = disk.count("create")
    for attempts in (1, 2):
        with pytest.raises(LogReadOnly, match="No space left"):
            await asyncio.wait_for(log.delete(P0, [0]), 5)
        assert disk.count("create") - before == attempts
    disk.fail = no_failure
    disk.clear()
    await asyncio.wait_for(log.delete(P0, [0]), 5)
    assert await payloads_from(log) == {1: b"1"}


@pytest.mark.feature("T30")
async def test_the_free_space_is_read_again_after_an_error(logs: OpenLogs) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    disk.fill()
    assert await outcome(log.append(run(b"lost"))) == ENOSPC
    disk.fail = on("free_bytes", errno.EIO, times=3)
    disk.clear()
    await open_again(log)
    assert await log.append(run(b"0")) == (0, 1)


@pytest.mark.feature("T30")
async def test_a_reserve_that_cannot_be_removed_does_not_end_the_attempts(logs: OpenLogs) -> None:
    disk = Full(logs.directory)
    log = await opened(logs, disk)
    await log.append(run(b"0", b"1"))
    disk.fill()
    assert await outcome(log.append(run(b"lost"))) == ENOSPC
    failing, full = on("remove", errno.EIO, times=1), disk._when_full
    disk.fail = lambda operation, name: failing(operation, name) or full(operation, name)
    with pytest.raises(LogReadOnly, match="Input/output error"):
        await asyncio.wait_for(log.delete(P0, [0]), 5)
    await eventually(lambda: "No space left" in log.status().reason)
    await asyncio.wait_for(log.delete(P0, [0]), 5)
    assert await payloads_from(log) == {1: b"1"}


# -- what else was in hand


@pytest.mark.feature("T30")
async def test_deletions_links_and_settlements_in_hand_fail_too_and_may_be_tried_again(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0", b"1"))
    refs = {PartitionId(1): [ObjectRef("key", 3, 1, 1)]}
    assert await log.link("app", 1, refs) == {1: (0, 3)}
    disk.fail = on("sync", errno.EIO)
    link, settle = log.link("app", 2, refs), log.settle(b"x", 1)
    deleting = asyncio.create_task(log.delete(P0, [0]))
    results = await asyncio.gather(link, settle, deleting, return_exceptions=True)
    assert [type(result) for result in results] == [DurabilityUnmet] * 3
    await open_again(log)
    assert await log.link("app", 1, refs) == {1: (0, 3)}
    assert await log.link("app", 2, refs) == {1: (3, 6)}
    await log.settle(b"x", 1)
    await log.delete(P0, [0])
    assert await payloads_from(log) == {1: b"1"}
    seen = await logs.crash().log(limits=LIMITS)
    assert await seen.link("app", 2, refs) == {1: (3, 6)}
    assert await payloads_from(seen) == {1: b"1"}


@pytest.mark.feature("T30")
async def test_a_log_can_be_closed_while_its_disk_fails(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = lambda operation, name: (
        OSError(errno.EIO, "Input/output error") if operation in ("sync", "create") else None
    )
    await outcome(log.append(run(b"lost")))
    await asyncio.wait_for(logs.close(), 5)
    assert 0 in await payloads_from(await opened(logs, Faulty()))


@pytest.mark.feature("T30")
async def test_a_disk_that_fails_at_the_last_checkpoint_does_not_keep_the_log_from_closing(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = lambda operation, name: (
        OSError(errno.EIO, "Input/output error") if operation in ("sync", "create") else None
    )
    await asyncio.wait_for(logs.close(), 5)
    assert await payloads_from(await opened(logs, Faulty())) == {0: b"0"}


@pytest.mark.feature("T30")
async def test_an_error_of_closing_a_file_costs_no_thread(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    for n in range(6):
        await log.append(run(b"%d" % n))
        disk.fail = on("close", errno.EIO, name=".log")
        log.rotate()
        await asyncio.sleep(0.01)
    disk.fail = no_failure
    assert await asyncio.wait_for(payloads_from(log), 5) == {n: b"%d" % n for n in range(6)}


@pytest.mark.feature("T30")
async def test_a_read_error_is_reported_to_the_reader_and_is_not_lasting(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = on("read", errno.EIO)
    with pytest.raises(ReadFailed, match=r"offset 0 cannot be read: .*Input/output error"):
        await log.read(P0, Offset(0))
    disk.fail = on("open_read", errno.EMFILE, name=".log")
    with pytest.raises(ReadFailed, match="Too many open files"):
        await anext(LogReader(log, P0, Offset(0)))
    assert await payloads_from(log) == {0: b"0"}
    assert log.status().missing == ()


@pytest.mark.feature("T30")
async def test_an_error_of_closing_the_active_file_does_not_prevent_the_close(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    await log.append(run(b"0"))
    disk.fail = on("close", errno.EIO, times=9)
    await asyncio.wait_for(logs.close(), 5)
    assert log.closed
    assert await payloads_from(await opened(logs, Faulty())) == {0: b"0"}


@pytest.mark.feature("T30", "T35")
async def test_a_file_that_cannot_be_removed_does_not_undo_a_purge(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    for n in range(3):
        await log.append(run(b"%d" % n))
        log.rotate()
        await log.writer.flush()
    disk.fail = on("remove", errno.EIO, times=9)
    await log.purge(P0, Offset(2))
    assert await payloads_from(log) == {2: b"2"}
    seen = await opened(logs, Faulty())
    assert await payloads_from(seen) == {2: b"2"}
    await seen.append(run(b"3"))
    await seen.purge(P0, Offset(3))
    assert await payloads_from(seen) == {3: b"3"}
    assert len(logs.wal_files()) == 1


@pytest.mark.feature("T30", "T35")
async def test_files_that_cannot_be_looked_at_do_not_fail_a_purge_that_is_durable(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await opened(logs, disk)
    for n in range(3):
        await log.append(run(b"%d" % n))
        log.rotate()
        await log.writer.flush()
    disk.fail = on("open_read", errno.EIO, times=99)
    await log.purge(P0, Offset(2))
    assert (log.start_offset(P0), len(logs.wal_files())) == (2, 4)
    disk.fail = no_failure
    await log.append(run(b"3"))
    await log.purge(P0, Offset(3))
    assert await payloads_from(log) == {3: b"3"}
    assert len(logs.wal_files()) == 1
