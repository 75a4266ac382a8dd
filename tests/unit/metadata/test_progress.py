"""Saving positions with a failing store; the conformance suite tests both real stores."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.metadata import progress as module
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    MetadataEntry,
    MetadataUnavailable,
    Revision,
)
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.progress import (
    Positions,
    ProgressRecord,
    ProgressUpdater,
    SubscriptionId,
    decode,
)
from penstock.metadata.sqlite.metadata import SqliteMetadata
from penstock.model.errors import FormatError
from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds, Offset
from tests.eventually import eventually
from tests.faults import FaultyMetadata
from tests.unit.metadata.clocks import StillClock

ORDERS = TopicName("default", "default", "orders")
SUBSCRIPTION = SubscriptionId(ORDERS, "s")
KEYS = MetadataKeys()
KEY = KEYS.progress(*SUBSCRIPTION)


class World:
    """A store, an owner key in it, and an updater that never flushes by itself."""

    def __init__(self, store: FaultyMetadata) -> None:
        self.store = store
        self.epoch = Revision(0)
        self.updater = self.updater_with(3600, 1_000_000)

    def updater_with(self, interval_seconds: float, delta: int) -> ProgressUpdater:
        clock = StillClock() if interval_seconds >= 3600 else None
        return ProgressUpdater(
            self.store, KEYS, self.guard, interval_seconds, delta, clock, close_pause_seconds=0.0
        )

    def guard(self, topic: TopicName) -> Compare:
        return Compare(KEYS.owner(topic), CompareTarget.CREATE_REVISION, self.epoch)

    async def own(self) -> None:
        """Own the topic under a new epoch."""
        await self.store.store.delete(KEYS.owner(ORDERS))
        self.epoch = await self.store.store.put(KEYS.owner(ORDERS), b"")

    async def stored(self) -> object:
        entry = await self.store.store.get(KEY)
        return None if entry is None else json.loads(entry.value)["offset"]

    async def write(self, offset: int) -> None:
        """Write the key as another writer."""
        await self.store.store.put(KEY, b'{"offset": %d, "timestamp": 0}' % offset)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = FaultyMetadata(await SqliteMetadata.open(tmp_path))
    world = World(store)
    await world.own()
    yield world
    await world.updater.close()
    await store.close()


def test_a_position_is_an_offset_and_a_time() -> None:
    revision = Revision(2)
    entry = MetadataEntry("/k", b'{"offset": 5, "timestamp": 7}', revision, revision, 1, None)
    assert decode(entry) == ProgressRecord(5, 7)


@pytest.mark.parametrize("value", [b"", b"5", b"{}", b'{"offset": "5", "timestamp": 7}'])
def test_anything_else_is_no_position(value: bytes) -> None:
    with pytest.raises(FormatError, match="/k is not a position"):
        decode(MetadataEntry("/k", value, Revision(2), Revision(2), 1, None))


async def test_the_value_has_offset_and_time(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(5))
    entry = await world.store.get(KEY)
    assert entry is not None
    assert json.loads(entry.value) == {"offset": 5, "timestamp": 1_700_000_001_000_000}


@pytest.mark.feature("T21")
async def test_a_record_does_not_touch_the_store(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.store.cut = True
    for offset in range(1, 1000):
        world.updater.record(SUBSCRIPTION, Offset(offset))
    assert world.updater.floor(SUBSCRIPTION) == 0
    world.store.cut = False


@pytest.mark.feature("T21")
async def test_a_save_that_failed_is_tried_again_by_itself(world: World) -> None:
    updater = world.updater_with(0.05, 1_000_000)
    await updater.start(SUBSCRIPTION, Offset(0))
    world.store.cut = True
    updater.record(SUBSCRIPTION, Offset(5))
    assert not await updater.flush()
    world.store.cut = False

    async def saved() -> bool:
        return await world.stored() == 5

    await eventually(saved)
    await updater.close()


@pytest.mark.feature("T21")
async def test_a_save_without_an_answer_is_neither_lost_nor_done_twice(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    world.store.answers_lost = 1
    assert not await world.updater.flush()
    assert world.updater.floor(SUBSCRIPTION) == 0
    assert await world.stored() == 5
    assert await world.updater.flush()
    assert world.updater.floor(SUBSCRIPTION) == 5
    entry = await world.store.get(KEY)
    assert entry is not None
    assert entry.version == 2
    world.updater.record(SUBSCRIPTION, Offset(6))
    assert await world.updater.flush()
    assert await world.stored() == 6


@pytest.mark.feature("T22")
async def test_a_start_without_a_reply_is_recognized_when_it_is_repeated(world: World) -> None:
    world.store.answers_lost = 1
    with pytest.raises(MetadataUnavailable):
        await world.updater.start(SUBSCRIPTION, Offset(5))
    assert world.updater.floor(SUBSCRIPTION) is None
    assert await world.updater.start(SUBSCRIPTION, Offset(9)) == 5


@pytest.mark.feature("T21")
async def test_a_stored_position_never_moves_back(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    await world.write(50)
    assert await world.updater.flush()
    assert await world.stored() == 50
    assert world.updater.floor(SUBSCRIPTION) == 50
    await world.write(60)
    world.updater.record(SUBSCRIPTION, Offset(70))
    assert await world.updater.flush()
    assert await world.stored() == 70


async def test_every_save_carries_the_guard(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    await world.updater.flush()
    world.updater.record(SUBSCRIPTION, Offset(6))
    await world.updater.flush()
    assert len(world.store.transactions) == 3
    assert all(compares[0] == world.guard(ORDERS) for compares, _ in world.store.transactions)


@pytest.mark.feature("T21")
async def test_a_lost_topic_gets_one_last_attempt_to_save_its_positions(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    world.updater.lost(ORDERS)
    assert world.updater.floor(SUBSCRIPTION) is None
    world.updater.record(SUBSCRIPTION, Offset(6))

    async def saved() -> bool:
        return await world.stored() == 5

    await eventually(saved)


@pytest.mark.feature("T21", "T26")
async def test_on_loss_a_new_owner_is_not_disturbed(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    await world.own()
    world.updater.lost(ORDERS)
    # The same broker owns it again, under a later epoch, before the last attempt was made.
    assert await world.updater.start(SUBSCRIPTION, Offset(0)) == 0
    world.updater.record(SUBSCRIPTION, Offset(2))
    assert await world.updater.flush()
    assert await world.stored() == 2
    assert world.updater.floor(SUBSCRIPTION) == 2


@pytest.mark.feature("T21")
async def test_closing_tries_a_few_times_and_gives_up(world: World) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    world.store.cut = True
    await world.updater.close()
    world.store.cut = False
    assert await world.stored() == 0


async def test_many_saves_run_at_once_but_not_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [SubscriptionId(ORDERS, f"s{number}") for number in range(200)]
    await asyncio.gather(*(world.updater.start(name, Offset(0)) for name in names))
    for name in names:
        world.updater.record(name, Offset(1))
    running = most = 0
    real = world.store.transaction

    async def counted(*arguments: object) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        outcome = await real(*arguments)  # type: ignore[arg-type]
        running -= 1
        return outcome

    monkeypatch.setattr(world.store, "transaction", counted)
    assert await world.updater.flush()
    assert most == module.SAVES_MAX
    assert [world.updater.floor(name) for name in names] == [1] * 200


async def test_a_save_gives_up_after_a_number_of_conflicting_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.updater.start(SUBSCRIPTION, Offset(0))
    world.updater.record(SUBSCRIPTION, Offset(5))
    real = world.store.transaction

    async def after_another(*arguments: object) -> object:
        await world.write(1)
        return await real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as rival:
        rival.setattr(world.store, "transaction", after_another)
        assert not await world.updater.flush()
    assert len(world.store.transactions) == 1 + module.CONFLICTS_MAX
    assert await world.updater.flush()
    assert await world.stored() == 5


EVENTS = TopicName("default", "default", "events")
A, B, C = SubscriptionId(ORDERS, "a"), SubscriptionId(ORDERS, "b"), SubscriptionId(EVENTS, "c")


def seconds(count: float) -> Nanoseconds:
    return Nanoseconds(int(count * 1e9))


def begun(*subscriptions: SubscriptionId, interval: float = 5.0, delta: int = 100) -> Positions:
    positions = Positions(interval, delta, seconds(0))
    for subscription in subscriptions:
        positions.begin(subscription, Offset(0))
    return positions


def test_a_position_in_memory_never_moves_back() -> None:
    positions = begun(A)
    positions.record(A, Offset(10))
    positions.record(A, Offset(9))
    assert positions.recorded(A) == 10
    assert positions.unsaved() == {A: 10}


def test_a_subscription_that_was_not_begun_is_ignored() -> None:
    positions = begun(A)
    assert not positions.record(B, Offset(1000))
    positions.was_saved(B, Offset(1000))
    positions.forget(B)
    assert positions.unsaved() == {}
    assert positions.saved(B) is None


def test_all_that_moved_is_due_when_the_interval_ends() -> None:
    positions = begun(A, B, C)
    positions.record(A, Offset(1))
    positions.record(C, Offset(2))
    assert positions.due(seconds(4.9)) == {}
    assert positions.wait_seconds(seconds(4)) == 1.0
    assert positions.due(seconds(5)) == {A: 1, C: 2}
    assert positions.wait_seconds(seconds(5)) == 5.0


def test_a_position_that_moved_far_is_due_at_once_and_reported_once() -> None:
    positions = begun(A, B)
    positions.record(B, Offset(99))
    assert not positions.record(A, Offset(99))
    assert positions.record(A, Offset(100))
    assert not positions.record(A, Offset(150))
    assert positions.wait_seconds(seconds(1)) == 0.0
    assert positions.due(seconds(1)) == {A: 150}
    positions.was_saved(A, Offset(150))
    assert positions.due(seconds(1)) == {}
    assert not positions.record(A, Offset(249))
    assert positions.record(A, Offset(250))


def test_a_position_that_moved_far_during_its_save_is_due_again() -> None:
    positions = begun(A)
    positions.record(A, Offset(100))
    saving = positions.due(seconds(1))
    positions.record(A, Offset(300))
    positions.was_saved(A, saving[A])
    assert positions.saved(A) == 100
    assert positions.due(seconds(1)) == {A: 300}


def test_a_saved_position_is_not_saved_again() -> None:
    positions = begun(A)
    positions.record(A, Offset(1))
    positions.was_saved(A, Offset(1))
    assert positions.due(seconds(5)) == {}


def test_a_store_that_has_more_sets_the_position_forward() -> None:
    positions = begun(A)
    positions.record(A, Offset(1))
    positions.was_saved(A, Offset(7))
    assert (positions.saved(A), positions.recorded(A)) == (7, 7)
    positions.was_saved(A, Offset(5))
    assert positions.saved(A) == 7


def test_after_a_failure_everything_waits_longer_each_time_up_to_the_interval() -> None:
    positions = begun(A, interval=0.3)
    positions.record(A, Offset(500))
    now = 0.0
    pauses = []
    for _ in range(4):
        positions.failed(seconds(now))
        pauses.append(positions.wait_seconds(seconds(now)))
        assert positions.due(seconds(now)) == {}
        now += pauses[-1]
    assert pauses == [0.1, 0.2, 0.3, 0.3]
    assert positions.due(seconds(now)) == {A: 500}


def test_many_failures_of_one_round_are_one() -> None:
    positions = begun(A, B)
    positions.failed(seconds(1))
    positions.failed(seconds(1.05))
    assert positions.wait_seconds(seconds(1)) == 0.1


def test_a_failed_save_is_due_after_the_pause_and_not_after_the_interval() -> None:
    positions = begun(A)
    positions.record(A, Offset(1))
    assert positions.due(seconds(5)) == {A: 1}
    positions.failed(seconds(5))
    assert positions.due(seconds(5.1)) == {A: 1}


def test_a_success_ends_the_pause() -> None:
    positions = begun(A)
    positions.failed(seconds(1))
    positions.was_saved(A, Offset(0))
    positions.record(A, Offset(100))
    assert positions.due(seconds(1)) == {A: 100}


def test_unsaved_of_one_topic_or_of_all() -> None:
    positions = begun(A, B, C)
    positions.record(A, Offset(1))
    positions.record(C, Offset(2))
    assert positions.unsaved(ORDERS) == {A: 1}
    assert positions.unsaved(EVENTS) == {C: 2}
    assert positions.unsaved() == {A: 1, C: 2}


def test_a_forgotten_subscription_has_no_position() -> None:
    positions = begun(A)
    positions.record(A, Offset(100))
    positions.forget(A)
    assert positions.due(seconds(5)) == {}
    assert not positions.record(A, Offset(200))


def test_a_subscription_is_named_with_its_topic() -> None:
    assert str(A) == "default/default/orders/a"
