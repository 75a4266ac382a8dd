"""One piece of work for all who ask at once, whatever becomes of it and of them."""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock.metadata.deduplicate import Deduplicate, Miss, Wait
from penstock.metadata.interface import MetadataUnavailable

pytestmark = pytest.mark.feature("F33")


class Load:
    """Work that ends when told to; counts how often it was begun and how often cancelled."""

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
async def test_a_hundred_who_ask_at_once_are_one_load() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
    load = Load()
    fetches = [shared.fetch("k", load) for _ in range(100)]
    assert [type(fetch) for fetch in fetches] == [Miss] + [Wait] * 99
    load.answer.set_result("value")
    assert [await fetch for fetch in fetches] == ["value"] * 100
    assert (load.begun, len(shared)) == (1, 0)


async def test_nothing_is_kept_and_keys_do_not_meet() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
    one, other = Load(), Load()
    first, second = shared.fetch("a", one), shared.fetch("b", other)
    assert isinstance(second, Miss)
    one.answer.set_result("1")
    other.answer.set_result("2")
    assert (await first, await second) == ("1", "2")
    again = shared.fetch("a", one)
    assert isinstance(again, Miss)
    assert (await again, one.begun) == ("1", 2)


async def test_an_error_is_told_to_everybody_and_the_key_is_free() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
    load = Load()
    fetches = [shared.fetch("k", load) for _ in range(3)]
    load.answer.set_exception(MetadataUnavailable("gone"))
    for fetch in fetches:
        with pytest.raises(MetadataUnavailable, match="gone"):
            await fetch
    assert len(shared) == 0
    assert isinstance(shared.fetch("k", Load()), Miss)


async def test_the_key_is_free_before_anybody_is_told() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
    load = Load()

    async def ask_twice() -> tuple[str, type]:
        value = await shared.fetch("k", load)
        again = shared.fetch("k", load)
        await again
        return value, type(again)

    asks = asyncio.gather(ask_twice(), ask_twice())
    await _turns()
    load.answer.set_result("v")
    assert list(await asks) == [("v", Miss), ("v", Wait)]
    assert load.begun == 2


async def test_work_that_was_cancelled_from_inside_is_an_error_and_no_cancellation() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
    load = Load()
    fetches = [shared.fetch("k", load) for _ in range(2)]
    await _turns()
    load.answer.cancel()
    for fetch in fetches:
        with pytest.raises(MetadataUnavailable, match="given up"):
            await fetch
    assert len(shared) == 0


@pytest.mark.parametrize("who", [0, 1])
async def test_whoever_gives_up_leaves_the_work_to_the_others(who: int) -> None:
    shared: Deduplicate[str, str] = Deduplicate()
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


async def test_the_last_one_to_give_up_ends_the_work_and_the_next_begins_anew() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
    load, fresh = Load(), Load()

    async def ask() -> str:
        return await shared.fetch("k", load)

    tasks = [asyncio.create_task(ask()) for _ in range(3)]
    await _turns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    again = shared.fetch("k", fresh)
    assert isinstance(again, Miss)
    await _turns()
    assert (load.cancelled, len(shared)) == (1, 1)
    fresh.answer.set_result("new")
    assert await again == "new"


async def test_nobody_joins_work_that_was_told_to_end_and_has_not_yet() -> None:
    shared: Deduplicate[str, str] = Deduplicate()
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
    assert isinstance(again, Miss)
    released.set()
    await ended.wait()
    await _turns()
    assert isinstance(shared.fetch("k", fresh), Wait)
    fresh.answer.set_result("new")
    assert await again == "new"


async def test_an_error_that_nobody_waits_for_is_not_reported_as_lost() -> None:
    lost: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    shared: Deduplicate[str, str] = Deduplicate()
    load = Load()
    shared.fetch("k", load)
    load.answer.set_exception(MetadataUnavailable("gone"))
    await _turns()
    gc.collect()
    assert not lost
