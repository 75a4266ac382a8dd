"""The lease keeper with a simulated clock; tests/fault stalls a real broker."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from penstock.metadata.interface import LeaseExpired, LeaseId, MetadataUnavailable
from penstock.metadata.ownership.lease_keeper import LeaseKeeper
from penstock.metadata.ownership.tenure import LeaseTerms, Tenure
from tests.eventually import eventually
from tests.unit.metadata.clocks import StillClock

LEASE = LeaseId(7)
TERMS = LeaseTerms(seconds=1, margin_seconds=0.25, stall_limit_seconds=5)


class Store:
    """Renews for as long as `error` is None, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.closed = False

    def keep_alive(self, lease: LeaseId, timeout_seconds: float) -> float:
        assert lease == LEASE
        assert timeout_seconds > 0
        self.calls += 1
        if self.error is not None:
            raise self.error
        return float(TERMS.seconds)

    def close(self) -> None:
        self.closed = True


class World:
    """A lease that is kept, and what the loop was called for."""

    def __init__(self) -> None:
        self.store, self.clock = Store(), StillClock()
        self.renewed = 0
        self.ended: list[LeaseId] = []
        self.tenure = Tenure(TERMS, self.clock.boottime_ns())
        self.keeper = LeaseKeeper(
            self.store, TERMS, self.clock, self._on_renewed, self.ended.append
        )
        self.keeper.keep(LEASE, self.tenure)

    def _on_renewed(self) -> None:
        self.renewed += 1

    def valid(self) -> bool:
        return self.clock.boottime_ns() < self.tenure.valid_until_ns

    async def until(self, condition: Callable[[], bool]) -> None:
        async def holds() -> bool:
            return condition()

        await eventually(holds)

    def stall_until(self, condition: Callable[[], bool], pass_seconds: float) -> None:
        """Keep the loop from running while the clock moves, as fast as the keeper follows it."""
        while not condition():
            self.clock.pass_seconds(pass_seconds)
            while not (condition() or self.keeper._stopping.is_set()):
                if self.clock.waited_ns == self.clock.ns:
                    break
                time.sleep(0.0005)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.keeper.close()


async def test_a_lease_is_renewed_and_the_loop_called_after_it(world: World) -> None:
    for count in (1, 2, 3):
        world.clock.pass_seconds(0.4)
        await world.until(lambda count=count: world.renewed == count)  # type: ignore[misc]
        assert world.store.calls == count
        assert world.valid()
    assert not world.ended


async def test_a_lease_is_renewed_while_the_loop_is_stalled(world: World) -> None:
    world.stall_until(lambda: world.store.calls >= 4, 0.1)
    assert world.valid()
    assert world.renewed == 0
    await world.until(lambda: world.renewed == 1)
    assert not world.ended


async def test_past_the_limit_a_stalled_loop_gets_no_renewal_and_the_lease_ends(
    world: World,
) -> None:
    began_ns = world.clock.boottime_ns()
    world.stall_until(lambda: world.tenure.valid_until_ns <= 0, 0.1)
    stalled_seconds = (world.clock.boottime_ns() - began_ns) / 1e9
    assert stalled_seconds > TERMS.stall_limit_seconds
    assert not world.valid()
    assert not world.ended
    await world.until(lambda: world.ended == [LEASE])


async def test_renewals_go_on_when_the_loop_runs_again_before_the_lease_ends(world: World) -> None:
    world.store.error = None
    world.stall_until(lambda: world.store.calls >= 1, 0.35)
    world.clock.pass_seconds(0)
    await world.until(lambda: world.renewed == 1)
    world.clock.pass_seconds(0.4)
    await world.until(lambda: world.renewed == 2)
    assert not world.ended


async def test_a_lease_that_the_store_ended_is_over_before_the_loop_hears_of_it(
    world: World,
) -> None:
    world.store.error = LeaseExpired("gone")
    assert world.valid()
    world.clock.pass_seconds(0.4)
    while world.store.calls < 1 or world.tenure.valid_until_ns > 0:
        time.sleep(0.01)
    assert not world.valid()
    assert not world.ended
    await world.until(lambda: world.ended == [LEASE])
    assert world.store.calls == 1


@pytest.mark.parametrize("error", [MetadataUnavailable("away"), ValueError("a bug")])
async def test_a_renewal_that_fails_is_tried_again(world: World, error: Exception) -> None:
    world.store.error = error
    world.clock.pass_seconds(0.4)
    await world.until(lambda: world.store.calls == 1)
    world.clock.pass_seconds(0.1)
    await world.until(lambda: world.store.calls == 2)
    world.store.error = None
    world.clock.pass_seconds(0.1)
    await world.until(lambda: world.renewed == 1)
    assert world.valid()


async def test_a_stop_past_the_end_of_the_lease_ends_it_without_a_call(world: World) -> None:
    world.clock.pass_seconds(TERMS.seconds)
    await world.until(lambda: world.ended == [LEASE])
    assert world.store.calls == 0


def test_a_lease_is_not_renewed_for_a_loop_that_was_closed() -> None:
    async def start() -> World:
        return World()

    world = asyncio.run(start())
    world.stall_until(lambda: world.keeper._stopping.is_set(), 0.1)
    assert world.store.calls == 1
    world.stall_until(lambda: not world.valid(), 0.1)


async def test_a_closed_keeper_has_no_thread_and_reports_no_end(world: World) -> None:
    await world.keeper.close()
    assert world.store.closed
    world.clock.pass_seconds(TERMS.seconds)
    await asyncio.sleep(0.05)
    assert not world.ended
    assert not any(thread.is_alive() for thread in world.keeper._thread._threads)
