"""Lookup of an offset in memory and files; test_reader.py tests the laws of reading."""

import asyncio
import threading

import pytest

from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.reading.lookup import Lookup
from penstock.log.reading.wal_reader import InObjects
from penstock.log.shared.tail_cache import TailCache
from penstock.log.state import LogState, Missing
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import DataDamaged, LogClosed
from penstock.model.run import Run
from penstock.model.units import Microseconds, Nanoseconds, Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty
from tests.unit.log.messages import P0, eventually, in_batch

NO_CACHE = SharedLimits(cache_bytes_max=0, reserve_bytes=4096)


async def rotated(log: Log, logs: OpenLogs) -> None:
    before = len(logs.wal_files())
    log.rotate()
    await eventually(lambda: len(logs.wal_files()) > before)


@pytest.mark.feature("T08", "T09")
async def test_cached_messages_are_read_without_the_disk(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await logs.log(disk)
    await log.append(Run(b"s", [b"a", b"b"]))
    before = disk.count("open_read")
    for offset in (0, 1):
        answer = await log.read(P0, Offset(offset))
        assert isinstance(answer, list)
        assert answer[0].first_offset == offset
    assert disk.count("open_read") == before


@pytest.mark.feature("T09")
async def test_small_neighbours_are_joined_when_they_are_read(logs: OpenLogs) -> None:
    log = await logs.log()
    for n in range(10):
        await log.append(Run(b"s", [b"%d" % n]))
    answer = await log.read(P0, Offset(3))
    assert isinstance(answer, list)
    (batch,) = answer
    assert [m.offset for m in in_batch(batch)] == list(range(3, 10))


async def test_offsets_before_the_oldest_file_are_in_objects(logs: OpenLogs) -> None:
    log = await logs.log(limits=NO_CACHE)
    for n in range(3):
        await log.append(Run(b"s", [b"%d" % n]))
        await rotated(log, logs)
    await log.prune(log.files.all()[:2])
    if log.files.start(P0) == 2:
        assert await log.read(P0, Offset(0)) == InObjects(P0, Offset(0), Offset(2), ())
        assert isinstance(await log.read(P0, Offset(2)), list)


@pytest.mark.feature("T04")
async def test_damaged_offsets_that_the_bucket_has_are_read_from_there(logs: OpenLogs) -> None:
    log = await logs.log()
    for n in range(3):
        await log.append(Run(b"s", [b"payload-%d" % n]))
    await logs.close()
    (path,) = logs.wal_files()
    data = bytearray(path.read_bytes())
    data[data.index(b"payload-1")] ^= 1
    path.write_bytes(data)
    log = await logs.log()
    with pytest.raises(DataDamaged):
        await log.read(P0, Offset(1))
    log.lookup.attach_objects(lambda partition, offset: True)
    assert await log.read(P0, Offset(1)) == InObjects(P0, Offset(1), Offset(2), ())
    assert log.status().missing == (Missing(P0, Offset(1), Offset(2)),)


@pytest.mark.feature("T09", "T35")
async def test_messages_purged_during_the_read_are_gone(logs: OpenLogs) -> None:
    started, release = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> OSError | None:
        if operation == "read":
            started.set()
            release.wait(5)
        return None

    disk = Faulty()
    log = await logs.log(disk, limits=NO_CACHE)
    await log.append(Run(b"s", [b"0", b"1", b"2"]))
    disk.fail = hold
    reading = asyncio.create_task(log.read(P0, Offset(0)))
    await eventually(started.is_set)
    await log.purge(P0, Offset(2))
    release.set()
    assert await reading == Gone(Offset(2))


async def test_a_partition_without_messages_is_at_its_head(logs: OpenLogs) -> None:
    log = await logs.log()
    assert await log.read(PartitionId(99), Offset(0)) == AtHead(Offset(0))
    assert await log.read(PartitionId(99), Offset(5)) == AtHead(Offset(0))


async def test_a_read_of_a_closed_log_fails() -> None:
    tail = TailCache(0, Nanoseconds(0)).tail()
    lookup = Lookup("t", LogState("t"), tail, None)
    assert await lookup.read(P0, Offset(0), 1) == AtHead(Offset(0))
    lookup.closed = True
    with pytest.raises(LogClosed):
        await lookup.read(P0, Offset(0), 1)


async def test_messages_of_a_memory_log_that_are_not_cached_are_gone() -> None:
    state = LogState("t")
    state.nexts = {0: 10}
    lookup = Lookup("t", state, TailCache(0, Nanoseconds(0)).tail(), None)
    assert await lookup.read(P0, Offset(3), 1) == Gone(Offset(10))


async def test_a_read_during_the_removal_of_the_log_reports_a_closed_log(
    logs: OpenLogs,
) -> None:
    started, release = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> OSError | None:
        if operation == "open_read":
            started.set()
            release.wait(5)
            return FileNotFoundError(2, "gone", name)
        return None

    disk = Faulty()
    log = await logs.log(disk, limits=NO_CACHE)
    await log.append(Run(b"s", [b"0"]))
    disk.fail = hold
    reading = asyncio.create_task(log.read(P0, Offset(0)))
    await eventually(started.is_set)
    closing = asyncio.create_task(log.close())
    await eventually(lambda: log.lookup.closed)
    release.set()
    with pytest.raises(LogClosed):
        await reading
    await closing
    assert log.status().missing == ()


async def test_messages_in_memory_can_be_peeked(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"0", b"1", b"2", b"3"]))
    await log.delete(P0, [2])
    seen = log.lookup.peek(P0, Offset(1), 1 << 20)
    assert isinstance(seen, list)
    assert [message.offset for batch in seen for message in in_batch(batch)] == [1, 3]
    assert log.lookup.peek(P0, Offset(4), 1) == AtHead(Offset(4))
    await log.purge(P0, Offset(1))
    assert log.lookup.peek(P0, Offset(0), 1) == Gone(Offset(1))
    held = [log.lookup.holding(P0, Offset(offset)) for offset in range(5)]
    assert [batch and batch.first_offset for batch in held] == [None, 0, None, 0, None]
    await log.close()
    assert log.lookup.holding(P0, Offset(1)) is None


async def test_messages_on_disk_cannot_be_peeked(logs: OpenLogs) -> None:
    log = await logs.log(limits=NO_CACHE)
    await log.append(Run(b"s", [b"0"]))
    assert log.lookup.peek(P0, Offset(0), 1) is None
    assert isinstance(await log.read(P0, Offset(0)), list)
    await log.close()
    with pytest.raises(LogClosed):
        log.lookup.peek(P0, Offset(0), 1)


async def test_a_message_appended_during_a_search_by_time_is_not_older(
    logs: OpenLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await logs.log()
    search = log.files.first_after

    async def slowly(partition: PartitionId, timestamp: int) -> Offset | None:
        found = await search(partition, timestamp)
        await log.append(Run(b"s", [b"new"]))
        return found

    monkeypatch.setattr(log.files, "first_after", slowly)
    assert await log.offset_at(P0, Microseconds(1 << 60)) == 0
    assert await log.offset_at(P0, Microseconds(1 << 60)) == 1
