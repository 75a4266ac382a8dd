"""Ownership with a simulated clock; the conformance suite uses real time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.metadata.interface import Compare, CompareTarget, LeaseExpired, Put
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.ownership.ownership import LEASE_ENDED, NOT_OURS, Epoch, NotOwner, Ownership
from penstock.metadata.ownership.tenure import LeaseTerms
from penstock.metadata.sqlite.metadata import SqliteMetadata
from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds
from tests.eventually import eventually
from tests.faults import FaultyMetadata
from tests.unit.metadata.clocks import StillClock

ORDERS = TopicName("default", "default", "orders")
SECONDS, MARGIN_SECONDS = 1, 0.25
KEYS = MetadataKeys()


class World:
    """A broker, its clock and its store; the store's leases are on a clock of their own."""

    def __init__(self, store: SqliteMetadata) -> None:
        self.store = FaultyMetadata(store)
        self.clock = StillClock()
        self.lost: list[tuple[TopicName, Epoch, str]] = []
        self.ownership = Ownership(
            self.store,
            KEYS,
            "broker",
            "host:1",
            lambda *lost: self.lost.append(lost),
            LeaseTerms(SECONDS, MARGIN_SECONDS),
            self.clock,
        )

    async def owned(self) -> Epoch:
        await self.ownership.start()
        epoch = await self.ownership.acquire(ORDERS)
        assert epoch is not None
        return epoch

    async def until_lost(self) -> None:
        async def is_lost() -> bool:
            return bool(self.lost)

        await eventually(is_lost)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = await SqliteMetadata.open(tmp_path, clock=StillClock())
    world = World(store)
    yield world
    await world.ownership.close()
    await store.close()


async def test_nothing_is_owned_before_there_is_a_lease(world: World) -> None:
    assert world.ownership.valid_until_ns == 0
    assert not world.ownership.may_ack(ORDERS, Epoch(1))
    with pytest.raises(LeaseExpired):
        await world.ownership.acquire(ORDERS)
    with pytest.raises(NotOwner, match="default/default/orders"):
        world.ownership.guard(ORDERS)


async def test_the_guard_compares_the_epoch_which_is_the_create_revision(world: World) -> None:
    epoch = await world.owned()
    owner = KEYS.owner(ORDERS)
    assert world.ownership.epoch(ORDERS) == epoch
    assert world.ownership.guard(ORDERS) == Compare(owner, CompareTarget.CREATE_REVISION, epoch)


@pytest.mark.feature("T26")
async def test_a_broker_that_was_stopped_notices_by_its_clock_before_any_ack(world: World) -> None:
    epoch = await world.owned()
    assert world.ownership.may_ack(ORDERS, epoch)
    world.clock.pass_seconds(SECONDS - MARGIN_SECONDS - 0.001)
    assert world.ownership.may_ack(ORDERS, epoch)
    # No task has run since: it is the clock alone that says so.
    world.clock.pass_seconds(0.001)
    assert not world.ownership.may_ack(ORDERS, epoch)
    assert world.lost == []


async def test_a_renewal_in_the_margin_lets_acks_go_on(world: World) -> None:
    epoch = await world.owned()
    world.clock.pass_seconds(SECONDS - MARGIN_SECONDS / 2)
    assert not world.ownership.may_ack(ORDERS, epoch)

    async def may_ack() -> bool:
        return world.ownership.may_ack(ORDERS, epoch)

    await eventually(may_ack)
    assert world.lost == []


async def test_past_its_end_a_lease_is_lost_even_if_the_store_would_renew_it(world: World) -> None:
    epoch = await world.owned()
    world.clock.pass_seconds(SECONDS)
    assert not world.ownership.lease_valid()
    await world.until_lost()
    assert world.ownership.leases_lost == 1
    assert world.lost == [(ORDERS, epoch, LEASE_ENDED)]
    with pytest.raises(NotOwner):
        world.ownership.guard(ORDERS)

    async def may_own_again() -> bool:
        return world.ownership.valid_until_ns > world.clock.boottime_ns()

    await eventually(may_own_again)
    # The store still had the lease; it was ended, so the topic is free.
    later = await world.ownership.acquire(ORDERS)
    assert later is not None
    assert later > epoch
    assert not world.ownership.may_ack(ORDERS, epoch)
    assert world.lost == [(ORDERS, epoch, LEASE_ENDED)]


