"""Remote offsets: deadlines, and how many calls reach the broker."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from penstock.host.clock import Clock
from penstock.metadata.catalog.interface import (
    AtOwner,
    ListPage,
    Location,
    OffsetRegistry,
    PageQuery,
    PartitionState,
)
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.remote.offsets import RemoteOffsets
from penstock.model.errors import OffsetGone, PartitionInvalid
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.eventually import eventually
from tests.unit.metadata.counting import CountingRegistry, Served, served

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
async def test_a_request_past_the_end_waits_for_the_offset() -> None:
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
async def test_a_hundred_waiting_requests_for_one_offset_are_one_call() -> None:
    async with served() as broker:
        registry = remote(broker)
        waiting = [ask(registry, after(LONG + n)) for n in range(100)]
        await _asked(broker.registry, 1)
        await broker.registry.put(7, HERE)
        assert await asyncio.gather(*waiting) == [HERE] * 100
        assert broker.registry.asked["offset_location"] == 1


@pytest.mark.feature("F34")
async def test_a_hundred_requests_that_do_not_wait_are_one_call() -> None:
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
async def test_a_request_stops_at_its_earlier_deadline_and_the_others_wait_on() -> None:
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
async def test_a_request_with_a_later_deadline_waits_on_after_the_shared_call() -> None:
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
async def test_a_request_that_does_not_wait_is_not_delayed_by_those_that_do() -> None:
    async with served() as broker:
        registry = remote(broker)
        patient = ask(registry, after(LONG))
        await _asked(broker.registry, 1)
        assert await ask(registry, NOW) is None
        assert not patient.done()
        patient.cancel()


@pytest.mark.feature("F33")
async def test_a_cancelled_first_request_leaves_the_call_to_the_others() -> None:
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
async def test_the_call_is_cancelled_at_the_broker_when_every_request_is() -> None:
    async with served() as broker:
        registry = remote(broker)
        waiting = [ask(registry, after(LONG)) for _ in range(3)]

        async def parked() -> bool:
            return broker.registry.waiting == 1

        await eventually(parked)
        for one in waiting:
            one.cancel()

        async def free() -> bool:
            return (broker.registry.waiting, broker.server.running) == (0, 0)

        await eventually(free)


async def test_a_broker_whose_clock_is_ahead_is_called_again_after_a_delay() -> None:
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
async def test_a_deleted_offset_raises_the_error_of_the_broker() -> None:
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


async def test_a_broker_that_stops_during_a_wait_is_an_error() -> None:
    async with served() as broker:
        waiting = ask(remote(broker), after(LONG))
        await _asked(broker.registry, 1)
        await broker.server.drain()
        with pytest.raises(MetadataUnavailable, match=f"the broker at {broker.calls.address}: "):
            await waiting


@pytest.mark.feature("F32")
async def test_partitions_are_those_of_the_broker() -> None:
    async with served() as broker:
        registry = remote(broker)
        for value in (None, VALUE):
            state = PartitionState(value, PartitionId(3), Offset(1), Offset(9), 8)
            assert await registry.get_partition(NAME, value) == state
        assert await registry.list_partitions(NAME, PageQuery(5, "4")) == ListPage(
            [
                PartitionState(
                    PartitionValue("String", "orders"), PartitionId(5), Offset(0), Offset(1), 1
                )
            ],
            "4+",
        )
