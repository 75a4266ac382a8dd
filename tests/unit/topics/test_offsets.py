from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from penstock.metadata.catalog import AtOwner, InObject, Location, PageQuery, PartitionState
from penstock.model.errors import (
    FetchInvalid,
    OffsetGone,
    OwnedElsewhere,
    PartitionInvalid,
    ResourceUnknown,
)
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.tiers.manifest.entries import decode_entry
from penstock.topics import LocalOffsets
from tests.broker.storage import TOPIC, World, drop_wal, fill
from tests.broker.topics import BY_REGION, P0, PAGE, Served, memory, push, region, serve
from tests.unit.log.messages import eventually

pytestmark = pytest.mark.feature("F30")

ADDRESS = "127.0.0.1:8080"
LONG_US = 60_000_000


def registry_of(served: Served) -> LocalOffsets:
    return LocalOffsets(served.topics, ADDRESS, served.broker.world.clock)


def at(served: Served, from_now_us: int) -> Microseconds:
    return Microseconds(served.broker.world.clock.now_us() + from_now_us)


async def locate(
    served: Served,
    offset: int,
    wait_us: int = 0,
    value: PartitionValue | None = None,
) -> Location | None:
    name = TOPIC if value is None else BY_REGION.name
    deadline = at(served, wait_us)
    return await registry_of(served).offset_location(name, value, Offset(offset), deadline)


def owner(first: int, next_: int, partition: int = 0) -> AtOwner:
    return AtOwner(PartitionId(partition), Offset(first), Offset(next_), ADDRESS)


async def test_messages_on_this_disk_are_at_the_owner(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 30)
    await served.broker.tiers.flush(TOPIC)
    assert await locate(served, 0) == owner(0, 30)
    assert await locate(served, 29) == owner(29, 30)


