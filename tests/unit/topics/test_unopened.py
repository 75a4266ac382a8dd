"""Topics that a start lists and does not open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from penstock.metadata import LeaseExpired, MetadataUnavailable, StoredTopic
from penstock.model import names
from penstock.model.errors import LogError, PenstockError, ResourceExists, ResourceUnknown
from penstock.model.names import TopicName
from tests.broker.storage import TOPIC, World
from tests.broker.topics import SPEC, Served, payloads, push, serve, spec
from tests.eventually import eventually

OTHER = names.topic("other")


def failing(broken: str) -> Callable[[str, str], Exception | None]:
    """Reads of one key fail."""
    error = MetadataUnavailable("the test says so")
    return lambda name, key: error if (name, key) == ("read", broken) else None


async def restarted(world: World, served: Served) -> Served:
    """The broker after a crash; it has listed its topics and opened none."""
    again = Served(await world.broker(await served.crash()), regain_seconds=0.0)
    await again.topics.start()
    return again


async def two_topics(world: World) -> Served:
    served = await serve(world)
    await push(await served.create(), b"a", b"b")
    await served.create(spec("other"))
    return served


async def test_a_start_opens_no_topic(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    assert len(again.topics) == 0
    assert {unopened.name for unopened in again.topics.unopened} == {TOPIC, OTHER}
    with pytest.raises(ResourceUnknown):
        again.topics.get(TOPIC)


async def test_a_topic_is_opened_by_the_first_request_and_no_other_with_it(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    opened = await again.topics.find(TOPIC)
    assert await payloads(again.source, opened.topic) == [(0, b"a"), (1, b"b")]
    assert await push(opened, b"c") == 2
    assert [item.topic.name for item in again.topics] == [TOPIC]
    assert [unopened.name for unopened in again.topics.unopened] == [OTHER]


async def test_many_requests_open_a_topic_once(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    opened: list[object] = []
    again.topics.watch(opened=opened.append)
    found = await asyncio.gather(*(again.topics.find(TOPIC) for _ in range(20)))
    assert opened == [found[0]]
    assert all(item is found[0] for item in found)


async def test_a_request_that_is_cancelled_leaves_the_opening_to_the_others(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    first = asyncio.create_task(again.topics.find(TOPIC))
    second = asyncio.create_task(again.topics.find(TOPIC))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).topic.name == TOPIC


async def test_all_topics_are_open_after_the_background_has_run(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    await again.topics.unopened.open_all()
    assert {opened.topic.name for opened in again.topics} == {TOPIC, OTHER}
    assert len(again.topics.unopened) == 0


async def test_an_unopened_topic_exists(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    with pytest.raises(ResourceExists):
        await again.topics.create_topic(SPEC)
    assert (await again.topics.get_topic(OTHER)).name == OTHER


async def test_an_unopened_topic_is_deleted_with_its_log(world: World) -> None:
    again = await restarted(world, await two_topics(world))
    await again.topics.delete_topic(TOPIC)
    with pytest.raises(ResourceUnknown):
        await again.topics.find(TOPIC)
    assert not again.host.logs.exists(TOPIC)
    await again.topics.unopened.open_all()
    assert [item.topic.name for item in again.topics] == [OTHER]


async def test_a_deletion_that_a_crash_cut_off_is_finished_before_the_name_is_used_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await two_topics(world)
    broken = LogError(str(TOPIC), "the test says so")

    async def fail(name: TopicName, reason: str = "") -> None:
        raise broken

    monkeypatch.setattr(served.host.tiers, "remove", fail)
    with pytest.raises(LogError):
        await served.topics.delete_topic(TOPIC)
    again = await restarted(world, served)
    opened = await again.create()
    assert await payloads(again.source, opened.topic) == []


async def test_a_topic_that_cannot_be_opened_does_not_keep_the_others_from_opening(
    world: World,
) -> None:
    again = await restarted(world, await two_topics(world))
    again.broker.metadata.steps.fail = failing(again.host.keys.manifest(TOPIC))
    with capture_logs() as events:
        await again.topics.unopened.open_all()
    assert [e["topic"] for e in events if e["event"] == "topic_unavailable"] == [str(TOPIC)]
    assert [item.topic.name for item in again.topics] == [OTHER]


@pytest.mark.parametrize("error", [LeaseExpired("it is over"), MetadataUnavailable("it is away")])
async def test_a_topic_that_could_not_be_owned_yet_is_opened_without_a_request(
    world: World, monkeypatch: pytest.MonkeyPatch, error: PenstockError
) -> None:
    again = await restarted(world, await two_topics(world))
    own, errors = again.broker.tiers.own, [error]

    async def fail_once(name: TopicName) -> object:
        if errors and name == TOPIC:
            raise errors.pop()
        return await own(name)

    monkeypatch.setattr(again.broker.tiers, "own", fail_once)
    await again.topics.unopened.open_all()
    assert not errors

    async def opened() -> bool:
        return {topic.topic.name for topic in again.topics} == {TOPIC, OTHER}

    await eventually(opened)


async def test_a_stop_waits_for_topics_that_are_being_opened_and_opens_no_more(
    world: World,
) -> None:
    again = await restarted(world, await two_topics(world))
    opening = again.topics.unopened.open(TOPIC)
    assert opening is not None
    again.topics.unopened.open_in_background()
    await again.topics.unopened.close()
    assert opening.done()
    assert again.topics.unopened.open(OTHER) is None


async def test_records_carry_the_stream_configuration(world: World) -> None:
    served = await two_topics(world)
    await served.host.metadata.put(served.host.keys.stream(OTHER), b"{}")
    again = await restarted(world, served)
    found = {unopened.name: unopened.stream for unopened in again.topics.unopened}
    assert found == {TOPIC: b"", OTHER: b"{}"}
    assert all(isinstance(unopened.record, StoredTopic) for unopened in again.topics.unopened)
