"""Groups, fsyncs and acknowledgements of one log."""

import asyncio
import time

import pytest

from penstock.formats.bodies import ObjectRef
from penstock.formats.frames import Flag, Kind
from penstock.formats.scan import IntactFrame, scan
from penstock.log.log import Log
from penstock.log.settings import LogSettings
from penstock.model.batch import AtHead
from penstock.model.errors import AppendQueueFull, RunInvalid
from penstock.model.run import Run
from penstock.model.units import Offset, OffsetRange, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Gate, Hand, Slow
from tests.unit.log.messages import (
    P0,
    Message,
    batches_from,
    eventually,
    messages_from,
    payloads_from,
    stamps_in,
)


def run(*payloads: bytes, partition: int = 0, subject: bytes = b"s") -> Run:
    return Run(subject, list(payloads), partition=PartitionId(partition))


def frames(logs: OpenLogs, index: int = -1) -> list[tuple[Kind, int, int]]:
    """Kind, flags and entries of every frame in a file."""
    data = logs.wal_files()[index].read_bytes()
    mark = int.from_bytes(data[12:16], "little")
    items = list(scan(data, mark, 64))
    assert all(isinstance(item, IntactFrame) for item in items)
    return [
        (Kind(item.header.kind), item.header.flags, item.header.entries)
        for item in items
        if item.header is not None
    ]


# -- order


@pytest.mark.feature("T01")
async def test_offsets_are_given_in_the_order_of_the_appends(logs: OpenLogs) -> None:
    log = await logs.log()
    assert await log.append(run(b"a", b"b")) == OffsetRange(Offset(0), Offset(2))
    assert await log.append(run(b"c")) == OffsetRange(Offset(2), Offset(3))
    assert await log.append(run(b"x", partition=5)) == OffsetRange(Offset(0), Offset(1))
    assert await payloads_from(log) == {0: b"a", 1: b"b", 2: b"c"}
    assert await payloads_from(log, partition=5) == {0: b"x"}
    assert log.partitions() == [0, 5]


