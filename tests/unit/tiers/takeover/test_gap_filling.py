"""Gaps of takeovers are filled when the disk of the former owner returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.log.subjects import rebuild
from penstock.model.names import TopicName
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.objects import ObjectStore
from penstock.tiers.external.compaction import CompactionStale, replace_by_compacted
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest.entries import ReturnedLog, ReturnedObject
from penstock.tiers.takeover.overtaken_logs import OvertakenLogs
from penstock.tiers.topic_tier import TopicTier
from tests.broker.storage import (
    KEYS,
    P0,
    TOPIC,
    Broker,
    World,
    drop_wal,
    entry,
    fill,
    started,
    verify,
)
from tests.faults import Crashed
from tests.unit.tiers.external.test_compaction import entries_of, made_of

P1 = PartitionId(1)


async def overtake(
    world: World, partitions: tuple[int, ...] = (0,), after: int = 10, **settings: Any
) -> tuple[Broker, Broker]:
    """A broker with 25 messages a partition, 20 of them uploaded, and the one that took over."""
    first, tier = await started(world)
    for partition in partitions:
        await fill(tier.log, 20, partition)
    await first.tiers.flush(TOPIC)
    for partition in partitions:
        await fill(tier.log, 5, partition)
    await world.depose()
    second = await world.broker(name="b2", **settings)
    other = await second.tier()
    for partition in partitions:
        await fill(other.log, after, partition)
    return first, second


@asynccontextmanager
async def returning(
    broker: Broker,
    retry_seconds: float = 0.001,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[OvertakenLogs]:
    """Returns the messages of the broker's overtaken WALs until the end of the block."""

    async def store_of(topic: TopicName) -> ObjectStore:
        return broker.store

    logs = OvertakenLogs(
        broker.host, broker.logs.disk, broker.metadata, KEYS, store_of, retry_seconds, pause
    )
    broker.tiers.watch(set_aside=logs.add)
    try:
        yield logs
    finally:
        await logs.close()


async def proposed(world: World, lineage: str) -> None:
    async with asyncio.timeout(20):
        while await world.metadata.get(KEYS.returned_complete(TOPIC, lineage)) is None:
            await asyncio.sleep(0.001)


async def return_to(world: World, first: Broker) -> str:
    """Return the first broker while another one owns the topic; returns the lineage it proposed."""
    log = first.logs.get(TOPIC)
    assert log is not None
    lineage = log.state.lineage
    async with returning(first):
        assert await first.tiers.is_settled_elsewhere(TOPIC)
        await proposed(world, lineage)
    return lineage


async def reopen(broker: Broker) -> TopicTier:
    await broker.tiers.remove(TOPIC, "reopening")
    return await broker.tier()


@pytest.mark.feature("T26")
async def test_messages_of_a_returning_disk_are_readable_again_at_their_offsets(
    world: World,
) -> None:
    first, second = await overtake(world)
    await return_to(world, first)
    tier = await reopen(second)
    await verify(world, tier, {0: [*range(25), *range(1000, 1010)]})
    assert tier.manifest.head.gaps == []
    assert not (await world.metadata.range(KEYS.all_returned())).entries
    await fill(tier.log, 5)
    await second.tiers.flush(TOPIC)
    await drop_wal(tier)
    await verify(world, tier, {0: [*range(25), *range(1000, 1015)]})


@pytest.mark.feature("T26")
async def test_a_filled_gap_stays_filled_after_a_restart_and_another_takeover(
    world: World,
) -> None:
    first, second = await overtake(world)
    await return_to(world, first)
    await reopen(second)
    await second.stop()
    again = await world.broker(second.directory, name="b2")
    await verify(world, await again.tier(), {0: [*range(25), *range(1000, 1010)]})
    await again.tiers.flush(TOPIC)
    await world.depose()
    third = await world.broker(name="b3")
    await verify(world, await third.tier(), {0: [*range(25), *range(1000, 1010)]})


@pytest.mark.feature("T26")
async def test_a_broker_that_owns_its_topic_again_gets_its_own_messages_back(
    world: World,
) -> None:
    first, second = await overtake(world)
    await second.stop()
    await first.drop()
    broker = await world.broker(first.directory)
    async with returning(broker):
        tier = await broker.tier()
        # The opening may have filled the gap already.
        if len(gaps := tier.manifest.head.gaps) == 2:
            await proposed(world, gaps[0].lineage)
            tier = await reopen(broker)
        await verify(world, tier, {0: [*range(25), *range(1000, 1010)]})
        places = broker.directory / "default/default"
        async with asyncio.timeout(20):
            while [path for path in places.iterdir() if ".overtaken-" in path.name]:
                await asyncio.sleep(0.001)
    assert len(tier.manifest.head.gaps) == 1, "the second broker's disk has not returned"


