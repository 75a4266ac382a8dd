"""What is open tells whether it may give out offsets, and lets go of who waits."""

from penstock.model.durability import Durability
from tests.unit.tiers.core import World
from tests.unit.topics.served import P0, serve, spec


async def test_more_offsets_than_usual_are_reserved_when_they_are_asked_for(world: World) -> None:
    opened = await (await serve(world, reserve_offsets=100)).create()
    assert opened.reserved(P0, 50)
    assert not opened.reserved(P0, 5000)
    await opened.reserve(P0, 5000)
    assert opened.reserved(P0, 5000)


async def test_a_topic_in_memory_has_all_offsets(world: World) -> None:
    opened = await (await serve(world)).create(spec("m", durability=Durability.MEMORY))
    assert opened.reserved(P0, 1 << 40)
    await opened.reserve(P0, 1 << 40)


async def test_who_waits_is_woken_when_a_topic_is_served_no_more(world: World) -> None:
    opened = await (await serve(world)).create()
    with opened.log.waiters.arrival(P0) as arrival:
        opened.stop()
        assert arrival.done()
