"""Concurrent fetches of one key share a task, also after errors and cancellations."""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.single_flight import SingleFlight

pytestmark = pytest.mark.feature("F33")


class Load:
    """Work that the test ends; counts how often it was started and cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> str:
        self.begun += 1
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.feature("F34")
async def test_a_hundred_concurrent_fetches_are_one_load() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    load = Load()
    fetches = [shared.fetch("k", load) for _ in range(100)]
    assert [fetch.started for fetch in fetches] == [True] + [False] * 99
    load.answer.set_result("value")
    assert [await fetch for fetch in fetches] == ["value"] * 100
    assert (load.begun, len(shared)) == (1, 0)


async def test_results_are_not_cached_and_keys_are_independent() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    one, other = Load(), Load()
    first, second = shared.fetch("a", one), shared.fetch("b", other)
    assert second.started
    one.answer.set_result("1")
    other.answer.set_result("2")
    assert (await first, await second) == ("1", "2")
    again = shared.fetch("a", one)
    assert again.started
    assert (await again, one.begun) == ("1", 2)


async def test_an_error_is_raised_to_every_caller_and_frees_the_key() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    load = Load()
    fetches = [shared.fetch("k", load) for _ in range(3)]
    load.answer.set_exception(MetadataUnavailable("gone"))
    for fetch in fetches:
        with pytest.raises(MetadataUnavailable, match="gone"):
            await fetch
    assert len(shared) == 0
    assert shared.fetch("k", Load()).started


async def test_the_key_is_free_before_any_caller_continues() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    load = Load()

    async def ask_twice() -> tuple[str, bool]:
        value = await shared.fetch("k", load)
        again = shared.fetch("k", load)
        await again
        return value, again.started

    asks = asyncio.gather(ask_twice(), ask_twice())
    await _turns()
    load.answer.set_result("v")
    assert list(await asks) == [("v", True), ("v", False)]
    assert load.begun == 2


async def test_a_task_cancelled_from_inside_is_an_error_and_not_a_cancellation() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    load = Load()
    fetches = [shared.fetch("k", load) for _ in range(2)]
    await _turns()
    load.answer.cancel()
    for fetch in fetches:
        with pytest.raises(MetadataUnavailable, match="given up"):
            await fetch
    assert len(shared) == 0


@pytest.mark.parametrize("who", [0, 1])
async def test_a_cancelled_caller_leaves_the_task_to_the_others(who: int) -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    load = Load()

    async def ask() -> str:
        return await shared.fetch("k", load)

    tasks = [asyncio.create_task(ask()) for _ in range(3)]
    await _turns()
    tasks[who].cancel()
    await _turns()
    assert tasks[who].cancelled()
    assert (load.cancelled, len(shared)) == (0, 1)
    load.answer.set_result("value")
    others = [task for task in tasks if task is not tasks[who]]
    assert await asyncio.gather(*others) == ["value", "value"]


async def test_the_last_cancelled_caller_cancels_the_task_and_the_next_starts_another() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    load, fresh = Load(), Load()

    async def ask() -> str:
        return await shared.fetch("k", load)

    tasks = [asyncio.create_task(ask()) for _ in range(3)]
    await _turns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    again = shared.fetch("k", fresh)
    assert again.started
    await _turns()
    assert (load.cancelled, len(shared)) == (1, 1)
    fresh.answer.set_result("new")
    assert await again == "new"


async def test_no_caller_joins_a_task_that_is_being_cancelled() -> None:
    shared: SingleFlight[str, str] = SingleFlight()
    released, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> str:
        try:
            return await Load()()
        finally:
            await released.wait()
            ended.set()

    async def ask() -> str:
        return await shared.fetch("k", slow_to_end)

    only = asyncio.create_task(ask())
    await _turns()
    only.cancel()
    await _turns()
    fresh = Load()
    again = shared.fetch("k", fresh)
    assert again.started
    released.set()
    await ended.wait()
    await _turns()
    assert not shared.fetch("k", fresh).started
    fresh.answer.set_result("new")
    assert await again == "new"


async def test_an_error_without_a_caller_is_not_reported_by_the_event_loop() -> None:
    lost: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    shared: SingleFlight[str, str] = SingleFlight()
    load = Load()
    shared.fetch("k", load)
    load.answer.set_exception(MetadataUnavailable("gone"))
    await _turns()
    gc.collect()
    assert not lost