@pytest.mark.feature("T26")
async def test_partitions_that_only_the_returning_disk_knew_come_back_whole(world: World) -> None:
    first, tier = await started(world)
    await fill(tier.log, 20)
    await first.tiers.flush(TOPIC)
    await fill(tier.log, 7, 1)
    await world.depose()
    second = await world.broker(name="b2")
    await second.tier()
    await return_to(world, first)
    tier = await reopen(second)
    assert tier.log.start_offset(P1) == 0
    await verify(world, tier, {0: range(20), 1: range(7)})
    await fill(tier.log, 3, 1)
    await verify(world, tier, {1: [*range(7), *range(1000, 1003)]})


@pytest.mark.feature("T26")
async def test_messages_return_to_a_partition_that_continued_after_the_gap(
    world: World,
) -> None:
    first, tier = await started(world)
    await fill(tier.log, 7, 1)
    await world.depose()
    second = await world.broker(name="b2")
    await fill((await second.tier()).log, 3, 1)
    await return_to(world, first)
    await verify(world, await reopen(second), {1: [*range(7), *range(1000, 1003)]})


@pytest.mark.feature("T26", "T35")
async def test_deleted_and_purged_messages_do_not_return(
    world: World,
) -> None:
    first, tier = await started(world)
    await fill(tier.log, 20)
    await first.tiers.flush(TOPIC)
    await fill(tier.log, 10)
    await tier.log.delete(P0, [21, 24])
    await world.depose()
    second = await world.broker(name="b2")
    other = await second.tier()
    await fill(other.log, 2)
    await other.log.purge(P0, Offset(23))
    await return_to(world, first)
    tier = await reopen(second)
    await verify(world, tier, {0: [23, *range(25, 30), 1000, 1001]})


@pytest.mark.feature("T26", "T36")
async def test_subjects_of_returned_messages_are_found(world: World) -> None:
    first, second = await overtake(world)
    await return_to(world, first)
    tier = await reopen(second)
    found = await tier.log.index.matching(P0, Filter.parse(b"s.1"), Offset(18), 3)
    assert found == [19, 21, 24]
    assert await tier.log.index.count(P0, Filter.parse(b"s.>"), Offset(0), Offset(2000)) == 35


@pytest.mark.feature("T26", "T36")
async def test_subjects_that_are_read_while_the_gap_is_filled_are_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall, filled = rebuild.recall, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        found = await recall(*arguments)
        await filled.wait()
        return found

    monkeypatch.setattr("penstock.log.subjects.spans.recall", slow)
    first, second = await overtake(world)
    await return_to(world, first)
    tier = await reopen(second)
    filled.set()
    found = await tier.log.index.matching(P0, Filter.parse(b"s.1"), Offset(18), 3)
    assert found == [19, 21, 24]


@pytest.mark.feature("T26")
async def test_gap_filling_continues_at_the_next_opening_after_a_crash_at_any_step(
    world: World,
) -> None:
    first, second = await overtake(world)
    await return_to(world, first)
    await second.tiers.remove(TOPIC, "reopening")
    directory, place = await second.crash(), 0
    await second.drop()
    while True:
        broker = await world.broker(directory, name="b2")
        steps = broker.use_steps()
        steps.crash_after = place
        try:
            tier = await broker.tier()
        except Crashed:
            directory, place = await broker.crash(), place + 1
            await broker.drop()
            continue
        break
    steps.crash_after = None
    assert place > 5
    await verify(world, tier, {0: [*range(25), *range(1000, 1010)]})
    assert tier.manifest.head.gaps == []


@pytest.mark.feature("T26")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("second_has", ["messages", "nothing", "its first message deleted"])
async def test_messages_of_several_owners_return_in_any_order_though_none_uploaded_any(
    world: World, order: tuple[int, int], second_has: str
) -> None:
    first, tier = await started(world)
    await fill(tier.log, 5)
    await world.depose()
    second = await world.broker(name="b2")
    other, expected = await second.tier(), [*range(5), *range(2000, 2010)]
    if second_has != "nothing":
        await fill(other.log, 10)
        expected += range(1000, 1010)
    if second_has == "its first message deleted":
        await other.log.delete(P0, [Offset(1000)])
        expected.remove(1000)
    await world.depose()
    third = await world.broker(name="b3")
    await fill((await third.tier()).log, 10)
    for number in order:
        await return_to(world, (first, second)[number])
        tier = await reopen(third)
    await verify(world, tier, {0: sorted(expected)})
    assert tier.manifest.head.gaps == []