@pytest.mark.feature("T01")
async def test_concurrent_appenders_share_one_gapless_order_and_each_keeps_its_own(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    assigned: dict[int, list[OffsetRange]] = {}

    async def publisher(number: int) -> None:
        assigned[number] = []
        for n in range(20):
            payloads = [b"%d.%d.%d" % (number, n, k) for k in range(n % 3 + 1)]
            assigned[number].append(await log.append(Run(b"s", payloads)))

    await asyncio.gather(*(publisher(number) for number in range(25)))
    stored = await payloads_from(log)
    assert sorted(stored) == list(range(25 * sum(n % 3 + 1 for n in range(20))))
    for number, ranges in assigned.items():
        assert ranges == sorted(ranges)
        for n, (first, next_) in enumerate(ranges):
            expected = [b"%d.%d.%d" % (number, n, k) for k in range(next_ - first)]
            assert [stored[offset] for offset in range(first, next_)] == expected


async def test_runs_joined_in_a_group_keep_their_order_subjects_and_headers(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    runs = [
        Run(b"a", [b"1"]),
        Run(b"a", [b"2", b"3"], [b"h2", b""]),
        Run([b"b", b"c"], [b"4", b"5"]),
        Run(b"a", [b"6"], [b"h6"]),
    ]
    await asyncio.gather(*(log.append(each) for each in runs))
    assert await messages_from(log) == [
        Message(0, b"a", b"", b"1"),
        Message(1, b"a", b"h2", b"2"),
        Message(2, b"a", b"", b"3"),
        Message(3, b"b", b"", b"4"),
        Message(4, b"c", b"", b"5"),
        Message(5, b"a", b"h6", b"6"),
    ]
    assert frames(logs) == [(Kind.CHECKPOINT, Flag.START, 0), (Kind.BATCH, Flag.HEADERS, 6)]


# -- group commit


@pytest.mark.feature("T03")
async def test_the_ack_and_the_readers_wait_for_the_fsync(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    future = log.append(run(b"a"))
    await eventually(gate.waiting.is_set)
    await asyncio.sleep(0.05)
    assert not future.done()
    assert log.next_offset(P0) == 0
    assert await log.read(P0, Offset(0)) == AtHead(Offset(0))
    gate.open()
    assert await future == OffsetRange(Offset(0), Offset(1))
    assert log.next_offset(P0) == 1
    assert await payloads_from(log) == {0: b"a"}


@pytest.mark.feature("T03")
async def test_appends_during_an_fsync_form_the_next_group(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    first = log.append(run(b"0"))
    await eventually(gate.waiting.is_set)
    later = []
    for n in range(1, 100):
        later.append(log.append(run(b"%d" % n)))
        await asyncio.sleep(0)
    gate.open()
    await first
    assert [(await future).first for future in later] == list(range(1, 100))
    assert [entries for _, _, entries in frames(logs)] == [0, 1, 99]


@pytest.mark.feature("T03")
async def test_many_appends_cost_few_fsyncs(logs: OpenLogs) -> None:
    disk = Slow(0.005)
    log = await logs.log(disk)
    before = disk.syncs

    async def publisher() -> None:
        for _ in range(10):
            await log.append(run(b"x"))

    await asyncio.gather(*(publisher() for _ in range(100)))
    assert log.next_offset(P0) == 1000
    assert disk.syncs - before <= 30


@pytest.mark.feature("T03")
async def test_a_lone_append_is_not_kept_waiting(logs: OpenLogs) -> None:
    log = await logs.log(Slow(0.0))
    waits = []
    for _ in range(20):
        started = time.monotonic()
        await log.append(run(b"x"))
        waits.append(time.monotonic() - started)
    assert min(waits) < 0.02


@pytest.mark.feature("T03")
async def test_a_sync_delay_joins_appends_and_adds_no_other_latency(logs: OpenLogs) -> None:
    disk = Slow()
    log = await logs.log(disk, settings=LogSettings(sync_delay_seconds=2.0))
    before = disk.syncs
    started = time.monotonic()
    futures = [log.append(run(b"0"))]
    await asyncio.sleep(0.03)
    futures.append(log.append(run(b"1")))
    assert not futures[0].done()
    await asyncio.gather(*futures)
    assert 1.9 <= time.monotonic() - started < 30
    assert disk.syncs - before == 1


async def test_a_cancelled_append_is_stored_and_affects_no_other(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate)
    gate.shut()
    futures = [log.append(run(b"%d" % n)) for n in range(3)]
    await eventually(gate.waiting.is_set)
    futures[1].cancel()
    gate.open()
    assert (await futures[2]).first == 2
    assert await payloads_from(log) == {0: b"0", 1: b"1", 2: b"2"}


# -- limits


@pytest.mark.feature("T31")
async def test_a_full_queue_refuses_with_the_name_of_its_limit_and_nothing_happens(
    logs: OpenLogs,
) -> None:
    gate = Gate()
    log = await logs.log(gate, settings=LogSettings(pending_bytes_max=1000))
    gate.shut()
    first = log.append(run(bytes(599)))
    with pytest.raises(AppendQueueFull) as caught:
        log.append(run(bytes(400)))
    assert str(caught.value) == (
        "topic default/default/t: 600 bytes wait to be synced, the limit pending_bytes_max is "
        "1000; retry later"
    )
    second = log.append(run(bytes(399)))
    assert log.status().pending_bytes == 1000
    gate.open()
    assert [await first, await second] == [(0, 1), (1, 2)]
    assert log.status().pending_bytes == 0


@pytest.mark.feature("T31")
async def test_a_run_larger_than_the_queue_is_taken_when_the_queue_is_empty(
    logs: OpenLogs,
) -> None:
    log = await logs.log(settings=LogSettings(pending_bytes_max=1000))
    assert await log.append(run(bytes(5000))) == (0, 1)


@pytest.mark.feature("T31")
async def test_room_waits_until_a_run_of_that_size_is_taken(logs: OpenLogs) -> None:
    gate = Gate()
    log = await logs.log(gate, settings=LogSettings(pending_bytes_max=1000))
    gate.shut()
    first = log.append(run(bytes(699)))
    await asyncio.wait_for(log.room(300), 1)
    waiting = asyncio.create_task(log.room(301))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    gate.open()
    await asyncio.wait_for(waiting, 5)
    assert first.done()
    assert await log.append(run(bytes(300))) == (1, 2)


@pytest.mark.feature("T31")
async def test_a_publish_that_waits_for_room_succeeds_without_busy_waiting(
    logs: OpenLogs,
) -> None:
    log = await logs.log(Slow(0.002), settings=LogSettings(pending_bytes_max=1000))
    refusals = 0

    async def publisher(size: int) -> None:
        nonlocal refusals
        while True:
            try:
                future = log.append(run(bytes(size - 1)))
            except AppendQueueFull:
                refusals += 1
                assert refusals < 5000
                await log.room(size)
            else:
                await future
                return

    await asyncio.wait_for(asyncio.gather(*(publisher(n) for n in range(400, 500, 5))), 20)
    assert log.next_offset(P0) == 20


async def test_a_refused_run_changes_nothing(logs: OpenLogs) -> None:
    log = await logs.log()
    with pytest.raises(RunInvalid):
        log.append(Run(b"s", []))
    with pytest.raises(RunInvalid):
        log.append(Run(b"s", [b"a"], [b"h", b"h"]))
    with pytest.raises(OverflowError):
        log.append(Run(b"s", [b"a"], timestamps=[1 << 70]))
    assert await log.append(run(b"a")) == (0, 1)
    assert log.status().pending_bytes == 0


# -- time


async def test_timestamps_never_decrease_over_groups_clocks_and_restarts(logs: OpenLogs) -> None:
    clock = Hand(1_000_000)
    log = await logs.log(clock=clock)
    await log.append(run(b"0"))
    clock.us = 900_000
    await log.append(run(b"1"))
    await log.append(Run(b"s", [b"2", b"3"], timestamps=[1_500_000, 2_000_000]))
    await log.append(run(b"4"))
    log = await logs.log(clock=clock)
    await log.append(run(b"5"))
    clock.us = 3_000_000
    await log.append(run(b"6"))
    stamps = [stamp for batch in await batches_from(log) for stamp in stamps_in(batch)]
    assert stamps == [1_000_000, 1_000_000, 1_500_000, 2_000_000, 2_000_000, 2_000_000, 3_000_000]


# -- rotation


@pytest.mark.feature("T06")
async def test_a_file_is_finished_before_it_would_pass_its_size(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(file_bytes_max=3000))
    for n in range(40):
        await log.append(run(b"%03d" % n * 100))
    names = [path.name for path in logs.wal_files()]
    assert len(names) > 4
    assert all(path.stat().st_size < 3600 for path in logs.wal_files())
    assert await payloads_from(log) == {n: b"%03d" % n * 100 for n in range(40)}
    numbers = 0
    for sequence, path in enumerate(logs.wal_files()):
        assert path.name == f"wal-{sequence:010d}-{numbers:016d}.log"
        numbers += len(frames(logs, sequence))


@pytest.mark.feature("T06")
async def test_a_sealed_file_starts_with_the_state_and_ends_with_a_seal(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    await log.append(run(b"a"))
    log.rotate()
    await log.append(run(b"b"))
    start = (Kind.CHECKPOINT, Flag.START, 0)
    batch = (Kind.BATCH, Flag.SAME_SUBJECT, 1)
    assert frames(logs, 0) == [start, batch, (Kind.CHECKPOINT, Flag.SEAL, 0)]
    assert frames(logs, 1) == [start, batch]


@pytest.mark.feature("T06")
async def test_an_old_file_is_rotated_also_without_an_append(logs: OpenLogs) -> None:
    clock = Hand()
    log = await logs.log(clock=clock, settings=LogSettings(file_seconds_max=60))
    await log.append(run(b"a"))
    clock.pass_seconds(59)
    log.tick(clock.monotonic_ns())
    await asyncio.sleep(0.02)
    assert len(logs.wal_files()) == 1
    clock.pass_seconds(2)
    log.tick(clock.monotonic_ns())
    await eventually(lambda: len(logs.wal_files()) == 2)
    clock.pass_seconds(600)
    log.tick(clock.monotonic_ns())
    await asyncio.sleep(0.02)
    assert len(logs.wal_files()) == 2
    assert await payloads_from(log) == {0: b"a"}


@pytest.mark.feature("T06")
async def test_an_empty_file_is_not_rotated(logs: OpenLogs) -> None:
    log = await logs.log()
    log.rotate()
    await asyncio.sleep(0.02)
    assert len(logs.wal_files()) == 1
    await log.append(run(b"a"))
    assert len(logs.wal_files()) == 1


@pytest.mark.feature("T06")
async def test_settlements_and_deletions_fill_a_file_too(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(file_bytes_max=2000))
    for _ in range(30):
        await log.settle(bytes(200), 1)
    assert len(logs.wal_files()) > 2
    assert all(path.stat().st_size < 2600 for path in logs.wal_files())


# -- checkpoints


@pytest.mark.feature("T07")
async def test_a_checkpoint_is_written_when_idle_and_only_once(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=0.02))
    await log.append(run(b"a"))
    await eventually(lambda: len(frames(logs)) == 3)
    await asyncio.sleep(0.1)
    start, batch = (Kind.CHECKPOINT, Flag.START, 0), (Kind.BATCH, Flag.SAME_SUBJECT, 1)
    assert frames(logs) == [start, batch, (Kind.CHECKPOINT, 0, 0)]
    await log.append(run(b"b"))
    await eventually(lambda: len(frames(logs)) == 5)


@pytest.mark.feature("T07")
async def test_no_checkpoint_is_written_while_messages_are_appended(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=0.1))
    for _ in range(20):
        await log.append(run(b"a"))
        await asyncio.sleep(0.005)
    assert [kind for kind, _, _ in frames(logs)].count(Kind.CHECKPOINT) == 1


@pytest.mark.feature("T07")
async def test_the_last_frame_of_a_closed_log_marks_the_close(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    await log.append(run(b"a"))
    await logs.close()
    assert frames(logs)[-1] == (Kind.CHECKPOINT, Flag.CLOSE, 0)


@pytest.mark.feature("T07")
async def test_a_checkpoint_makes_damage_before_it_corrupt_and_not_uncertain(
    logs: OpenLogs,
) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=0.01))
    await log.append(run(b"a" * 50))
    await eventually(lambda: len(frames(logs)) == 3)
    copy = logs.crash()
    (path,) = copy.wal_files()
    data = bytearray(path.read_bytes())
    data[data.index(b"a" * 50)] ^= 1
    path.write_bytes(data)
    damaged = await copy.log()
    assert damaged.status().missing != ()
    assert await damaged.append(run(b"b")) == (1, 2)


async def test_flush_waits_for_everything_appended(logs: OpenLogs) -> None:
    gate = Gate()
    log: Log = await logs.log(gate)
    gate.shut()
    first = log.append(run(b"a"))
    await eventually(gate.waiting.is_set)
    second = log.append(run(b"b"))
    flushing = asyncio.create_task(log.writer.flush())
    await asyncio.sleep(0.02)
    assert not flushing.done()
    gate.open()
    await flushing
    assert first.done()
    assert second.done()


# -- what does not fit a frame


@pytest.mark.parametrize("rows", [1 << 32, 1 << 63])
async def test_a_link_with_more_rows_than_a_frame_allows_is_refused_without_effect(
    logs: OpenLogs, rows: int
) -> None:
    log = await logs.log()
    before = log.append(run(b"0"))
    with pytest.raises(RunInvalid):
        await asyncio.wait_for(log.link("app", 1, {P0: [ObjectRef("key", rows, 1, 1)]}), 30)
    assert await asyncio.wait_for(before, 30) == (0, 1)
    assert await asyncio.wait_for(log.append(run(b"1")), 30) == (1, 2)


async def test_an_invalid_partition_is_refused_without_effect(logs: OpenLogs) -> None:
    log = await logs.log()
    before = log.append(run(b"0"))
    for partition in (-1, 1 << 40):
        with pytest.raises(RunInvalid):
            await asyncio.wait_for(log.skip(PartitionId(partition), Offset(5), "test"), 30)
    assert await asyncio.wait_for(before, 30) == (0, 1)
    assert await asyncio.wait_for(log.append(run(b"1")), 30) == (1, 2)
