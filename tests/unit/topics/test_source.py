"""All implementations of Source have its behaviour."""

from __future__ import annotations

import asyncio
import inspect
import random

import pytest

from penstock.log import Log
from penstock.model import names
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import (
    DataDamaged,
    LogClosed,
    NotInLog,
    OwnedElsewhere,
    ResourceUnknown,
)
from penstock.model.units import Offset
from penstock.objects import ObjectMissing
from penstock.tiers.tiers import Tiers
from penstock.topics import Fetcher, FetchState, LocalSource, OpenTopic, Source, TopicPartition
from penstock.topics.fetch_state import TIMEOUT_MS_MAX
from penstock.topics.remote import RemoteSource
from tests.broker.storage import TOPIC, World, drop_wal, fill, filled, link_fill, rows_of
from tests.broker.topics import (
    BY_REGION,
    P0,
    Served,
    memory,
    payloads,
    push,
    read,
    region,
    serve,
    spec,
)
from tests.unit.log.messages import eventually

CALLS = [name for name in vars(Source) if not name.startswith("_")]


@pytest.mark.parametrize("implementation", [LocalSource, RemoteSource])
@pytest.mark.parametrize("call", CALLS)
def test_every_source_has_the_signatures_of_the_protocol(implementation: type, call: str) -> None:
    wanted = inspect.signature(getattr(Source, call)).parameters
    assert inspect.signature(getattr(implementation, call)).parameters == wanted


TOTAL = 400


async def cold(served: Served, opened: OpenTopic) -> None:
    """Leave everything in objects only."""
    assert opened.tier is not None
    await served.broker.tiers.flush(opened.topic.name)
    opened.log._tail.clear()
    await drop_wal(opened.tier)


@pytest.mark.feature("F01")
async def test_messages_are_read_from_wherever_they_lie(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    await fill(opened.log, 30)
    await cold(served, opened)
    await link_fill(world, opened.tier, 1, {0: [4, 4]})
    await fill(opened.log, 10)
    opened.log._tail.clear()
    await fill(opened.log, 10)
    assert await payloads(served.source, opened.topic) == filled(range(58))


@pytest.mark.feature("F04")
@pytest.mark.parametrize("where", ["cache", "files", "objects"])
async def test_an_offset_in_the_middle_is_honoured(world: World, where: str) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 30, run=10)
    if where == "files":
        opened.log._tail.clear()
    if where == "objects":
        await cold(served, opened)
    for offset in (0, 5, 17, 29):
        assert await payloads(served.source, opened.topic, offset) == filled(range(offset, 30))