async def test_messages_in_the_bucket_only_are_located_by_object_and_deletions(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    await fill(opened.log, 30)
    await served.broker.tiers.flush(TOPIC)
    await drop_wal(opened.tier)
    await fill(opened.log, 10)
    await opened.log.delete(P0, [3, 4, 7, 35])
    (entry,) = opened.tier.manifest.index
    for asked, first in ((0, 0), (3, 5), (8, 8)):
        found = await locate(served, asked)
        assert isinstance(found, InObject)
        assert found[:3] == (0, first, 30)
        assert decode_entry(found.entry) == entry
        expected = BitMap64(offset for offset in (3, 4, 7) if offset >= first)
        assert found.deleted == (expected.serialize() if expected else b"")
    assert await locate(served, 30) == owner(30, 40)


async def test_offsets_that_no_object_has_are_at_the_owner(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    await fill(opened.log, 30)
    await drop_wal(opened.tier)
    assert await locate(served, 7) == owner(7, 30)


async def test_a_topic_in_memory_is_at_the_owner(world: World) -> None:
    served = await serve(world)
    opened = await served.create(memory("t"))
    await fill(opened.log, 30)
    assert await locate(served, 7) == owner(7, 30)


async def test_an_offset_before_the_start_is_reported_with_the_earliest_one(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 10)
    await opened.log.purge(P0, Offset(4))
    await opened.log.delete(P0, [4])
    with pytest.raises(OffsetGone, match="offset 3 is gone; the earliest is 5"):
        await locate(served, 3)
    assert await locate(served, 4) == owner(5, 10)


async def test_a_request_past_the_head_returns_nothing_at_the_deadline(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 10)
    for offset in (10, 1000):
        assert await locate(served, offset) is None
        assert await locate(served, offset, -LONG_US) is None
        assert await locate(served, offset, 20_000) is None
    assert await locate(served, 9, -LONG_US) == owner(9, 10)
    await opened.log.delete(P0, [9])
    assert await locate(served, 9) is None


@pytest.mark.feature("F31")
async def test_a_request_past_the_head_is_answered_when_the_message_arrives(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 10)
    waiting = [asyncio.create_task(locate(served, offset, LONG_US)) for offset in (10, 10, 12)]
    await eventually(lambda: len(opened.log.waiters) == 3)
    await push(opened, b"x")
    assert await asyncio.wait_for(asyncio.gather(*waiting[:2]), 30) == [owner(10, 11)] * 2
    await eventually(lambda: len(opened.log.waiters) == 1)
    await push(opened, b"x", b"x")
    assert await asyncio.wait_for(waiting[2], 30) == owner(12, 13)
    assert len(opened.log.waiters) == 0


@pytest.mark.feature("F31")
async def test_a_message_between_looking_and_waiting_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed at the very moment at which the waiter has been registered."""
    served = await serve(world)
    opened = await served.create()
    registry = registry_of(served)
    arrival = registry._source.arrival

    def registered_too_late(*args: object) -> object:
        waiting = arrival(*args)  # type: ignore[arg-type]
        opened.log.state.nexts[0] = 1
        return waiting

    monkeypatch.setattr(registry._source, "arrival", registered_too_late)
    deadline = at(served, LONG_US)
    asking = registry.offset_location(TOPIC, None, Offset(0), deadline)
    assert await asyncio.wait_for(asking, 30) == owner(0, 1)


@pytest.mark.feature("F31")
async def test_a_cancelled_request_leaves_no_waiter(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert await locate(served, 0, 20_000) is None
    assert len(opened.log.waiters) == 0
    waiting = asyncio.create_task(locate(served, 0, LONG_US))
    await eventually(lambda: len(opened.log.waiters) == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert len(opened.log.waiters) == 0


@pytest.mark.feature("F26")
async def test_a_partition_that_does_not_exist_yet_is_waited_for(world: World) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    assert await locate(served, 0, value=region("eu")) is None
    waiting = asyncio.create_task(locate(served, 0, LONG_US, region("eu")))
    await eventually(lambda: len(opened.partitions._waiters) == 1)
    await push(opened, b"x", value=region("us"))
    await push(opened, b"x", value=region("eu"))
    assert await asyncio.wait_for(waiting, 30) == owner(0, 1, 1)
    assert len(opened.log.waiters) == len(opened.partitions._waiters) == 0


async def test_a_topic_that_is_deleted_during_a_wait_is_unknown(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    waiting = asyncio.create_task(locate(served, 0, LONG_US))
    await eventually(lambda: len(opened.log.waiters) == 1)
    await served.topics.delete_topic(TOPIC)
    with pytest.raises(ResourceUnknown):
        await asyncio.wait_for(waiting, 30)


async def test_topics_and_values_are_checked(world: World) -> None:
    served, other = await serve(world), await serve(world, name="b2")
    with pytest.raises(ResourceUnknown):
        await locate(served, 0)
    await served.create()
    await served.create(BY_REGION)
    registry, later = registry_of(served), at(served, LONG_US)
    with pytest.raises(PartitionInvalid):
        await registry.offset_location(TOPIC, region("eu"), Offset(0), later)
    with pytest.raises(PartitionInvalid):
        await registry.offset_location(BY_REGION.name, None, Offset(0), later)
    with pytest.raises(PartitionInvalid):
        await registry.get_partition(BY_REGION.name, PartitionValue("Int64", 1))
    with pytest.raises(OwnedElsewhere):
        await locate(other, 0)


@pytest.mark.feature("F26")
async def test_partitions_tell_where_they_start_and_end(world: World) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    registry = registry_of(served)
    for _ in range(3):
        await push(opened, b"x", b"x", value=region("eu"))
    await opened.partitions.ensure([region("us")])
    await opened.log.purge(P0, Offset(1))
    await opened.log.delete(P0, [3])

    def state(name: str, number: int, start: int, end: int, messages: int) -> PartitionState:
        return PartitionState(
            region(name), PartitionId(number), Offset(start), Offset(end), messages
        )

    eu, us = state("eu", 0, 1, 6, 4), state("us", 1, 0, 0, 0)
    assert await registry.get_partition(BY_REGION.name, region("eu")) == eu
    assert await registry.get_partition(BY_REGION.name, region("us")) == us
    missing = await registry.get_partition(BY_REGION.name, region("x"))
    assert missing == state("x", -1, 0, 0, 0)
    assert await registry.list_partitions(BY_REGION.name, PAGE) == ([eu, us], "")


async def test_a_topic_without_partitions_lists_its_one(world: World) -> None:
    served = await serve(world)
    await push(await served.create(), b"x")
    registry = registry_of(served)
    only = PartitionState(None, P0, Offset(0), Offset(1), 1)
    assert await registry.list_partitions(TOPIC, PAGE) == ([only], "")
    assert await registry.list_partitions(TOPIC, PageQuery(10, "0")) == ([], "")


@pytest.mark.feature("F26")
@pytest.mark.parametrize("size", [0, 1, 3, 7, 5000])
async def test_pages_hold_every_partition_once_in_the_order_of_ids(world: World, size: int) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    await opened.partitions.ensure([region(f"{number}") for number in range(7)])
    found: list[int] = []
    token, more = "", True
    while more:
        page = await registry_of(served).list_partitions(BY_REGION.name, PageQuery(size, token))
        found += [state.partition for state in page.items]
        token, more = page.next_token, bool(page.next_token)
        assert len(page.items) == max(size, 1) or not more
    assert found == list(range(7))


async def test_a_token_that_is_no_id_is_refused(world: World) -> None:
    served = await serve(world)
    await served.create()
    for token in ("x", "-1", "²", "9" * 5000):
        with pytest.raises(FetchInvalid, match="is not the id of a partition"):
            await registry_of(served).list_partitions(TOPIC, PageQuery(1, token))