async def test_while_the_store_is_unavailable_acks_stop_in_time_and_the_loss_is_reported(
    world: World,
) -> None:
    epoch = await world.owned()
    world.store.cut = True
    valid_until: Nanoseconds = world.ownership.valid_until_ns
    world.clock.pass_seconds(SECONDS - MARGIN_SECONDS)
    assert world.clock.boottime_ns() >= valid_until
    assert not world.ownership.may_ack(ORDERS, epoch)
    world.clock.pass_seconds(MARGIN_SECONDS)
    await world.until_lost()
    assert world.ownership.valid_until_ns == 0
    world.store.cut = False

    async def has_a_lease() -> bool:
        return world.ownership.valid_until_ns > 0

    await eventually(has_a_lease)


async def test_an_acquire_that_outlives_its_lease_owns_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.ownership.start()
    real = world.store.transaction
    acquired, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: object) -> object:
        outcome = await real(*arguments)  # type: ignore[arg-type]
        acquired.set()
        await go_on.wait()
        return outcome

    monkeypatch.setattr(world.store, "transaction", slow)
    acquiring = asyncio.create_task(world.ownership.acquire(ORDERS))
    await acquired.wait()
    before = world.ownership._lease
    world.clock.pass_seconds(SECONDS)

    async def has_another_lease() -> bool:
        return world.ownership._lease is not before

    await eventually(has_another_lease)
    go_on.set()
    with pytest.raises(LeaseExpired):
        await acquiring
    assert not world.ownership.may_ack(ORDERS, Epoch(2))


async def test_a_topic_is_acquired_or_released_by_one_at_a_time(world: World) -> None:
    await world.ownership.start()
    for _ in range(10):
        await asyncio.gather(
            world.ownership.acquire(ORDERS),
            world.ownership.release(ORDERS),
            world.ownership.acquire(ORDERS),
        )
        epoch = world.ownership.epoch(ORDERS)
        entry = await world.store.get(KEYS.owner(ORDERS))
        assert entry is not None
        assert Epoch(entry.create_revision) == epoch


async def test_a_deposed_owner_s_guard_stays_refused_after_it_owns_again(world: World) -> None:
    await world.owned()
    old = world.ownership.guard(ORDERS)
    await world.ownership.release(ORDERS)
    await world.ownership.acquire(ORDERS)
    assert not (await world.store.transaction([old], [Put("/x", b"")])).succeeded
    new = world.ownership.guard(ORDERS)
    assert (await world.store.transaction([new], [Put("/x", b"")])).succeeded


async def test_closing_without_the_store_does_not_hang(world: World) -> None:
    await world.owned()
    world.store.cut = True
    await world.ownership.close()
    assert not world.ownership.may_ack(ORDERS, Epoch(2))
    assert world.lost == []


async def test_a_loss_that_is_not_handled_does_not_end_the_lease_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = await world.owned()

    def fail(*lost: Any) -> None:
        world.lost.append(lost)
        raise ValueError("not handled")

    monkeypatch.setattr(world.ownership, "_on_lost", fail)
    await world.store.delete(KEYS.owner(ORDERS))
    await world.ownership.verify()
    assert world.lost == [(ORDERS, epoch, NOT_OURS)]
    assert await world.ownership.acquire(ORDERS) is not None


async def test_a_successor_is_named(world: World) -> None:
    epoch = await world.owned()
    await world.store.delete(KEYS.owner(ORDERS))
    rival = Ownership(world.store, KEYS, "rival", "rival:1", lambda *_: None)
    await rival.start()
    assert await rival.acquire(ORDERS) is not None
    await world.ownership.verify()
    assert world.lost == [(ORDERS, epoch, "broker rival at rival:1 owns the topic now")]
    await rival.close()


async def test_an_epoch_that_the_store_refused_is_lost_at_once_and_only_once(world: World) -> None:
    epoch = await world.owned()
    await world.store.delete(KEYS.owner(ORDERS))
    world.ownership.deposed(ORDERS, epoch)
    world.ownership.deposed(ORDERS, epoch)
    assert world.lost == [(ORDERS, epoch, NOT_OURS)]
    later = await world.ownership.acquire(ORDERS)
    assert later is not None
    world.ownership.deposed(ORDERS, epoch)
    assert world.ownership.may_ack(ORDERS, later)
