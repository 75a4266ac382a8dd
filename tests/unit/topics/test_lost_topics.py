"""Lost topics are opened again without a request, unless another broker serves them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.errors import LogError, OwnedElsewhere, ResourceUnknown
from penstock.model.names import TopicName
from penstock.topics.lost_topics import LostTopics, OpenErrors
from tests.broker.storage import TOPIC, World
from tests.broker.topics import push, serve
from tests.eventually import eventually

pytestmark = pytest.mark.feature("T26")
OTHER = TopicName("default", "default", "other")


async def test_a_recent_error_is_raised_without_a_new_attempt_and_an_old_one_only_on_request() -> (
    None
):
    errors = OpenErrors()
    errors.raise_last(TOPIC)
    errors.note(TOPIC, LogError("t", "cannot be opened"), retry_seconds=60)
    for raise_error in (errors.raise_last, errors.raise_recent):
        with pytest.raises(LogError, match="cannot be opened"):
            raise_error(TOPIC)
    errors.note(TOPIC, LogError("t", "lost"), retry_seconds=0)
    errors.raise_recent(TOPIC)
    with pytest.raises(LogError, match="lost"):
        errors.raise_last(TOPIC)


async def test_a_forgotten_error_is_not_raised() -> None:
    errors = OpenErrors()
    errors.note(TOPIC, LogError("t", "cannot be opened"), retry_seconds=60)
    errors.forget(TOPIC)
    errors.raise_last(TOPIC)
    errors.raise_recent(TOPIC)


class Finder:
    """Raises these errors in turn, then finds every topic."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.attempts: list[TopicName] = []
        self.unsettled_looks = 0
        self.lost = LostTopics(self.find, self.is_settled_elsewhere, pause_seconds=0.0)

    async def find(self, name: TopicName) -> None:
        self.attempts.append(name)
        if self._errors:
            raise self._errors.pop(0)

    async def is_settled_elsewhere(self, name: TopicName) -> bool:
        self.unsettled_looks -= 1
        return self.unsettled_looks < 0

    async def until_idle(self) -> None:
        async def idle() -> bool:
            return not self.lost._running

        await eventually(idle)


async def test_a_topic_that_cannot_be_opened_yet_is_tried_again() -> None:
    finder = Finder(LogError("t", "not yet"), LogError("t", "not yet"))
    finder.lost.add(TOPIC)
    await finder.until_idle()
    assert finder.attempts == [TOPIC] * 3


@pytest.mark.parametrize(
    "error", [OwnedElsewhere("t", "b2", "address"), ResourceUnknown("topic", "t")]
)
async def test_a_topic_that_is_served_elsewhere_or_deleted_is_not_tried_again(
    error: Exception,
) -> None:
    finder = Finder(error)
    finder.lost.add(TOPIC)
    await finder.until_idle()
    assert finder.attempts == [TOPIC]


async def test_a_topic_of_another_broker_is_tried_until_its_wal_here_is_set_aside() -> None:
    finder = Finder(*[OwnedElsewhere("t", "b2", "address")] * 3)
    finder.unsettled_looks = 2
    finder.lost.add(TOPIC)
    await finder.until_idle()
    assert finder.attempts == [TOPIC] * 3


async def test_a_topic_that_is_lost_again_is_opened_again() -> None:
    finder = Finder()
    for name in (TOPIC, OTHER, TOPIC):
        finder.lost.add(name)
        await finder.until_idle()
    assert finder.attempts == [TOPIC, OTHER, TOPIC]


async def test_no_topic_is_tried_after_the_close() -> None:
    finder = Finder(*[LogError("t", "never")] * 1000)
    finder.lost.add(TOPIC)
    await finder.lost.close()
    attempts = len(finder.attempts)
    await asyncio.sleep(0)
    assert len(finder.attempts) == attempts
    await Finder().lost.close()


async def test_a_lost_topic_is_served_and_uploaded_again_without_a_request(world: World) -> None:
    served = await serve(world, regain_seconds=0.0)
    opened = await served.create()
    await push(opened, b"a")
    await world.depose()
    await served.broker.ownership.verify()
    assert not served.topics.serves(opened)

    async def is_back() -> bool:
        return len(served.topics) == 1

    await eventually(is_back)
    await served.broker.tiers.flush(TOPIC)
    assert [entry.rows for entry in (await world.manifest())[1]] == [1]
    await served.topics.close()