@pytest.mark.feature("T26")
async def test_messages_purged_after_two_takeovers_do_not_return(world: World) -> None:
    first, tier = await started(world)
    await fill(tier.log, 5)
    await world.depose()
    second = await world.broker(name="b2")
    await fill((await second.tier()).log, 10)
    await world.depose()
    third = await world.broker(name="b3")
    tier = await third.tier()
    await fill(tier.log, 10)
    await tier.log.purge(P0, Offset(2003), "test")
    for broker in (second, first):
        await return_to(world, broker)
        tier = await reopen(third)
    await verify(world, tier, {0: range(2003, 2010)})
    assert tier.manifest.head.gaps == []


@pytest.mark.feature("T26")
async def test_a_topic_that_was_purged_right_after_a_takeover_stays_empty(world: World) -> None:
    first, second = await overtake(world, after=0)
    tier = second.tiers[TOPIC]
    await tier.log.purge(P0, Offset(1000), "test")
    await second.tiers.flush(TOPIC)
    await second.tiers.upkeep(TOPIC)
    assert len(tier.manifest.index) == 0
    await return_to(world, first)
    tier = await reopen(second)
    assert tier.log.live_count(P0) == 0
    assert tier.manifest.head.gaps == []


@pytest.mark.feature("T12", "T26")
async def test_objects_on_both_sides_of_a_gap_stay_apart_until_it_is_filled(world: World) -> None:
    first, second = await overtake(world, merge_objects_min=1)
    tier = second.tiers[TOPIC]
    await second.tiers.flush(TOPIC)
    await second.tiers.upkeep(TOPIC)
    ref = await made_of(world, entries := await entries_of(tier))
    with pytest.raises(CompactionStale, match="returning disk"):
        await replace_by_compacted(
            tier, [entry.object_id for entry in entries], ref, second.threads
        )
    await return_to(world, first)
    tier = await reopen(second)
    await verify(world, tier, {0: [*range(25), *range(1000, 1010)]})
    await second.tiers.upkeep(TOPIC)
    assert [span for entry in tier.manifest.index for span in entry.ranges] == [
        PartitionRange(0, 0, 1010)
    ]


@pytest.mark.feature("T26")
async def test_a_proposal_that_is_not_in_the_gap_is_refused_and_made_again(world: World) -> None:
    first, second = await overtake(world)
    tier = second.tiers[TOPIC]
    [gap] = tier.manifest.head.gaps
    wrong = ReturnedObject(entry(PartitionRange(0, 10, 25)))
    await world.metadata.put(
        KEYS.returned_object(TOPIC, gap.lineage, 0), forms.encode_record(wrong)
    )
    complete = forms.encode_record(ReturnedLog(str(TOPIC), 1))
    await world.metadata.put(KEYS.returned_complete(TOPIC, gap.lineage), complete)
    tier = await reopen(second)
    await verify(world, tier, {0: [*range(20), *range(1000, 1010)]})
    assert tier.manifest.head.gaps == [gap]
    await return_to(world, first)
    await verify(world, await reopen(second), {0: [*range(25), *range(1000, 1010)]})


@pytest.mark.feature("T26")
async def test_a_proposal_without_all_its_objects_waits(world: World) -> None:
    first, second = await overtake(world)
    lineage = await return_to(world, first)
    key = KEYS.returned_complete(TOPIC, lineage)
    stored = await world.metadata.get(key)
    assert stored is not None
    count = forms.decode_returned_log(stored.value).objects
    await world.metadata.put(key, forms.encode_record(ReturnedLog(str(TOPIC), count + 1)))
    tier = await reopen(second)
    await verify(world, tier, {0: [*range(20), *range(1000, 1010)]})
    await world.metadata.put(key, stored.value)
    await verify(world, await reopen(second), {0: [*range(25), *range(1000, 1010)]})


@pytest.mark.feature("T26")
async def test_a_returned_object_that_is_damaged_is_refused(world: World) -> None:
    first, second = await overtake(world)
    lineage = await return_to(world, first)
    [proposal] = await objects(world, lineage)
    await world.bucket.delete(proposal.entry.object_id)
    tier = await reopen(second)
    await verify(world, tier, {0: [*range(20), *range(1000, 1010)]})
    assert await objects(world, lineage) == []
    async with returning(first) as logs:
        [aside] = (first.directory / "default/default").glob("t.overtaken-*")
        logs.add(TOPIC, aside)
        await proposed(world, lineage)
    await verify(world, await reopen(second), {0: [*range(25), *range(1000, 1010)]})


async def objects(world: World, lineage: str) -> list[ReturnedObject]:
    page = await world.metadata.range(KEYS.returned_log(TOPIC, lineage))
    found = [e.value for e in page.entries if not e.key.endswith("complete")]
    return [forms.decode_returned_object(value) for value in found]
