"""

Lost topics are taken up again without anybody asking, unless another broker serves them.
"""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.errors import LogError, OwnedElsewhere, ResourceUnknown
from penstock.model.names import TopicName
from penstock.topics import regain as module
from penstock.topics.regain import Regain, Troubles
from tests.eventually import eventually
from tests.unit.tiers.core import TOPIC, World
from tests.unit.topics.served import push, serve


async def test_a_recent_trouble_is_raised_without_another_try_and_an_old_one_only_on_request() -> (
    None
):
    troubles = Troubles()
    troubles.raise_last(TOPIC)
    troubles.note(TOPIC, LogError("t", "cannot be opened"), retry_seconds=60)
    for raise_it in (troubles.raise_last, troubles.raise_recent):
        with pytest.raises(LogError, match="cannot be opened"):
            raise_it(TOPIC)
    troubles.note(TOPIC, LogError("t", "lost"), retry_seconds=0)
    troubles.raise_recent(TOPIC)
    with pytest.raises(LogError, match="lost"):
        troubles.raise_last(TOPIC)


async def test_a_trouble_that_is_forgotten_is_not_raised() -> None:
    troubles = Troubles()
    troubles.note(TOPIC, LogError("t", "cannot be opened"), retry_seconds=60)
    troubles.forget(TOPIC)
    troubles.raise_last(TOPIC)
    troubles.raise_recent(TOPIC)


pytestmark = pytest.mark.feature("T26")
OTHER = TopicName("default", "default", "other")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)


class Finder:
    """Meets these errors in turn, then finds."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.asked: list[TopicName] = []
        self.unsettled = 0
        self.regain = Regain(self.find, self.is_settled_elsewhere)

    async def find(self, name: TopicName) -> None:
        self.asked.append(name)
        if self._errors:
            raise self._errors.pop(0)

    async def is_settled_elsewhere(self, name: TopicName) -> bool:
        self.unsettled -= 1
        return self.unsettled < 0

    async def until_idle(self) -> None:
        async def idle() -> bool:
            return not self.regain._running

        await eventually(idle)


async def test_what_cannot_be_had_yet_is_tried_again() -> None:
    finder = Finder(LogError("t", "not yet"), LogError("t", "not yet"))
    finder.regain.note(TOPIC)
    await finder.until_idle()
    assert finder.asked == [TOPIC] * 3


@pytest.mark.parametrize(
    "error", [OwnedElsewhere("t", "b2", "address"), ResourceUnknown("topic", "t")]
)
async def test_what_is_served_elsewhere_or_is_no_more_is_left_alone(error: Exception) -> None:
    finder = Finder(error)
    finder.regain.note(TOPIC)
    await finder.until_idle()
    assert finder.asked == [TOPIC]


async def test_a_topic_of_another_broker_is_asked_for_until_its_wal_here_is_set_aside() -> None:
    finder = Finder(*[OwnedElsewhere("t", "b2", "address")] * 3)
    finder.unsettled = 2
    finder.regain.note(TOPIC)
    await finder.until_idle()
    assert finder.asked == [TOPIC] * 3


async def test_what_is_lost_again_is_taken_up_again() -> None:
    finder = Finder()
    for name in (TOPIC, OTHER, TOPIC):
        finder.regain.note(name)
        await finder.until_idle()
    assert finder.asked == [TOPIC, OTHER, TOPIC]


async def test_after_the_end_nothing_is_tried() -> None:
    finder = Finder(*[LogError("t", "never")] * 1000)
    finder.regain.note(TOPIC)
    await finder.regain.close()
    asked = len(finder.asked)
    await asyncio.sleep(0)
    assert len(finder.asked) == asked
    await Finder().regain.close()


async def test_a_lost_topic_is_served_and_uploaded_again_without_anybody_asking(
    world: World,
) -> None:
    one = await serve(world)
    opened = await one.create()
    await push(opened, b"a")
    await world.depose()
    await one.broker.ownership.verify()
    assert not one.topics.serves(opened)

    async def is_back() -> bool:
        return len(one.topics) == 1

    await eventually(is_back)
    await one.broker.tiers.flush(TOPIC)
    assert [entry.rows for entry in (await world.manifest())[1]] == [1]
    await one.topics.close()
