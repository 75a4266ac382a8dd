"""The law of readers: from any start, every live offset is read once and in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.formats.bodies import ObjectRef
from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.reading.lookup import READ_BYTES
from penstock.log.reading.waiters import Waiters
from penstock.log.reading.wal_reader import InObjects
from penstock.log.settings import LogSettings
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import NotInLog, OffsetGone
from penstock.model.run import Run
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.log_reader import LogReader
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.messages import P0, Message, eventually, in_batch

SMALL = LogSettings(file_bytes_max=3000, idle_seconds=0.005)
LITTLE_CACHE = SharedLimits(cache_bytes_max=6000, reserve_bytes=4096)


def payload(offset: int) -> bytes:
    return b"%06d" % offset * (1 + offset % 13)


async def append(log: Log, count: int) -> None:
    first = log.writer.next_offset(P0)
    payloads = [payload(n) for n in range(first, first + count)]
    await log.append(Run(b"s", payloads))


class Follower:
    """A reader with what it has seen, and where a purge overtook it."""

    def __init__(self, log: Log, start: int, bytes_max: int = READ_BYTES) -> None:
        self.start = start
        self.reader = LogReader(log, P0, Offset(start), bytes_max)
        self.seen: list[Message] = []
        self.overtaken: list[tuple[int, int]] = []

    async def follow(self, pace: Callable[[], Awaitable[None]] | None = None) -> None:
        while True:
            try:
                batch = await anext(self.reader)
            except OffsetGone as gone:
                self.overtaken.append((self.reader.next_offset, gone.earliest))
                self.reader.next_offset = gone.earliest
            except StopAsyncIteration:
                return
            else:
                assert batch.messages
                self.seen += in_batch(batch)
                if pace is not None:
                    await pace()

    def has_reached(self, offset: int) -> bool:
        return self.reader.next_offset >= offset

    def check(self, appended: int, gaps: set[int], deleted: set[int], purged: int) -> None:
        """Every offset once and in order; only what was deleted at some time may be left out."""
        offsets = [message.offset for message in self.seen]
        assert offsets == sorted(set(offsets))
        assert all(m.payload == payload(m.offset) for m in self.seen)
        assert all(before < earliest for before, earliest in self.overtaken)
        everything = set(range(self.start, appended)) - gaps
        left_out = everything - set(offsets)
        assert set(offsets) <= everything
        assert left_out <= deleted | set(range(purged))


class Schedule:
    """A log, what must be in it, and readers that take a step now and then."""

    def __init__(self, logs: OpenLogs, cursors: list[int]) -> None:
        self._logs = logs
        self.live: dict[int, bytes] = {}
        self.start = 0
        self.begun = list(cursors)
        self.cursors = list(cursors)
        self.seen: list[list[int]] = [[] for _ in cursors]

    async def restart(self, _: int = 0) -> None:
        self.log = await self._logs.log(limits=LITTLE_CACHE, settings=SMALL)

    async def append(self, count: int) -> None:
        first = int(self.log.next_offset(P0))
        await append(self.log, count)
        self.live |= {n: payload(n) for n in range(first, first + count)}

    async def rotate(self, _: int) -> None:
        self.log.rotate()
        await self.log.writer.flush()

    async def evict(self, _: int) -> None:
        self.log._tail.clear()

    async def delete(self, offset: int) -> None:
        await self.log.delete(P0, [offset, offset + 1])
        self.live = {n: v for n, v in self.live.items() if n not in (offset, offset + 1)}

    async def purge(self, offset: int) -> None:
        await self.log.purge(P0, Offset(offset))
        self.start = max(self.start, min(offset, int(self.log.next_offset(P0))))
        self.live = {n: value for n, value in self.live.items() if n >= self.start}

    async def skip(self, count: int) -> None:
        await self.log.skip(P0, Offset(self.log.next_offset(P0) + count), "test")
        if not self.live:
            # A gap in a partition without messages moves its start.
            self.start = int(self.log.next_offset(P0))

    async def read(self, choice: int) -> None:
        """One reader takes up to three batches."""
        await self.drain(choice % len(self.cursors), choice // len(self.cursors))

    async def drain(self, number: int, batches: int) -> None:
        reader = LogReader(self.log, P0, Offset(self.cursors[number]), bytes_max=1)
        for _ in range(batches):
            if not any(offset >= self.cursors[number] for offset in self.live):
                return
            if self.cursors[number] < self.start:
                with pytest.raises(OffsetGone) as caught:
                    await asyncio.wait_for(anext(reader), 5)
                earliest = min((o for o in self.live if o >= self.start), default=self.start)
                assert caught.value.earliest == earliest
                reader.next_offset = caught.value.earliest
            else:
                for message in in_batch(await asyncio.wait_for(anext(reader), 5)):
                    assert message.payload == self.live[message.offset]
                    self.seen[number].append(message.offset)
            self.cursors[number] = int(reader.next_offset)


STEPS: list[tuple[str, st.SearchStrategy[int]]] = [
    ("append", st.integers(1, 8)),
    ("append", st.integers(1, 8)),
    ("rotate", st.just(0)),
    ("evict", st.just(0)),
    ("delete", st.integers(0, 60)),
    ("purge", st.integers(0, 40)),
    ("skip", st.integers(1, 5)),
    ("read", st.integers(0, 11)),
    ("read", st.integers(0, 11)),
    ("restart", st.just(0)),
]
OPERATIONS = st.lists(st.one_of(*(st.tuples(st.just(n), v) for n, v in STEPS)), max_size=30)
CURSORS = st.lists(st.integers(0, 30), min_size=3, max_size=3)


@pytest.mark.feature("T09", "T10")
@given(CURSORS, OPERATIONS)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_start_yields_every_offset_once_in_order_through_any_schedule(
    logs: OpenLogs, cursors: list[int], operations: list[tuple[str, int]]
) -> None:
    """Step by step, so that a failing schedule is found again."""
    await logs.forget()
    schedule = Schedule(logs, cursors)
    await schedule.restart()
    for operation, number in operations:
        await getattr(schedule, operation)(number)
    for number, begun in enumerate(schedule.begun):
        await schedule.drain(number, 1000)
        seen = schedule.seen[number]
        assert seen == sorted(set(seen))
        assert {n for n in schedule.live if n >= begun} <= set(seen)


class Meddler:
    """Does to a log, at random, all that must not disturb its readers."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        self._log, self._chance = log, chance
        self.gaps: set[int] = set()
        self.deleted: set[int] = set()
        self.purged = 0

    async def meddle(self, until: int) -> None:
        while (head := int(self._log.next_offset(P0))) < until:
            await asyncio.sleep(self._chance.random() * 0.004)
            step = self._chance.choice(
                [self.rotate, self.evict, self.delete, self.purge, self.skip]
            )
            await step(max(head, 1))

    async def rotate(self, _: int) -> None:
        self._log.rotate()

    async def evict(self, _: int) -> None:
        self._log._tail.clear()

    async def delete(self, head: int) -> None:
        chosen = {self._chance.randrange(head) for _ in range(5)}
        self.deleted |= chosen
        await self._log.delete(P0, chosen)

    async def purge(self, head: int) -> None:
        self.purged = max(self.purged, self._chance.randrange(head) // 3)
        await self._log.purge(P0, Offset(self.purged))

    async def skip(self, _: int) -> None:
        first = int(self._log.writer.next_offset(P0))
        self.gaps |= set(range(first, first + 3))
        await self._log.skip(P0, Offset(first + 3), "test")


@pytest.mark.feature("T09", "T10")
async def test_readers_see_every_offset_once_during_concurrent_changes(
    logs: OpenLogs,
) -> None:
    log = await logs.log(limits=LITTLE_CACHE, settings=SMALL)
    chance = random.Random(7)
    total = 10_000

    async def write() -> None:
        while log.writer.next_offset(P0) < total:
            await append(log, chance.randint(1, 20))

    async def pace() -> None:
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.003]))

    followers = [Follower(log, start, size) for start in (0, 1, 500, 9_999) for size in (1, 4096)]
    tasks = [asyncio.create_task(follower.follow(pace)) for follower in followers]
    meddler = Meddler(log, chance)
    await asyncio.gather(write(), meddler.meddle(total))
    # A reader at the head sleeps over gaps: only a message wakes it.
    await append(log, 1)
    head = int(log.next_offset(P0))
    for follower in followers:
        await eventually(partial(follower.has_reached, head), 20)
    await logs.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    for follower in followers:
        follower.check(head, meddler.gaps, meddler.deleted, meddler.purged)


