"""A returning broker gives the messages of its disk to the present owner of their topic."""

from __future__ import annotations

import pytest

from tests.broker.storage import TOPIC, World
from tests.broker.topics import Served, payloads, push, serve
from tests.eventually import eventually

NOT_UPLOADED = (b"b", b"c")
PAUSE_SECONDS = 0.001


async def overtaken(world: World) -> tuple[Served, Served]:
    """A broker that lost its topic with two messages that are not uploaded, and its successor."""
    one = await serve(world, regain_seconds=PAUSE_SECONDS)
    opened = await one.create()
    await push(opened, b"a")
    await one.broker.tiers.flush(TOPIC)
    await push(opened, *NOT_UPLOADED)
    await world.depose()
    other = await serve(world, name="b2", regain_seconds=PAUSE_SECONDS)
    await push(other.topics.get(TOPIC), b"d")
    return one, other


async def until_read(served: Served, *expected: bytes) -> None:
    async def are_read() -> bool:
        topic = await served.topics.get_topic(TOPIC)
        found = await payloads(served.source, topic)
        assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
        return [payload for _, payload in found] == list(expected)

    await eventually(are_read)


@pytest.mark.feature("T26")
async def test_an_owner_that_was_paused_past_its_lease_returns_its_messages_to_its_successor(
    world: World,
) -> None:
    one, other = await overtaken(world)
    await one.broker.ownership.verify()
    await until_read(other, b"a", *NOT_UPLOADED, b"d")
    await push(other.topics.get(TOPIC), b"e")
    await until_read(other, b"a", *NOT_UPLOADED, b"d", b"e")
    await one.topics.close()
    await other.topics.close()


@pytest.mark.feature("T26")
async def test_a_broker_that_restarts_beside_its_successor_returns_its_messages(
    world: World,
) -> None:
    one, other = await overtaken(world)
    directory = await one.crash()
    await one.topics.close()
    again = await serve(world, directory, name="b3", regain_seconds=PAUSE_SECONDS)
    await until_read(other, b"a", *NOT_UPLOADED, b"d")
    await again.topics.close()
    await other.topics.close()


@pytest.mark.feature("T26")
async def test_a_broker_that_restarts_and_owns_its_topic_again_has_its_messages_back(
    world: World,
) -> None:
    one, other = await overtaken(world)
    directory = await one.crash()
    await one.topics.close()
    await other.topics.close()
    await other.broker.stop()
    again = await serve(world, directory, name="b3", regain_seconds=PAUSE_SECONDS)
    await until_read(again, b"a", *NOT_UPLOADED, b"d")
    await again.topics.close()


@pytest.mark.feature("T26")
async def test_a_wal_that_was_set_aside_before_a_restart_is_returned_after_it(world: World) -> None:
    one, other = await overtaken(world)
    directory = await one.crash()
    [log] = directory.glob("default/default/*")
    lineage = one.topics.get(TOPIC).log.state.lineage
    log.rename(log.with_name(f"{log.name}.overtaken-{lineage}"))
    await one.topics.close()
    again = await serve(world, directory, name="b3", regain_seconds=PAUSE_SECONDS)
    await until_read(other, b"a", *NOT_UPLOADED, b"d")
    await again.topics.close()
    await other.topics.close()
