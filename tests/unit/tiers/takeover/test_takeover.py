from __future__ import annotations

import shutil

import pytest
from pyroaring import BitMap64

from penstock.formats.bodies import Transaction
from penstock.log import LogState
from penstock.model.resources import Durability
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.tiers.manifest.entries import Head
from penstock.tiers.manifest.entry_index import EntryIndex
from penstock.tiers.takeover import takeover
from tests.broker.storage import (
    P0,
    TOPIC,
    World,
    entry,
    fill,
    filled,
    flush,
    read_all,
    started,
    verify,
)
from tests.faults import Crashed

P1 = PartitionId(1)


def facts(state: LogState) -> dict[str, object]:
    return {
        "topic": state.topic,
        "durability": state.durability,
        "last_timestamp": state.last_timestamp,
        "nexts": state.nexts,
        "starts": state.starts(),
        "deleted": {p: list(BitMap64.deserialize(b)) for p, b in state.deleted().items()},
        "transactions": state.transactions,
    }


def test_the_state_of_a_log_is_that_at_the_end_of_its_manifest() -> None:
    head = Head(
        starts={0: 5, 2: 7},
        deletes={0: BitMap64([8, 9]).serialize(), 1: BitMap64([2]).serialize()},
        transactions={"app": (3, {4: (10, 15)})},
        durability="cloud",
        reserved=1000,
    )
    index = EntryIndex(
        [
            entry(PartitionRange(0, 0, 10), PartitionRange(1, 0, 4), sequence=0, last_timestamp=50),
            entry(PartitionRange(0, 10, 12), sequence=1, last_timestamp=40),
        ]
    )
    assert facts(takeover.state_after(TOPIC, head, index)) == {
        "topic": "default/default/t",
        "durability": Durability.CLOUD,
        "last_timestamp": 50,
        "nexts": {0: 12, 1: 4, 2: 0, 4: 15},
        "starts": {0: 5, 2: 7},
        "deleted": {0: [8, 9], 1: [2]},
        "transactions": {"app": Transaction(3, {4: (10, 15)}, 50)},
    }


def test_deletions_behind_the_last_object_do_not_move_the_end() -> None:
    head = Head(deletes={0: BitMap64([3, 70]).serialize()})
    state = takeover.state_after(TOPIC, head, EntryIndex([entry(PartitionRange(0, 0, 10))]))
    assert state.nexts == {0: 10}


@pytest.mark.feature("T26")
async def test_a_takeover_continues_at_the_reserved_offset_and_records_the_gap(
    world: World,
) -> None:
    broker, tier = await started(world, reserve_offsets=500)
    await fill(tier.log, 40)
    await fill(tier.log, 10, partition=1)
    await flush(tier)
    await fill(tier.log, 30)
    await broker.drop()
    await world.depose()

    broker = await world.broker(name="b2", reserve_offsets=500)
    tier = await broker.tier()
    assert (tier.log.next_offset(P0), tier.log.next_offset(P1)) == (500, 500)
    assert [tier.log.state.live_count(p) for p in (P0, P1)] == [40, 10]
    await verify(world, tier, {0: range(40), 1: range(10)})
    await fill(tier.log, 20)
    await fill(tier.log, 5, partition=1)
    live = {0: [*range(40), *range(500, 520)], 1: [*range(10), *range(500, 505)]}
    await verify(world, tier, live)
    await flush(tier)
    await verify(world, tier, live)
    head, _ = await world.manifest()
    assert head.reserved == 1000

    # Again, so that the third owner assigns no offset of the first gap.
    await broker.drop()
    await world.depose()
    tier = await (await world.broker(name="b3", reserve_offsets=500)).tier()
    assert (tier.log.next_offset(P0), tier.log.next_offset(P1)) == (1000, 1000)
    await verify(world, tier, live)


@pytest.mark.feature("T26")
async def test_a_takeover_without_uploads_assigns_no_offset_again(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 30)
    given = tier.log.next_offset(P0)
    await broker.drop()
    await world.depose()
    tier = await (await world.broker(name="b2")).tier()
    await fill(tier.log, 5)
    assert tier.log.next_offset(P0) >= given + 5
    first = tier.log.next_offset(P0) - 5
    assert await read_all(tier) == filled(range(first, first + 5))


@pytest.mark.feature("T26")
async def test_a_takeover_assigns_no_offset_of_an_unknown_partition_again(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    await fill(tier.log, 30, partition=1)
    await broker.drop()
    await world.depose()
    tier = await (await world.broker(name="b2")).tier()
    await fill(tier.log, 4, partition=1)
    first = tier.log.next_offset(P1) - 4
    assert first >= 30
    live = {0: range(10), 1: range(first, first + 4)}
    await verify(world, tier, live)
    await flush(tier)
    await verify(world, tier, live)
    # Also after a third one, which uploaded nothing of a third partition.
    await fill(tier.log, 4, partition=2)
    given = tier.log.next_offset(PartitionId(2))
    await world.depose()
    tier = await (await world.broker(name="b3")).tier()
    await fill(tier.log, 1, partition=2)
    assert tier.log.next_offset(PartitionId(2)) > given
    await verify(world, tier, live)


@pytest.mark.feature("T26", "T35")
async def test_deletions_starts_and_durability_are_in_the_manifest(world: World) -> None:
    broker = await world.broker()
    tier = await broker.tier(durability=Durability.FSYNC)
    await fill(tier.log, 40)
    await tier.log.delete(P0, [20, 21])
    await tier.log.purge(P0, Offset(10))
    await flush(tier)
    world.clock.us += 7
    await broker.drop()
    await world.depose()
    tier = await (await world.broker(name="b2")).tier()
    live = [n for n in range(10, 40) if n not in (20, 21)]
    assert tier.log.start_offset(P0) == 10
    await verify(world, tier, {0: live})
    await tier.log.delete(P0, [30])
    await verify(world, tier, {0: [n for n in live if n != 30]})


@pytest.mark.feature("T26")
async def test_after_a_crash_during_a_takeover_the_topic_is_taken_over_again(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 20)
    await flush(tier)
    await broker.drop()
    await world.depose()
    for number in range(30):
        broker = await world.broker(name="b2")
        broker.use_steps().crash_before = number
        try:
            tier = await broker.tier()
        except Crashed:
            copy = await broker.crash()
            await world.depose()
            again = await world.broker(copy, name="b2")
            tier = await again.tier()
            await verify(world, tier, {0: range(20)})
            await again.drop()
            await world.depose()
            shutil.rmtree(copy)
            continue
        break
    broker.use_steps()
    await verify(world, tier, {0: range(20)})
    assert number > 3
