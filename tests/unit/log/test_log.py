"""Deletions, links, settlements, times, partitions and the end of one log."""

import asyncio
import time
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.formats.bodies import ObjectRef
from penstock.log.log import Log, LogStatus
from penstock.log.logs import SharedLimits
from penstock.log.reading.wal_reader import InObjects
from penstock.log.recovery.reopen import LogMode
from penstock.log.settings import LogSettings
from penstock.log.state import Missing
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import AppendQueueFull, DataDamaged, LogClosed
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Microseconds, Offset, OffsetRange, PartitionId
from tests.log_reader import LogReader
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Gate, Hand, Slow
from tests.unit.log.messages import (
    P0,
    Message,
    batches_from,
    eventually,
    in_batch,
    messages_from,
    payloads_from,
    stamps_in,
)

P1, P2 = PartitionId(1), PartitionId(2)
NO_CACHE = SharedLimits(cache_bytes_max=0, reserve_bytes=4096)


def run(*payloads: bytes, partition: int = 0) -> Run:
    return Run(b"s", list(payloads), partition=PartitionId(partition))


def numbered(first: int, count: int, partition: int = 0) -> Run:
    return run(*(b"%d" % n for n in range(first, first + count)), partition=partition)


async def rotated(log: Log, logs: OpenLogs) -> None:
    """Begin a new file and wait for it."""
    before = len(logs.wal_files())
    log.rotate()
    await eventually(lambda: len(logs.wal_files()) > before)


async def after_everything(logs: OpenLogs, log: Log) -> AsyncIterator[Log]:
    """The log as it is, as a killed process leaves it, and after a restart."""
    yield log
    yield await logs.crash().log(limits=NO_CACHE)
    yield await logs.log(limits=NO_CACHE)


# -- deletions


