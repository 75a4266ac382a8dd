"""Positions under faults; what holds on every store is in the conformance suite."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.metadata import progress as module
from penstock.metadata.interface import Compare, Entry, MetadataUnavailable, Revision, Target
from penstock.metadata.keys import Keys
from penstock.metadata.positions import Subscription
from penstock.metadata.progress import Progress, ProgressUpdater, decode
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model.errors import FormatError
from penstock.model.names import TopicName
from penstock.model.units import Offset
from tests.eventually import eventually
from tests.faults import FaultyMetadata
from tests.unit.metadata.clocks import StillClock

ORDERS = TopicName("default", "default", "orders")
SUBSCRIPTION = Subscription(ORDERS, "s")
KEYS = Keys()
KEY = KEYS.progress(*SUBSCRIPTION)


class World:
    """A store, an owner key in it, and an updater that never flushes by itself."""

    def __init__(self, store: FaultyMetadata) -> None:
        self.store = store
        self.epoch = Revision(0)
        self.updater = self.updater_with(3600, 1_000_000)

    def updater_with(self, interval_seconds: float, delta: int) -> ProgressUpdater:
        clock = StillClock() if interval_seconds >= 3600 else None
        return ProgressUpdater(self.store, KEYS, self.guard, interval_seconds, delta, clock)

    def guard(self, topic: TopicName) -> Compare:
        return Compare(KEYS.owner(topic), Target.CREATE_REVISION, self.epoch)

    async def own(self) -> None:
        """Own the topic under a new epoch."""
        await self.store.store.delete(KEYS.owner(ORDERS))
        self.epoch = await self.store.store.put(KEYS.owner(ORDERS), b"")

    async def stored(self) -> object:
        entry = await self.store.store.get(KEY)
        return None if entry is None else json.loads(entry.value)["offset"]

    async def write(self, offset: int) -> None:
        """As somebody else."""
        await self.store.store.put(KEY, b'{"offset": %d, "timestamp": 0}' % offset)


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "CLOSE_PAUSE_SECONDS", 0.0)
    store = FaultyMetadata(await SqliteMetadata.open(tmp_path))
    world = World(store)
    await world.own()
    yield world
    await world.updater.close()
    await store.close()


def test_a_position_is_an_offset_and_a_time() -> None:
    revision = Revision(2)
    entry = Entry("/k", b'{"offset": 5, "timestamp": 7}', revision, revision, 1, None)
    assert decode(entry) == Progress(5, 7)


@pytest.mark.parametrize("value", [b"", b"5", b"{}", b'{"offset": "5", "timestamp": 7}'])
def test_anything_else_is_no_position(value: bytes) -> None:
    with pytest.raises(FormatError, match="/k is not a position"):
        decode(Entry("/k", value, Revision(2), Revision(2), 1, None))


async def test_the_value_is_what_the_design_says(world: World) -> None:
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
async def test_a_start_without_an_answer_is_found_when_asked_again(world: World) -> None:
    world.store.answers_lost = 1
    with pytest.raises(MetadataUnavailable):
        await world.updater.start(SUBSCRIPTION, Offset(5))
    assert world.updater.floor(SUBSCRIPTION) is None
    assert await world.updater.start(SUBSCRIPTION, Offset(9)) == 5


@pytest.mark.feature("T21")
async def test_a_position_in_the_store_never_goes_back(world: World) -> None:
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
async def test_on_loss_what_moved_gets_one_last_attempt(world: World) -> None:
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
    names = [Subscription(ORDERS, f"s{number}") for number in range(200)]
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


async def test_somebody_who_writes_all_the_time_is_not_fought_for_ever(
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
