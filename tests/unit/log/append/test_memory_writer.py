"""Topics with durability `memory`: offsets and reads like any other, and no disk."""

import asyncio

import pytest

from penstock.formats.bodies import ObjectRef
from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.reading.wal_reader import InObjects
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import LogClosed, OffsetGone, RunInvalid
from penstock.model.resources import Durability
from penstock.model.run import Run
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.log_reader import LogReader
from tests.unit.log.conftest import TOPIC, OpenLogs
from tests.unit.log.disks import Faulty, Hand
from tests.unit.log.messages import (
    P0,
    Message,
    batches_from,
    messages_from,
    payloads_from,
    stamps_in,
)
from tests.unit.log.observer import Recorder

P1 = PartitionId(1)


def run(*payloads: bytes, partition: int = 0) -> Run:
    return Run(b"s", list(payloads), partition=PartitionId(partition))


async def in_memory(logs: OpenLogs, clock: Hand | None = None, cache_bytes: int = 1 << 20) -> Log:
    limits = SharedLimits(cache_bytes_max=cache_bytes, reserve_bytes=4096)
    opened = await logs(Faulty(), clock, limits)
    return await opened.create(TOPIC, Durability.MEMORY)


@pytest.mark.feature("T24")
async def test_messages_have_offsets_and_are_read_from_the_tail(logs: OpenLogs) -> None:
    log = await in_memory(logs)
    assert await log.append(run(b"a", b"b")) == (0, 2)
    assert await log.append(run(b"x", partition=1)) == (0, 1)
    assigned = await asyncio.gather(*(log.append(run(b"%d" % n)) for n in range(2, 5)))
    assert assigned == [(2, 3), (3, 4), (4, 5)]
    assert await messages_from(log) == [
        Message(n, b"s", b"", payload) for n, payload in enumerate([b"a", b"b", b"2", b"3", b"4"])
    ]
    assert await log.read(P0, Offset(5)) == AtHead(Offset(5))
    assert await payloads_from(log, partition=1) == {0: b"x"}


@pytest.mark.feature("T24")
async def test_nothing_is_written_to_disk(logs: OpenLogs) -> None:
    log = await in_memory(logs)
    await log.append(run(b"a"))
    await log.delete(P0, [0])
    await log.settle(b"x", 1)
    log.rotate()
    log.tick(1 << 62)
    await log.room()
    status = log.status()
    assert (status.files, status.file_bytes, status.pending_bytes) == (0, 0, 0)
    await logs.close()
    assert sorted(p.name for p in logs.directory.rglob("*") if p.is_file()) == ["reserve"]


@pytest.mark.feature("T24")
async def test_evicted_messages_are_gone_and_a_reader_continues_after_them(
    logs: OpenLogs,
) -> None:
    log = await in_memory(logs, cache_bytes=10_000)
    for n in range(20):
        await log.append(run(b"%d" % n * 500))
    first = log._tail.first(P0)
    assert first is not None
    assert first > 0
    assert await log.read(P0, Offset(0)) == Gone(first)
    reader = LogReader(log, P0, Offset(0))
    with pytest.raises(OffsetGone) as caught:
        await anext(reader)
    assert caught.value.earliest == first
    assert list(await payloads_from(log)) == list(range(first, 20))


@pytest.mark.feature("T24")
async def test_everything_is_gone_when_the_cache_is_empty_but_offsets_go_on(
    logs: OpenLogs,
) -> None:
    log = await in_memory(logs, cache_bytes=0)
    await log.append(run(b"a", b"b"))
    assert await log.read(P0, Offset(0)) == Gone(Offset(2))
    assert await log.append(run(b"c")) == (2, 3)


@pytest.mark.feature("T24", "T35")
async def test_deletions_and_purges_work_as_on_disk(logs: OpenLogs) -> None:
    log = await in_memory(logs)
    await log.append(run(*(b"%d" % n for n in range(10))))
    await log.delete(P0, [3, 9])
    await log.purge(P0, Offset(2))
    assert await payloads_from(log) == {n: b"%d" % n for n in (2, 4, 5, 6, 7, 8)}
    assert await log.read(P0, Offset(0)) == Gone(Offset(2))
    await log.skip(P0, Offset(20), "test")
    assert await log.append(run(b"20")) == (20, 21)
    assert (await payloads_from(log))[20] == b"20"


async def test_a_message_is_seen_by_a_reader_that_waits(logs: OpenLogs) -> None:
    log = await in_memory(logs)
    waiting = asyncio.create_task(anext(LogReader(log, P0, Offset(0))))
    await asyncio.sleep(0)
    await log.append(run(b"a"))
    assert (await asyncio.wait_for(waiting, 30)).messages == 1


async def test_rows_in_objects_never_send_a_reader_back(logs: OpenLogs) -> None:
    log = await in_memory(logs, cache_bytes=10_000)
    for n in range(20):
        await log.append(run(b"%d" % n * 500))
    assert await log.link("app", 1, {P0: [ObjectRef("key", 3, 1, 1)]}) == {0: (20, 23)}
    answer = await log.read(P0, Offset(21))
    assert isinstance(answer, InObjects) or answer == Gone(Offset(23))
    await log.append(run(b"23"))
    answer = await log.read(P0, Offset(21))
    assert isinstance(answer, InObjects) or answer == Gone(Offset(23))


async def test_times_are_found_in_the_tail(logs: OpenLogs) -> None:
    clock = Hand(1000)
    log = await in_memory(logs, clock)
    for when in (1000, 2000, 2000, 3000):
        clock.us = when
        await log.append(run(b"x", b"y"))
    clock.us = 500
    await log.append(Run(b"s", [b"z"], timestamps=[100]))
    times = [0, 1000, 1001, 2000, 2001, 3001]
    found = [await log.offset_at(P0, Microseconds(when)) for when in times]
    assert found == [0, 0, 2, 2, 6, 9]
    stamps = [stamp for batch in await batches_from(log) for stamp in stamps_in(batch)]
    assert stamps == sorted(stamps)
    assert await log.offset_at(P1, Microseconds(0)) == 0


async def test_a_refused_run_changes_nothing(logs: OpenLogs) -> None:
    log = await in_memory(logs)
    with pytest.raises(RunInvalid):
        log.append(Run(b"s", []))
    with pytest.raises(OverflowError):
        log.append(Run(b"s", [b"a"], timestamps=[1 << 70]))
    assert await log.append(run(b"a")) == (0, 1)


async def test_appends_before_the_close_are_acknowledged(logs: OpenLogs) -> None:
    log = await in_memory(logs)
    future = log.append(run(b"a"))
    await logs.close()
    assert future.done()
    with pytest.raises(LogClosed):
        log.append(run(b"b"))


@pytest.mark.feature("T24")
async def test_the_start_moves_with_the_messages_that_leave_the_cache(logs: OpenLogs) -> None:
    log = await in_memory(logs, cache_bytes=4000)
    observer = Recorder(set)
    log.observe(observer)
    for number in range(20):
        await log.append(run(b"%d" % number * 200))
        await log.append(run(b"x", partition=1))
    start = log.start_offset(P0)
    assert 0 < start < 20
    assert log.live_count(P0) == 20 - start
    assert list(await payloads_from(log, start)) == list(range(start, 20))
    assert await log.read(P0, Offset(0)) == Gone(start)
    assert {0} in observer.commits
    await log.skip(P0, Offset(50), "test")
    await log.append(run(b"behind a hole"))
    assert (log.start_offset(P0), log.live_count(P0)) == (20, 1)
    assert await log.read(P0, Offset(0)) == Gone(Offset(50))