@pytest.mark.feature("T10")
async def test_a_reader_continues_after_a_restart_from_its_offset(logs: OpenLogs) -> None:
    log = await logs.log(settings=SMALL)
    seen: list[int] = []
    cursor = Offset(0)
    for _ in range(4):
        for _ in range(10):
            await append(log, 5)
        reader = LogReader(log, P0, cursor, bytes_max=1)
        while reader.next_offset < log.next_offset(P0) - 7:
            seen += [message.offset for message in in_batch(await anext(reader))]
        cursor = reader.next_offset
        log = await logs.log(settings=SMALL)
    reader = LogReader(log, P0, cursor)
    while reader.next_offset < 200:
        seen += [message.offset for message in in_batch(await anext(reader))]
    assert seen == list(range(200))


@pytest.mark.feature("T09")
async def test_a_reader_at_the_head_wakes_with_the_next_message_of_its_partition(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    mine, other = LogReader(log, P0, Offset(0)), LogReader(log, PartitionId(1), Offset(0))
    waiting = [asyncio.create_task(anext(mine)), asyncio.create_task(anext(other))]
    await asyncio.sleep(0.02)
    await log.append(Run(b"s", [b"x"]))
    batch = await asyncio.wait_for(waiting[0], 30)
    assert in_batch(batch) == [Message(0, b"s", b"", b"x")]
    assert not waiting[1].done()
    await log.append(Run(b"s", [b"y"], partition=PartitionId(1)))
    assert (await asyncio.wait_for(waiting[1], 30)).messages == 1
    assert len(log.waiters) == 0


@pytest.mark.feature("T09")
async def test_a_reader_that_starts_ahead_waits_for_its_offset(logs: OpenLogs) -> None:
    log = await logs.log()
    await append(log, 3)
    reader = LogReader(log, P0, Offset(5))
    waiting = asyncio.create_task(anext(reader))
    await append(log, 1)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await append(log, 3)
    assert [m.offset for m in in_batch(await asyncio.wait_for(waiting, 30))] == [5, 6]


@pytest.mark.feature("T09", "T35")
async def test_messages_deleted_after_the_read_are_left_out(logs: OpenLogs) -> None:
    log = await logs.log(settings=SMALL)
    for _ in range(3):
        await log.append(Run(b"s", [b"x" * 40_000] * 2))
    log._tail.clear()
    reader = LogReader(log, P0, Offset(0))
    assert [m.offset for m in in_batch(await anext(reader))] == [0, 1]
    assert len(reader._ready) == 0 or reader.next_offset == 2
    await log.delete(P0, [3])
    await log.purge(P0, Offset(3))
    with pytest.raises(OffsetGone) as caught:
        await anext(reader)
    assert (caught.value.offset, caught.value.earliest) == (2, 4)
    reader.next_offset = Offset(4)
    assert [m.offset for m in in_batch(await anext(reader))] == [4, 5]


@pytest.mark.feature("T35")
async def test_a_purge_of_messages_with_timestamps_is_reported_to_the_reader(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    for n in range(4):
        await log.append(Run(b"s", [b"x" * 70_000], timestamps=[n]))
    reader = LogReader(log, P0, Offset(0))
    assert (await anext(reader)).next_offset == 1
    assert reader._ready
    await log.purge(P0, Offset(3))
    overtaken: list[tuple[int, int]] = []
    seen: list[int] = []
    while not seen:
        try:
            seen += [m.offset for m in in_batch(await asyncio.wait_for(anext(reader), 2))]
        except OffsetGone as gone:
            overtaken.append((gone.offset, gone.earliest))
            reader.next_offset = gone.earliest
    assert (seen, [earliest for _, earliest in overtaken]) == ([3], [3])


@pytest.mark.feature("T09")
async def test_rows_in_objects_are_read_from_the_object_source(logs: OpenLogs) -> None:
    log = await logs.log()
    await append(log, 1)
    await log.link("app", 1, {P0: [ObjectRef("key", 3, 1, 1)]})
    await log.append(Run(b"s", [payload(4)]))
    requests: list[tuple[InObjects, int]] = []

    async def objects(where: InObjects, offset: Offset) -> list[Batch]:
        requests.append((where, offset))
        column = pa.array([payload(n) for n in range(1, 4)], pa.binary())
        content = Columns(b"s", column)
        return [Batch(P0, Offset(1), 3, Microseconds(0), content)]

    reader = LogReader(log, P0, Offset(0), objects=objects)
    seen: list[Message] = []
    while reader.next_offset < 5:
        seen += in_batch(await anext(reader))
    assert [(m.offset, m.payload) for m in seen] == [(n, payload(n)) for n in range(5)]
    ((where, offset),) = requests
    assert (where.first_offset, where.next_offset, offset) == (1, 4, 1)
    assert where.objects == (ObjectRef("key", 3, 1, 1),)
    late = LogReader(log, P0, Offset(2), objects=objects)
    assert [m.offset for m in in_batch(await anext(late))] == [2, 3]
    with pytest.raises(NotInLog) as caught:
        await anext(LogReader(log, P0, Offset(2)))
    assert (caught.value.first, caught.value.next) == (1, 4)


# -- slow and far behind


@pytest.mark.feature("T11")
async def test_a_slow_reader_holds_up_neither_writers_nor_other_readers(logs: OpenLogs) -> None:
    log = await logs.log(limits=LITTLE_CACHE, settings=SMALL)
    slow, fast = Follower(log, 0, 1), Follower(log, 0)
    stuck = asyncio.Event()

    async def never() -> None:
        await stuck.wait()

    slow_task = asyncio.create_task(slow.follow(never))
    fast_task = asyncio.create_task(fast.follow())
    for _ in range(100):
        await append(log, 10)
    await eventually(lambda: fast.reader.next_offset == 1000)
    assert slow.reader.next_offset < 1000
    stuck.set()
    await eventually(lambda: slow.reader.next_offset == 1000)
    await logs.close()
    await asyncio.gather(slow_task, fast_task)
    for follower in (slow, fast):
        follower.check(1000, set(), set(), 0)


def held(reader: LogReader) -> int:
    return sum(batch.nbytes for batch in reader._ready)


@pytest.mark.feature("T11")
async def test_memory_stays_bounded_for_a_reader_with_a_lag_of_a_million_messages(
    logs: OpenLogs,
) -> None:
    limits = SharedLimits(cache_bytes_max=1 << 20, reserve_bytes=4096)
    log = await logs.log(limits=limits, settings=LogSettings(file_bytes_max=8 << 20))
    total, size = 1_000_000, 10_000
    for first in range(0, total, size):
        await log.append(Run(b"s", [b"%08d" % n for n in range(first, first + size)]))
    behind = LogReader(log, P0, Offset(0))
    most, next_offset, sizes = 0, 0, []
    while behind.next_offset < total:
        batch = await anext(behind)
        assert batch.first_offset == next_offset
        next_offset = int(batch.next_offset)
        most = max(most, held(behind) + batch.nbytes)
        sizes.append(batch.messages)
        assert log._engine.cache.size_bytes <= 1 << 20
    assert sum(sizes) == total
    assert most < 4 * READ_BYTES
    assert len(log.files._reader._finder._tables) <= 16


async def test_a_wake_up_completes_every_waiter_of_its_partitions_and_forgets_them() -> None:
    waiters = Waiters()
    with (
        waiters.arrival(0) as one,
        waiters.arrival(0) as two,
        waiters.arrival(1) as other,
        waiters.arrival(2) as third,
    ):
        assert len(waiters) == 4
        for partition in (0, 2, 9):
            waiters.wake(partition)
        assert [f.done() for f in (one, two, other, third)] == [True, True, False, True]
        assert len(waiters) == 1
        await one


async def test_a_commit_wakes_only_waiters_for_offsets_before_the_new_end() -> None:
    waiters = Waiters()
    with (
        waiters.arrival(0, 5) as next_message,
        waiters.arrival(0, 6) as later,
        waiters.arrival(0, 1_000_000) as far,
    ):
        waiters.wake(0, 6)
        assert [f.done() for f in (next_message, later, far)] == [True, False, False]
        waiters.wake_all()
        assert later.done()
        assert far.done()
        assert len(waiters) == 0


async def test_a_waiter_leaves_in_any_case() -> None:
    waiters = Waiters()
    with pytest.raises(ZeroDivisionError), waiters.arrival(0):
        raise ZeroDivisionError
    assert len(waiters) == 0

    async def wait() -> None:
        with waiters.arrival(3) as arrival:
            await arrival

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert len(waiters) == 1
    task.cancel()
    await asyncio.wait([task])
    assert len(waiters) == 0


async def test_a_wake_up_between_registering_and_waiting_is_not_lost() -> None:
    waiters = Waiters()
    with waiters.arrival(0) as arrival:
        waiters.wake(0)
        await asyncio.wait_for(arrival, 1)


async def test_closing_wakes_everybody() -> None:
    waiters = Waiters()
    with waiters.arrival(0) as one, waiters.arrival(7) as two:
        waiters.wake_all()
        assert one.done()
        assert two.done()
    assert len(waiters) == 0


async def test_a_cancelled_waiter_does_not_disturb_a_wake_up() -> None:
    waiters = Waiters()
    with waiters.arrival(0) as one, waiters.arrival(0) as two:
        one.cancel()
        waiters.wake(0)
        assert two.done()
