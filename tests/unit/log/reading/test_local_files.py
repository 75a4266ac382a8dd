import asyncio
from functools import partial

import pytest

from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.reading.collect import Cursor
from penstock.log.reading.wal_reader import Unreadable
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty
from tests.unit.log.messages import P0, eventually

NO_CACHE = SharedLimits(cache_bytes_max=0, reserve_bytes=4096)


def has_files(logs: OpenLogs, count: int) -> bool:
    return len(logs.wal_files()) == count


async def with_files(logs: OpenLogs, disk: Faulty, count: int = 3) -> Log:
    """Two messages in each of `count` sealed files and an active one."""
    log = await logs.log(disk, limits=NO_CACHE)
    for n in range(count):
        await log.append(Run(b"s", [b"x", b"y"]))
        log.rotate()
        await eventually(partial(has_files, logs, n + 2))
    await log.writer.flush()
    return log


async def test_all_files_are_the_finished_ones_and_the_active_one(logs: OpenLogs) -> None:
    log = await with_files(logs, Faulty())
    assert [file.path for file in log.files.all()] == logs.wal_files()
    assert log.files.last_finished.path == logs.wal_files()[-2]
    active = log.files.active
    assert active is not None
    assert active.file.path == logs.wal_files()[-1]


async def test_dropped_files_are_removed_and_advance_the_start(logs: OpenLogs) -> None:
    log = await with_files(logs, Faulty())
    assert log.files.start(P0) == 0
    oldest = log.files.all()[:2]
    await log.files.drop(oldest)
    assert log.files.start(P0) == 4
    assert log.files.start(PartitionId(9)) == 0
    assert not any(file.path.exists() for file in oldest)
    assert [file.path for file in log.files.all()] == logs.wal_files()


async def test_the_start_moves_at_the_moment_the_files_go(logs: OpenLogs) -> None:
    log = await with_files(logs, Faulty())
    dropping = asyncio.create_task(log.files.drop(log.files.all()[:2]))
    while not dropping.done():
        first = log.files.all()[0].header.first_frame
        assert (log.files.start(P0) == 0) == (first == 0)
        await asyncio.sleep(0)
    assert log.files.start(P0) == 4


async def test_two_concurrent_drops_leave_the_later_start(logs: OpenLogs) -> None:
    log = await with_files(logs, Faulty(), count=4)
    files = log.files.all()
    log.files._reader._finder._starts.clear()
    state = {0: 8}
    dead, *_ = await asyncio.gather(
        log.files.droppable_files(state, None), log.files.drop(files[:3]), log.files.drop(files[:1])
    )
    assert [file.path.exists() for file in files] == [False] * 3 + [True] * 2
    assert log.files.start(P0) == 6
    assert dead == files[:4]


async def test_a_file_that_was_dropped_during_a_read_is_looked_for_again(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await with_files(logs, disk)
    first = log.files.all()[0]
    reading = asyncio.create_task(log.files.read(P0, Offset(0), 100))
    disk.fail = lambda operation, name: (
        FileNotFoundError(2, "gone", name)
        if (operation, name) == ("open_read", first.path.name)
        else None
    )
    await asyncio.sleep(0)
    log.files._finished = log.files._finished[1:]
    assert await reading is None
    assert isinstance(await log.files.read(P0, Offset(2), 100), list)


async def test_a_file_that_is_lost_is_unreadable_by_name(logs: OpenLogs) -> None:
    log = await with_files(logs, Faulty())
    lost = logs.wal_files()[1]
    lost.unlink()
    answer = await log.files.read(P0, Offset(2), 100)
    assert answer == Unreadable(Offset(2), Offset(3), f"{lost} is not there")


async def test_a_time_is_looked_for_again_when_a_file_was_dropped_meanwhile(
    logs: OpenLogs,
) -> None:
    disk = Faulty()
    log = await with_files(logs, disk)
    first = log.files.all()[0]
    searching = asyncio.create_task(log.files.first_after(P0, 1))
    disk.fail = lambda operation, name: (
        FileNotFoundError(2, "gone", name)
        if (operation, name) == ("open_read", first.path.name)
        else None
    )
    await asyncio.sleep(0)
    log.files._finished = log.files._finished[1:]
    assert await searching == 2
    disk.fail = lambda operation, name: (
        FileNotFoundError(2, "gone", name) if operation == "open_read" else None
    )
    log.files._reader._finder._tables.clear()
    with pytest.raises(FileNotFoundError):
        await log.files.first_after(P0, 1)


async def test_frames_are_collected_over_all_files(logs: OpenLogs) -> None:
    log = await with_files(logs, Faulty())
    found = await log.files.collect(Cursor(0, 0, 64), 1 << 20, lambda gap: False)
    assert [batch.first_offset for batch in found.batches] == [0, 2, 4]
    assert found.cursor.sequence == 3


async def test_finished_files_are_closed(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await with_files(logs, disk)
    active = log.files.active
    assert active is not None

    def held() -> list[int]:
        return [fd for fd, name in disk._names.items() if name.startswith("wal")]

    await eventually(lambda: held() == [active.fd])


async def test_stored_batches_have_deleted_messages_and_pass_over_gaps(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"0", b"1"]))
    log.rotate()
    await log.skip(P0, Offset(1 << 20), "test")
    await log.append(Run(b"s", [b"2"]))
    await log.delete(P0, [0, 1 << 20])
    found, offset = list[int](), 0
    while batches := await log.files.stored(P0, Offset(offset), 1):
        found += [int(each) for batch in batches for each in batch.offsets()]
        offset = batches[-1].next_offset
    assert found == [0, 1, 1 << 20]