async def test_reads_at_the_head_and_before_the_start_return_no_batch(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert await read(served.source, opened.topic) == AtHead(Offset(0))
    await fill(opened.log, 10)
    assert await read(served.source, opened.topic, 10) == AtHead(Offset(10))
    assert await read(served.source, opened.topic, 1000) == AtHead(Offset(10))
    await opened.log.purge(P0, Offset(4))
    await opened.log.delete(P0, [4, 5])
    assert await read(served.source, opened.topic, 3) == Gone(Offset(6))
    assert await payloads(served.source, opened.topic, 4) == filled(range(6, 10))


async def test_deleted_messages_of_objects_are_left_out(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 30)
    await cold(served, opened)
    await opened.log.delete(P0, [0, 7, 8, 29])
    alive = [offset for offset in range(30) if offset not in (0, 7, 8, 29)]
    assert await payloads(served.source, opened.topic) == filled(alive)


async def test_a_purge_while_an_object_is_read_is_honoured(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 30)
    await cold(served, opened)
    steps = served.broker.use_steps()

    async def purge(name: str, key: str) -> None:
        steps.wait = None
        await opened.log.purge(P0, Offset(10))

    steps.wait = purge
    assert await read(served.source, opened.topic, 5) == Gone(Offset(10))


@pytest.mark.feature("T24")
async def test_messages_evicted_from_a_memory_topic_are_gone(world: World) -> None:
    served = await serve(world)
    opened = await served.create(memory("m"))
    await fill(opened.log, 10)
    assert await payloads(served.source, opened.topic) == filled(range(10))
    opened.log._tail.clear()
    assert await read(served.source, opened.topic) == Gone(Offset(10))


async def test_reading_rows_of_objects_without_a_tier_is_an_error(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 10)
    await cold(served, opened)
    without = OpenTopic(opened.topic, opened.log, None, opened.partitions)
    served.topics._open[TOPIC] = without
    with pytest.raises(NotInLog):
        await read(served.source, opened.topic)


@pytest.mark.feature("F26")
async def test_partitions_are_read_apart_and_one_that_does_not_exist_is_at_its_head(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    for number in range(5):
        await push(opened, b"eu%d" % number, value=region("eu"))
        await push(opened, b"us%d" % number, value=region("us"))
    for name in ("eu", "us"):
        expected = [(number, f"{name}{number}".encode()) for number in range(5)]
        assert await payloads(served.source, opened.topic, 0, region(name)) == expected
    assert await read(served.source, opened.topic, 7, region("asia")) == AtHead(Offset(0))


@pytest.mark.feature("F26", "F10")
async def test_a_fetch_waits_for_a_partition_and_is_woken_by_its_first_message(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    fetcher = Fetcher(served.admin, served.source, 10)
    state = FetchState(timeout_ms=60_000)
    fetching = asyncio.create_task(fetcher.fetch(BY_REGION.name, region("eu"), Offset(0), state))
    await eventually(lambda: fetcher.parked == 1)
    await push(opened, b"x", value=region("us"))
    assert fetcher.parked == 1
    await push(opened, b"y", value=region("eu"))
    fetched = await asyncio.wait_for(fetching, 30)
    assert [batch.partition for batch in fetched.batches] == [1]
    assert len(opened.log.waiters) == len(opened.partitions._waiters) == 0


@pytest.mark.feature("F31")
async def test_a_waiting_reader_is_woken_by_a_message_and_leaves_no_waiter(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create()
    place = TopicPartition(opened.topic, None)
    with served.source.arrival(place, Offset(0), 0.0) as arrival:
        assert not arrival.done()
        await push(opened, b"x")
        assert arrival.done()
    with served.source.arrival(place, Offset(1), 0.0) as arrival:
        assert len(opened.log.waiters) == 1
    assert len(opened.log.waiters) == 0


@pytest.mark.feature("F31")
async def test_a_push_wakes_no_reader_that_waits_for_a_later_offset(world: World) -> None:
    """Else thousands of fetches parked at far offsets would cost every push."""
    served = await serve(world)
    opened = await served.create()
    place = TopicPartition(opened.topic, None)
    with (
        served.source.arrival(place, Offset(1), 0.0) as second,
        served.source.arrival(place, Offset(10**12), 0.0) as far,
    ):
        await push(opened, b"x")
        assert not second.done()
        await push(opened, b"y")
        assert second.done()
        assert not far.done()


@pytest.mark.feature("F16")
async def test_a_hundred_fetches_ask_the_metadata_store_nothing(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 10)
    fetcher = Fetcher(served.admin, served.source, 1000)
    steps = served.broker.use_steps()
    fetched = await asyncio.gather(
        *(fetcher.fetch(TOPIC, None, Offset(0), FetchState(TIMEOUT_MS_MAX)) for _ in range(100))
    )
    assert {one.messages for one in fetched} == {10}
    assert steps.names == []


async def test_a_new_topic_of_the_same_name_is_not_read_instead_of_the_old_one(
    world: World,
) -> None:
    served = await serve(world)
    old = (await served.create()).topic
    await served.topics.delete_topic(TOPIC)
    await push(await served.create(), b"new")
    with pytest.raises(ResourceUnknown):
        await read(served.source, old)
    with (
        pytest.raises(ResourceUnknown),
        served.source.arrival(TopicPartition(old, None), Offset(0), 0.0),
    ):
        pass


async def test_a_read_during_the_deletion_of_its_topic_reports_the_deletion_and_no_damage(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 30)
    await cold(served, opened)
    steps = served.broker.use_steps()

    async def delete(name: str, key: str) -> None:
        if name == "get":
            steps.wait = None
            await served.topics.delete_topic(TOPIC)

    steps.wait = delete
    with pytest.raises(ResourceUnknown):
        await read(served.source, opened.topic)


async def test_damage_is_reported_as_damage(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 30)
    await cold(served, opened)
    steps = served.broker.use_steps()
    steps.fail = lambda name, key: ObjectMissing(key) if name == "get" else None
    with pytest.raises(DataDamaged):
        await read(served.source, opened.topic)


async def test_a_read_while_the_broker_stops_reports_a_closed_log(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await opened.log.close()
    with pytest.raises(LogClosed):
        await read(served.source, opened.topic)


async def test_a_topic_of_another_broker_is_read_there(world: World) -> None:
    one, other = await serve(world), await serve(world, name="b2")
    opened = await one.create()
    with pytest.raises(OwnedElsewhere, match="b1 at address"):
        await read(other.source, opened.topic)
    with (
        pytest.raises(OwnedElsewhere),
        other.source.arrival(TopicPartition(opened.topic, None), Offset(0), 0.0),
    ):
        pass
    unknown = opened.topic.__class__(spec("x"), "u", opened.topic.created_us)
    with pytest.raises(ResourceUnknown):
        await read(other.source, unknown)
    assert unknown.name == names.topic("x")


@pytest.mark.feature("T10")
@pytest.mark.parametrize("seed", range(3))
async def test_every_offset_is_read_once_while_everything_moves(world: World, seed: int) -> None:
    """Appends, rotation, uploads, merging, pruning and eviction, under readers of all kinds."""
    served = await serve(world, interval_seconds=0.001, merge_objects_min=4, trash_seconds=0)
    opened = await served.create()
    rng = random.Random(seed)
    done = asyncio.Event()
    starts = [0, 0, 57, TOTAL - 1]
    async with asyncio.TaskGroup() as tasks:
        consuming = [tasks.create_task(consume(served, start, rng)) for start in starts]
        tasks.create_task(produce(opened.log, rng, done))
        tasks.create_task(disturb(served.broker.tiers, opened.log, rng, done))
    assert [task.result() for task in consuming] == [filled(range(s, TOTAL)) for s in starts]
    assert len(opened.log.waiters) == 0


async def produce(log: Log, rng: random.Random, done: asyncio.Event) -> None:
    while (left := TOTAL - log.next_offset(P0)) > 0:
        await fill(log, min(rng.randrange(1, 30), left), run=3)
        await asyncio.sleep(0)
    done.set()


async def disturb(tiers: Tiers, log: Log, rng: random.Random, done: asyncio.Event) -> None:
    while not done.is_set():
        match rng.randrange(4):
            case 0:
                log.rotate()
            case 1:
                log._tail.clear()
            case 2:
                await tiers.flush(TOPIC)
            case _:
                await tiers.upkeep(TOPIC)
        await asyncio.sleep(0)


async def consume(served: Served, offset: int, rng: random.Random) -> list[tuple[int, bytes]]:
    fetcher = Fetcher(served.admin, served.source, 10)
    found: list[tuple[int, bytes]] = []
    while offset < TOTAL:
        state = FetchState(timeout_ms=60_000, max_messages=rng.randrange(1, 50))
        fetched = await fetcher.fetch(TOPIC, None, Offset(offset), state)
        found += [row for batch in fetched.batches for row in rows_of(batch)]
        offset = fetched.end_offset + 1
    return found
