"""Delete frames; what readers see of them is in test_log.py."""

import asyncio
import errno

import pytest
from pyroaring import BitMap64

from penstock.formats import bodies
from penstock.formats.bodies import DeleteBody
from penstock.formats.frames import Kind
from penstock.log.files.scans import scan_file
from penstock.log.settings import LogSettings
from penstock.model.errors import AppendQueueFull, DurabilityUnmet, LogReadOnly
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty, Gate, Unsynced, on
from tests.unit.log.messages import P0, eventually
from tests.unit.log.observer import Recorder

Written = tuple[int, int, int, set[int], str]
"""Partition, next offset, start, single offsets and reason of a delete frame."""


def deletes_in(logs: OpenLogs) -> list[Written]:
    scanned = scan_file(Unsynced(), logs.wal_files()[-1], None, 0)
    found: list[Written] = []
    for item in scanned.found:
        if item.header.kind == Kind.DELETE:
            body = bodies.decode(DeleteBody, scanned.body(item))
            offsets = set(BitMap64.deserialize(body.offsets)) if body.offsets else set()
            header = item.header
            found.append((header.partition, header.first_offset, body.start, offsets, body.reason))
    return found


@pytest.mark.feature("T35")
async def test_each_deletion_is_one_frame_with_offsets_and_reason(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"x"] * 10))
    await log.delete(P0, [3, 5, 3])
    await log.delete(P0, [7], reason="limit")
    await log.purge(P0, Offset(2), reason="retention")
    await log.skip(P0, Offset(13), "takeover")
    await log.skip(PartitionId(4), Offset(2), "takeover")
    assert deletes_in(logs) == [
        (0, 10, 0, {3, 5}, "message"),
        (0, 10, 0, {7}, "limit"),
        (0, 10, 2, set(), "retention"),
        (0, 13, 0, {10, 11, 12}, "takeover"),
        (4, 2, 2, set(), "takeover"),
    ]


@pytest.mark.feature("T35")
async def test_a_deletion_of_nothing_writes_nothing(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"x"] * 3))
    await log.purge(P0, Offset(2))
    await log.delete(P0, [])
    await log.delete(P0, [0, 1, 3])
    await log.purge(P0, Offset(1))
    await log.skip(P0, Offset(3), "nothing")
    assert deletes_in(logs) == [(0, 3, 2, set(), "purge")]


async def test_a_deletion_is_behind_the_messages_and_before_those_that_follow(
    logs: OpenLogs,
) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    appended = [log.append(Run(b"s", [b"0"]))]
    await eventually(gate.waiting.is_set)
    appended.append(log.append(Run(b"s", [b"1"])))
    deleting = asyncio.create_task(log.delete(P0, [0, 1, 2]))
    await asyncio.sleep(0)
    appended.append(log.append(Run(b"s", [b"2"])))
    gate.open()
    await deleting
    await asyncio.gather(*appended)
    assert deletes_in(logs) == [(0, 2, 0, {0, 1}, "message")]
    assert log.live_count(P0) == 1


async def test_drop_soon_joins_the_group_of_the_last_append(logs: OpenLogs) -> None:
    log = await logs.log()
    observer = Recorder(lambda changed: log.live_count(P0))
    log.observe(observer)
    await log.append(Run(b"s", [b"0", b"1"]))
    appended = log.append(Run(b"s", [b"2", b"3"]))
    dropped = log.drop_soon(P0, Offset(1), [2], "limits")
    await asyncio.gather(appended, dropped)
    assert observer.commits == [2, 2]
    assert deletes_in(logs) == [(0, 4, 1, {2}, "limits")]
    assert log.live_count(P0) == 2
    log.drop_soon(P0, Offset(0), [3], "limits")
    log = await logs.crash().log()
    assert log.start_offset(P0) == 1


async def test_drop_soon_needs_no_room_in_the_queue(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate, settings=LogSettings(pending_bytes_max=4))
    await log.append(Run(b"s", [b"0"]))
    gate.shut()
    appended = log.append(Run(b"s", [b"123"]))
    dropped = log.drop_soon(P0, Offset(1), [], "limits")
    with pytest.raises(AppendQueueFull):
        log.append(Run(b"s", [b"4"]))
    gate.open()
    await asyncio.gather(appended, dropped)
    assert log.start_offset(P0) == 1


async def test_drop_soon_fails_with_the_disk(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await logs.log(disk)
    observer = Recorder(on_discard=lambda: log.writer.next_offset(P0))
    log.observe(observer)
    await log.append(Run(b"s", [b"0"]))
    disk.fail = on("write", errno.EIO)
    appended = log.append(Run(b"s", [b"1"]))
    dropped = log.drop_soon(P0, Offset(1), [], "limits")
    answers = await asyncio.gather(appended, dropped, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DurabilityUnmet, DurabilityUnmet]
    assert observer.discards == [1]
    assert log.start_offset(P0) == 0
    with pytest.raises(LogReadOnly):
        log.drop_soon(P0, Offset(1), [], "limits")


async def test_a_waiting_reader_is_woken_when_the_message_is_discarded(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await logs.log(disk)
    disk.fail = on("write", errno.EIO)
    with log.waiters.arrival(P0) as arrival:
        log.append(Run(b"s", [b"1"])).add_done_callback(asyncio.Future.exception)
        async with asyncio.timeout(10):
            await arrival
    assert log.next_offset(P0) == 0
