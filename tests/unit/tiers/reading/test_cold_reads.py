from __future__ import annotations

import pytest

from penstock.log import InObjects
from penstock.model.errors import DataDamaged
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.broker.storage import (
    P0,
    TOPIC,
    World,
    fill,
    flush,
    indexed,
    started,
)

P1 = PartitionId(1)


@pytest.mark.feature("T09")
async def test_the_first_offset_of_a_time_is_found_in_objects_and_in_the_wal(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    begin = world.clock.us
    for n in range(60):
        world.clock.us = begin + n * 10
        await fill(tier.log, 2, run=2)
        await fill(tier.log, 1, partition=1)
    await flush(tier)
    await indexed(tier.log)
    await broker.tiers.upkeep(TOPIC)
    world.clock.us = begin + 1000
    await fill(tier.log, 3)
    await tier.log.delete(P0, [0, 40, 41])
    assert 0 < tier.log.files.start(P0) < 120
    live = [n for n in range(123) if n not in (0, 40, 41)]
    stamps = {n: begin + (n // 2) * 10 if n < 120 else begin + 1000 for n in live}
    for time in range(begin - 5, begin + 1010, 5):
        wanted = next((n for n in live if stamps[n] >= time), 123)
        assert await tier.offset_at(P0, Microseconds(time)) == wanted, time - begin
        one = min(max(-(-(time - begin) // 10), 0), 60)
        assert await tier.offset_at(P1, Microseconds(time)) == one
    await tier.log.purge(P0, Offset(50))
    assert await tier.offset_at(P0, Microseconds(begin)) == 50


async def test_an_uncovered_offset_is_reported_as_damage_up_to_the_next_covered_one(
    world: World,
) -> None:
    _, tier = await started(world)
    where = InObjects(PartitionId(9), Offset(3), Offset(8), ())
    with pytest.raises(DataDamaged) as caught:
        await tier.read(where, Offset(3))
    assert (caught.value.first, caught.value.next) == (3, 8)