@pytest.mark.feature("T35")
async def test_deleted_messages_are_invisible_to_readers_also_after_a_restart(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    await log.append(numbered(0, 10))
    await rotated(log, logs)
    await log.append(numbered(10, 10))
    await log.delete(P0, [3, 4, 9, 10, 19])
    async for seen in after_everything(logs, log):
        live = [n for n in range(20) if n not in (3, 4, 9, 10, 19)]
        assert await payloads_from(seen) == {n: b"%d" % n for n in live}
        assert await payloads_from(seen, 3) == {n: b"%d" % n for n in live if n > 4}
        assert seen.live_count(P0) == 15
        assert await seen.read(P0, Offset(19)) == AtHead(Offset(20))


@pytest.mark.feature("T35")
async def test_offsets_that_do_not_exist_are_not_deleted(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(numbered(0, 3))
    before = logs.wal_files()[0].stat().st_size
    await log.delete(P0, [3, 99])
    await log.delete(P1, [0])
    assert logs.wal_files()[0].stat().st_size == before
    await log.append(numbered(3, 1))
    assert await payloads_from(log) == {n: b"%d" % n for n in range(4)}


@pytest.mark.feature("T35")
async def test_a_message_on_its_way_can_be_deleted(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    appended = log.append(numbered(0, 2))
    await eventually(gate.waiting.is_set)
    deleting = asyncio.create_task(log.delete(P0, [0]))
    await asyncio.sleep(0.01)
    gate.open()
    await appended
    await deleting
    async for seen in after_everything(logs, log):
        assert await payloads_from(seen) == {1: b"1"}


@pytest.mark.feature("T35")
async def test_a_purge_advances_the_start_and_earlier_reads_report_it(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(numbered(0, 10))
    await log.delete(P0, [6])
    await log.purge(P0, Offset(6))
    async for seen in after_everything(logs, log):
        assert await seen.read(P0, Offset(5)) == Gone(Offset(7))
        assert seen.start_offset(P0) == 6
        assert await payloads_from(seen) == {n: b"%d" % n for n in (7, 8, 9)}
        assert seen.live_count(P0) == 3


@pytest.mark.feature("T06", "T35")
async def test_a_purged_file_is_removed_at_the_next_rotation(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    await log.append(numbered(0, 3))
    await log.purge(P0, Offset(3))
    (purged,) = logs.wal_files()
    log.rotate()
    await eventually(lambda: not purged.exists())
    await log.append(numbered(3, 1))
    async for seen in after_everything(logs, log):
        assert (seen.start_offset(P0), await payloads_from(seen)) == (3, {3: b"3"})
        assert len(seen.files.all()) == 1


@pytest.mark.feature("T35")
async def test_a_purge_ends_at_the_last_assigned_offset(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(numbered(0, 3))
    await log.purge(P0, Offset(1000))
    assert await log.append(numbered(3, 1)) == (3, 4)
    async for seen in after_everything(logs, log):
        assert (seen.start_offset(P0), seen.next_offset(P0)) == (3, 4)
        assert await payloads_from(seen) == {3: b"3"}


@pytest.mark.feature("T35")
async def test_files_whose_messages_are_all_purged_are_removed(logs: OpenLogs) -> None:
    log = await logs.log()
    for n in range(4):
        await log.append(numbered(10 * n, 10))
        await log.append(run(b"%d" % n, partition=1))
        await rotated(log, logs)
    names = [path.name for path in logs.wal_files()]
    await log.purge(P0, Offset(25))
    assert [path.name for path in logs.wal_files()] == names
    await log.purge(P1, Offset(4))
    assert [path.name for path in logs.wal_files()] == names[2:]
    async for seen in after_everything(logs, log):
        assert await payloads_from(seen) == {n: b"%d" % n for n in range(25, 40)}
        assert await payloads_from(seen, partition=1) == {}
        assert seen.next_offset(P1) == 4


@pytest.mark.feature("T35")
async def test_a_reader_on_a_file_that_is_removed_under_it_looks_again(logs: OpenLogs) -> None:
    log = await logs.log(limits=NO_CACHE)
    for n in range(4):
        await log.append(numbered(10 * n, 10))
        await rotated(log, logs)
    reading = [asyncio.create_task(log.read(P0, Offset(n))) for n in range(0, 40, 3)]
    await log.purge(P0, Offset(35))
    for n, task in zip(range(0, 40, 3), reading, strict=True):
        answer = await task
        if isinstance(answer, Gone):
            assert answer == Gone(Offset(35))
        else:
            assert isinstance(answer, list)
            assert all(m.payload == b"%d" % m.offset for b in answer for m in in_batch(b))
            assert answer[0].next_offset > n


@pytest.mark.feature("T35")
async def test_a_recorded_gap_is_skipped_and_the_next_message_follows_it(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    await log.append(numbered(0, 2))
    await log.skip(P0, Offset(1000), "takeover")
    await log.skip(P0, Offset(500), "too late")
    assert await log.append(run(b"1000")) == (1000, 1001)
    await log.skip(P1, Offset(7), "takeover")
    async for seen in after_everything(logs, log):
        assert await payloads_from(seen) == {0: b"0", 1: b"1", 1000: b"1000"}
        assert (seen.next_offset(P0), seen.next_offset(P1)) == (1001, 7)
        assert (seen.live_count(P0), seen.live_count(P1)) == (3, 0)
        assert seen.status().missing == ()
    assert await (await logs.log()).append(run(b"7", partition=1)) == (7, 8)


# -- settlements


async def test_files_with_settlements_that_are_still_needed_are_kept(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(numbered(0, 10))
    await rotated(log, logs)
    await log.settle(b"settled", 1)
    await log.append(numbered(10, 10))
    await rotated(log, logs)
    await log.append(numbered(20, 10))
    names = [path.name for path in logs.wal_files()]
    await log.purge(P0, Offset(25))
    assert [path.name for path in logs.wal_files()] == names[1:]
    log.state.settle_floor = log.writer.durable_number
    await log.purge(P0, Offset(26))
    assert [path.name for path in logs.wal_files()] == names[2:]


async def test_a_settlement_is_durable_when_its_future_is_done(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    future = log.settle(b"settled", 3)
    await eventually(gate.waiting.is_set)
    assert not future.done()
    gate.open()
    await future
    assert b"settled" in logs.wal_files()[0].read_bytes()
    assert log.next_offset(P0) == 0


# -- links


def refs(*rows: int) -> list[ObjectRef]:
    return [ObjectRef(f"object-{n}", count, 100, 7) for n, count in enumerate(rows)]


async def test_a_link_assigns_offsets_of_several_partitions_in_one_frame(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(numbered(0, 3))
    given_ = await log.link("app", 1, {P0: refs(2, 3), P1: refs(4)})
    assert given_ == {0: OffsetRange(Offset(3), Offset(8)), 1: OffsetRange(Offset(0), Offset(4))}
    assert await log.append(run(b"8")) == (8, 9)
    stamp = log.state.last_timestamp
    async for seen in after_everything(logs, log):
        for offset in range(3, 8):
            answer = await seen.read(P0, Offset(offset))
            assert isinstance(answer, InObjects)
            assert 0 < answer.timestamp <= stamp
            stamp = answer.timestamp
            assert answer == InObjects(P0, Offset(3), Offset(8), tuple(refs(2, 3)), stamp)
        linked = InObjects(P1, Offset(0), Offset(4), tuple(refs(4)), stamp)
        assert await seen.read(P1, Offset(1)) == linked
        assert await seen.read(P1, Offset(4)) == AtHead(Offset(4))
        assert await payloads_from(seen) == {0: b"0", 1: b"1", 2: b"2", 8: b"8"}


async def test_a_repeated_link_is_stored_once(logs: OpenLogs) -> None:
    log = await logs.log()
    first = await log.link("app", 5, {P0: refs(2)})
    assert await log.link("app", 5, {P0: refs(2)}) == first
    assert await log.link("app", 4, {P0: refs(9)}) == first
    assert await log.link("other", 5, {P0: refs(1)}) == {0: (2, 3)}
    second = await log.link("app", 6, {P1: refs(3)})
    await rotated(log, logs)
    async for seen in after_everything(logs, log):
        assert await seen.link("app", 6, {P1: refs(3)}) == second
        assert await seen.link("app", 5, {P0: refs(2)}) == second
        assert await seen.link("other", 5, {P0: refs(1)}) == {0: (2, 3)}
        assert (seen.next_offset(P0), seen.next_offset(P1)) == (3, 3)


async def test_a_link_tried_again_while_it_is_under_way_is_the_same_link(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    one, two = (log.link("app", 1, {P0: refs(2)}) for _ in range(2))
    await eventually(gate.waiting.is_set)
    gate.open()
    assert await one == await two == {0: (0, 2)}
    assert log.next_offset(P0) == 2


async def test_a_link_whose_caller_was_cancelled_is_stored_once(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(log.link("app", 1, {P0: refs(2)}), 0.02)
    gate.open()
    assert await log.link("app", 1, {P0: refs(2)}) == {0: (0, 2)}
    assert log.next_offset(P0) == 2


async def test_a_message_after_a_link_in_one_group_follows_its_rows(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    before, linked = log.append(run(b"0")), log.link("app", 1, {P0: refs(2)})
    behind = log.append(run(b"3"))
    assert (await before, await linked, await behind) == ((0, 1), {0: (1, 3)}, (3, 4))
    async for seen in after_everything(logs, log):
        assert await payloads_from(seen) == {0: b"0", 3: b"3"}


# -- partitions


async def test_ten_thousand_partitions_are_cheap_and_survive_a_restart(logs: OpenLogs) -> None:
    count = 10_000
    disk = Slow()
    log = await logs.log(disk)
    before, started = disk.syncs, time.process_time()
    for base in range(0, count, 1000):
        runs = [run(b"%d" % p, partition=p) for p in range(base, base + 1000)]
        await asyncio.gather(*(log.append(each) for each in runs))
    await log.append(run(b"again", partition=77))
    assert disk.syncs - before <= 2 * count // 1000 + 2
    assert len(log.partitions()) == count
    await rotated(log, logs)
    await log.append(run(b"more", partition=9_999))
    async for seen in after_everything(logs, log):
        assert await payloads_from(seen, partition=77) == {0: b"77", 1: b"again"}
        assert await payloads_from(seen, partition=9_999) == {0: b"9999", 1: b"more"}
        assert await payloads_from(seen, partition=5_000) == {0: b"5000"}
        assert len(seen.partitions()) == count
    assert time.process_time() - started < 20


# -- time


async def offset_at(log: Log, when: int, partition: PartitionId = P0) -> int:
    return await log.offset_at(partition, Microseconds(when))


async def test_the_offset_of_a_time_is_the_first_that_is_not_older(logs: OpenLogs) -> None:
    clock = Hand(1000)
    log = await logs.log(clock=clock)
    for when in (1000, 2000, 2000, 2000, 3000):
        clock.us = when
        await log.append(run(b"x", b"y"))
        await rotated(log, logs)
    times = [0, 1000, 1001, 2000, 2001, 3000, 3001]
    async for seen in after_everything(logs, log):
        assert [await offset_at(seen, when) for when in times] == [0, 0, 2, 2, 8, 8, 10]
        assert await offset_at(seen, 1000, P1) == 0


async def test_the_offset_of_a_time_is_a_live_one(logs: OpenLogs) -> None:
    clock = Hand(1000)
    log = await logs.log(clock=clock)
    for when in (1000, 2000, 3000):
        clock.us = when
        await log.append(run(b"x", b"y"))
    await log.delete(P0, [2, 3])
    await log.purge(P0, Offset(1))
    async for seen in after_everything(logs, log):
        assert [await offset_at(seen, when) for when in (0, 1500, 2500)] == [1, 4, 4]


async def test_rows_in_objects_have_the_time_of_their_link(logs: OpenLogs) -> None:
    clock = Hand(1000)
    log = await logs.log(clock=clock)
    await log.append(run(b"0"))
    clock.us = 2000
    await log.link("app", 1, {P0: refs(3)})
    clock.us = 3000
    await log.append(run(b"4"))
    times = [1000, 1001, 2000, 2001, 3000, 3001]
    async for seen in after_everything(logs, log):
        assert [await offset_at(seen, when) for when in times] == [0, 1, 1, 4, 4, 5]


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(0, 3),
            st.one_of(st.none(), st.lists(st.integers(0, 20), min_size=1, max_size=3)),
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_offset_at_agrees_with_a_scan_of_all_messages(
    logs: OpenLogs, steps: list[tuple[bool, int, list[int] | None]]
) -> None:
    clock = Hand(5)
    await logs.forget()
    log = await logs.log(clock=clock, limits=NO_CACHE)
    for rotate, passed, stamps in steps:
        clock.us += passed
        count = len(stamps) if stamps else 2
        await log.append(Run(b"s", [b"x"] * count, timestamps=stamps))
        if rotate:
            await rotated(log, logs)
    stored = [stamp for batch in await batches_from(log) for stamp in stamps_in(batch)]
    assert stored == sorted(stored)
    for when in range(max(stored) + 2):
        expected = next((n for n, stamp in enumerate(stored) if stamp >= when), len(stored))
        assert await offset_at(log, when) == expected


async def test_times_are_found_also_when_a_file_header_is_damaged(logs: OpenLogs) -> None:
    clock = Hand(1000)
    log = await logs.log(clock=clock)
    for n in range(3):
        clock.us = 1000 * (n + 1)
        await log.append(run(b"x", b"y"))
        await rotated(log, logs)
    for damaged in range(3):
        copy = logs.crash()
        path = copy.wal_files()[damaged]
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
        seen = await copy.log()
        times = [0, 1000, 1001, 2000, 2001, 3000, 3001]
        assert [await offset_at(seen, when) for when in times] == [0, 0, 2, 2, 4, 4, 6]


# -- rows of a typed topic


async def test_rows_are_read_back_with_their_schema_from_cache_and_files(logs: OpenLogs) -> None:
    log = await logs.log()
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))],
        metadata={"table": "orders"},
    )
    rows = pa.RecordBatch.from_pylist(
        [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}, {"id": 3, "tags": []}], schema=schema
    )
    stamps = pa.array([10, 20, 30], pa.int64())
    assert await log.append(ColumnRun(rows, P1, stamps)) == (0, 3)
    assert await log.append(ColumnRun(rows.slice(1, 2), P1)) == (3, 5)
    async for seen in after_everything(logs, log):
        found = await batches_from(seen, partition=1)
        assert all(isinstance(batch.content, pa.RecordBatch) for batch in found)
        contents = [batch.content for batch in found if isinstance(batch.content, pa.RecordBatch)]
        assert all(c.schema.equals(schema, check_metadata=True) for c in contents)
        assert [row for content in contents for row in content.to_pylist()] == [
            *rows.to_pylist(),
            *rows.to_pylist()[1:],
        ]
        assert [s for batch in found for s in stamps_in(batch)][:3] == [10, 20, 30]
        (late,) = await batches_from(seen, 4, partition=1)
        assert (late.first_offset, late.to_arrow().to_pydict()["id"]) == (4, [3])


async def test_rows_raw_messages_and_rows_of_another_schema_live_in_one_topic(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    await log.append(ColumnRun(pa.record_batch({"a": [1]})))
    await log.append(run(b"raw"))
    await log.append(ColumnRun(pa.record_batch({"b": ["x"]})))
    await log.append(ColumnRun(Columns(b"s", pa.array([b"columns"], pa.binary()))))
    async for seen in after_everything(logs, log):
        names = [batch.to_arrow().schema.names[3:] for batch in await batches_from(seen)]
        raw = ["subject", "headers", "payload"]
        assert names == [["a"], raw, ["b"], raw]


# -- damage


async def damaged_log(logs: OpenLogs) -> Log:
    """Ten messages in a sealed file, the batch of 4 and 5 damaged; five more in the next file."""
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    for n in range(0, 10, 2):
        await log.append(run(b"payload-%d" % n, b"payload-%d" % (n + 1)))
    await rotated(log, logs)
    await log.append(run(*(b"payload-%d" % n for n in range(10, 15))))
    await logs.close()
    path = logs.wal_files()[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"payload-4")] ^= 1
    path.write_bytes(data)
    return await logs.log()


@pytest.mark.feature("T04")
async def test_damaged_offsets_are_an_error_by_name_and_all_others_are_read(
    logs: OpenLogs,
) -> None:
    log = await damaged_log(logs)
    for offset in (4, 5):
        with pytest.raises(DataDamaged) as caught:
            await log.read(P0, Offset(offset))
        assert (caught.value.first, caught.value.next) == (offset, 6)
    assert list(await payloads_from(log, 6)) == list(range(6, 15))
    first = await log.read(P0, Offset(0))
    assert isinstance(first, list)
    assert [m.offset for batch in first for m in in_batch(batch)] == [0, 1, 2, 3]
    assert Missing(P0, Offset(4), Offset(6)) in log.status().missing


@pytest.mark.feature("T04")
async def test_a_reader_stops_at_damage_and_can_continue_after_it(logs: OpenLogs) -> None:
    log = await damaged_log(logs)
    reader = LogReader(log, P0, Offset(0))
    seen: list[Message] = []
    damages: list[tuple[int, int]] = []
    while reader.next_offset < 15:
        try:
            seen += in_batch(await anext(reader))
        except DataDamaged as damage:
            damages.append((damage.first, damage.next))
            reader.next_offset = damage.next
    assert [m.offset for m in seen] == [n for n in range(15) if n not in (4, 5)]
    assert damages == [(4, 6)]


@pytest.mark.feature("T04")
async def test_a_damaged_last_batch_is_reported_whole_and_its_offsets_not_given_again(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    await log.append(run(b"before"))
    await log.append(run(*(b"payload-%d" % n for n in range(5))))
    await logs.close()
    path = logs.wal_files()[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"payload-4")] ^= 1
    path.write_bytes(data)
    log = await logs.log()
    assert log.status().missing == (Missing(P0, Offset(1), Offset(6)),)
    with pytest.raises(DataDamaged) as caught:
        await log.read(P0, Offset(2))
    assert (caught.value.first, caught.value.next) == (2, 6)
    assert log.status().missing == (Missing(P0, Offset(1), Offset(6)),)
    assert await log.append(run(b"behind")) == (6, 7)
    assert await payloads_from(log, 6) == {6: b"behind"}


async def test_a_file_that_was_removed_from_outside_is_reported_as_damage(
    logs: OpenLogs,
) -> None:
    log = await logs.log(limits=NO_CACHE)
    for n in range(3):
        await log.append(numbered(2 * n, 2))
        await rotated(log, logs)
    logs.wal_files()[1].unlink()
    with pytest.raises(DataDamaged):
        await asyncio.wait_for(log.read(P0, Offset(2)), 5)
    assert await payloads_from(log, 4) == {4: b"4", 5: b"5"}


# -- a full queue


@pytest.mark.feature("T31")
async def test_an_append_is_refused_at_a_full_queue_and_room_waits(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate, settings=LogSettings(pending_bytes_max=100))
    gate.shut()
    first = log.append(run(bytes(79)))
    with pytest.raises(AppendQueueFull):
        log.append(run(bytes(79)))
    room = asyncio.create_task(log.room(79))
    await asyncio.sleep(0.01)
    assert not room.done()
    gate.open()
    await room
    second = await log.append(run(bytes(79)))
    assert (await first, second) == ((0, 1), (1, 2))


# -- the end


async def test_a_closed_log_takes_nothing_and_its_readers_end(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(numbered(0, 3))
    seen: list[Batch] = []

    async def follow(start: int) -> None:
        seen.extend([batch async for batch in LogReader(log, P0, Offset(start))])

    at_head, ahead = asyncio.create_task(follow(3)), asyncio.create_task(follow(100))
    await asyncio.sleep(0.01)
    await logs.close()
    await asyncio.wait_for(asyncio.gather(at_head, ahead), 5)
    assert seen == []
    for attempt in (
        lambda: log.append(run(b"x")),
        lambda: log.settle(b"x", 1),
        lambda: log.link("app", 1, {P0: refs(1)}),
    ):
        with pytest.raises(LogClosed):
            attempt()
    with pytest.raises(LogClosed):
        await log.delete(P0, [0])
    await log.close()


async def test_a_lagging_reader_ends_when_the_log_closes(logs: OpenLogs) -> None:
    log = await logs.log(limits=NO_CACHE)
    for n in range(5):
        await log.append(numbered(n, 1))
        await rotated(log, logs)
    reader = LogReader(log, P0, Offset(0))
    await anext(reader)
    assert reader.next_offset == 1
    await logs.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(reader), 30)


async def test_messages_acknowledged_during_the_close_survive_a_restart(
    logs: OpenLogs,
) -> None:
    log = await logs.log(Slow(0.002))
    acknowledged: list[int] = []

    async def publisher() -> None:
        while True:
            try:
                acknowledged.append((await log.append(run(b"x"))).first)
            except LogClosed:
                return

    publishers = [asyncio.create_task(publisher()) for _ in range(20)]
    await asyncio.sleep(0.03)
    await asyncio.wait_for(logs.close(), 10)
    await asyncio.wait_for(asyncio.gather(*publishers), 5)
    log = await logs.log()
    assert sorted(await payloads_from(log)) == sorted(acknowledged)
    assert await messages_from(log, log.next_offset(P0)) == []


async def test_the_status_of_a_log_is_a_moments_view_of_all_of_it(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"x"]))
    size = logs.wal_files()[0].stat().st_size
    before = log.status()
    assert before == LogStatus("default/default/t", LogMode.OPEN, "", 1, size, 0, ())
    future = log.append(Run(b"s", [b"y" * 99]))
    assert log.status().pending_bytes == 100
    await future
    assert before.pending_bytes == 0
