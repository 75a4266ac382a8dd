"""Where offsets are, asked over the wire: whose deadline counts, and how often it is asked."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from penstock.host.clock import Clock
from penstock.metadata.admin import Listed, PageRequest
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.offsets import AtOwner, Location, OffsetRegistry, PartitionState
from penstock.metadata.remote_offsets import RemoteOffsets
from penstock.model.errors import OffsetGone, PartitionInvalid
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.eventually import eventually
from tests.unit.metadata.asked import CountingRegistry, Served, served

NAME: Final = TopicName("acme", "shop", "orders")
VALUE: Final = PartitionValue("String", "eu")
HERE: Final = AtOwner(PartitionId(0), Offset(7), Offset(9), "127.0.0.1:8080")
LONG: Final = 60.0
NOW: Final = Microseconds(0)


def after(seconds: float) -> Microseconds:
    return Microseconds(Clock().now_us() + int(seconds * 1e6))


def remote(broker: Served) -> OffsetRegistry:
    return RemoteOffsets(broker.calls, Clock())


def ask(registry: OffsetRegistry, deadline: Microseconds) -> asyncio.Task[Location | None]:
    return asyncio.create_task(_location(registry, deadline))


async def _location(registry: OffsetRegistry, deadline: Microseconds) -> Location | None:
    return await registry.offset_location(NAME, VALUE, Offset(7), deadline)


async def _asked(registry: CountingRegistry, times: int) -> None:
    async def asked() -> bool:
        return registry.asked["offset_location"] == times

    await eventually(asked)


@pytest.mark.feature("F30", "F32")
async def test_the_deadline_is_forwarded_to_the_microsecond() -> None:
    async with served() as broker:
        await broker.registry.put(7, HERE)
        deadline = after(LONG)
        assert await ask(remote(broker), deadline) == HERE
        assert (broker.registry.deadlines, broker.registry.values) == ([deadline], [VALUE])


@pytest.mark.feature("F32")
async def test_past_the_head_it_waits_and_comes_with_the_offset() -> None:
    async with served() as broker:
        waiting = ask(remote(broker), after(LONG))
        await _asked(broker.registry, 1)
        assert not waiting.done()
        await broker.registry.put(7, HERE)
        assert await waiting == HERE


@pytest.mark.feature("F32")
async def test_at_the_deadline_the_answer_is_none() -> None:
    async with served() as broker:
        assert await ask(remote(broker), after(0.2)) is None
        assert await ask(remote(broker), NOW) is None


@pytest.mark.feature("F34")
async def test_a_hundred_who_wait_for_one_offset_are_one_call() -> None:
    async with served() as broker:
        registry = remote(broker)
        waiting = [ask(registry, after(LONG + n)) for n in range(100)]
        await _asked(broker.registry, 1)
        await broker.registry.put(7, HERE)
        assert await asyncio.gather(*waiting) == [HERE] * 100
        assert broker.registry.asked["offset_location"] == 1


@pytest.mark.feature("F34")
async def test_a_hundred_who_only_look_are_one_call() -> None:
    async with served() as broker:
        registry = remote(broker)
        await broker.registry.put(7, HERE)
        broker.registry.held.clear()
        looking = [ask(registry, NOW) for _ in range(100)]
        await _asked(broker.registry, 1)
        broker.registry.held.set()
        assert await asyncio.gather(*looking) == [HERE] * 100
        assert broker.registry.asked["offset_location"] == 1


@pytest.mark.feature("F34")
async def test_whoever_has_the_earlier_deadline_stops_at_it_and_the_others_go_on() -> None:
    async with served() as broker:
        registry = remote(broker)
        patient = ask(registry, after(LONG))
        await _asked(broker.registry, 1)
        assert await ask(registry, after(0.2)) is None
        assert not patient.done()
        await broker.registry.put(7, HERE)
        assert await patient == HERE
        assert broker.registry.asked["offset_location"] == 1


@pytest.mark.feature("F34")
async def test_whoever_has_the_later_deadline_goes_on_when_the_shared_call_ended() -> None:
    async with served() as broker:
        registry = remote(broker)
        early, late = after(0.2), after(LONG)
        leader = ask(registry, early)
        await _asked(broker.registry, 1)
        patient = ask(registry, late)
        assert await leader is None
        await _asked(broker.registry, 2)
        assert broker.registry.deadlines == [early, late]
        await broker.registry.put(7, HERE)
        assert await patient == HERE


@pytest.mark.feature("F34")
async def test_a_look_does_not_wait_for_those_who_do() -> None:
    async with served() as broker:
        registry = remote(broker)
        patient = ask(registry, after(LONG))
        await _asked(broker.registry, 1)
        assert await ask(registry, NOW) is None
        assert not patient.done()
        patient.cancel()


@pytest.mark.feature("F33")
async def test_a_leader_who_gives_up_leaves_the_call_to_the_others() -> None:
    async with served() as broker:
        registry = remote(broker)
        leader = ask(registry, after(LONG))
        await _asked(broker.registry, 1)
        patient = ask(registry, after(LONG))
        await asyncio.sleep(0)
        leader.cancel()
        await broker.registry.put(7, HERE)
        assert await patient == HERE
        assert broker.registry.asked["offset_location"] == 1


@pytest.mark.feature("F31", "F33")
async def test_when_everybody_gave_up_the_broker_is_free_too() -> None:
    async with served() as broker:
        registry = remote(broker)
        waiting = [ask(registry, after(LONG)) for _ in range(3)]

        async def parked() -> bool:
            return broker.registry.waiting == 1

        await eventually(parked)
        for one in waiting:
            one.cancel()

        async def free() -> bool:
            return (broker.registry.waiting, broker.door.running) == (0, 0)

        await eventually(free)


async def test_a_broker_whose_clock_is_ahead_is_asked_again_and_not_at_full_speed() -> None:
    async with served() as broker:
        broker.registry.locations = {}

        class Behind(Clock):
            def now_us(self) -> Microseconds:
                return Microseconds(super().now_us() - 3600 * 1_000_000)

        clock = Behind()
        registry = RemoteOffsets(broker.calls, clock)
        deadline = Microseconds(clock.now_us() + 500_000)
        assert await registry.offset_location(NAME, VALUE, Offset(7), deadline) is None
        assert 1 <= broker.registry.asked["offset_location"] <= 13


@pytest.mark.feature("F22", "F32")
async def test_an_offset_that_is_gone_is_the_same_error_here() -> None:
    async with served() as broker:
        gone = OffsetGone(NAME.full, VALUE, Offset(7), Offset(40))
        broker.registry.failure = gone
        for deadline in (NOW, after(LONG)):
            with pytest.raises(OffsetGone) as caught:
                await ask(remote(broker), deadline)
            assert (str(caught.value), vars(caught.value)) == (str(gone), vars(gone))


async def test_a_wrong_partition_value_is_the_brokers_error() -> None:
    async with served() as broker:
        broker.registry.failure = PartitionInvalid("no value")
        with pytest.raises(PartitionInvalid, match=r"^no value$"):
            await ask(remote(broker), after(LONG))


async def test_a_broker_that_goes_away_under_a_wait_is_an_error() -> None:
    async with served() as broker:
        waiting = ask(remote(broker), after(LONG))
        await _asked(broker.registry, 1)
        await broker.door.drain()
        with pytest.raises(MetadataUnavailable, match=f"the broker at {broker.calls.address}: "):
            await waiting


@pytest.mark.feature("F32")
async def test_partitions_are_those_of_the_broker() -> None:
    async with served() as broker:
        registry = remote(broker)
        for value in (None, VALUE):
            state = PartitionState(value, PartitionId(3), Offset(1), Offset(9), 8)
            assert await registry.get_partition(NAME, value) == state
        assert await registry.list_partitions(NAME, PageRequest(5, "4")) == Listed(
            [
                PartitionState(
                    PartitionValue("String", "orders"), PartitionId(5), Offset(0), Offset(1), 1
                )
            ],
            "4+",
        )
