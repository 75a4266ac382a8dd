"""Tests the loop tools: owned tasks, timers, locks by key and delays between attempts."""

import asyncio
import gc

import pytest
import uvloop

from penstock.host.tasks import Backoff, KeyedLocks, Tasks, Timer


async def test_tasks_are_counted_until_they_end() -> None:
    tasks, gate = Tasks(), asyncio.Event()
    task = tasks.start(gate.wait())
    assert len(tasks) == 1
    gate.set()
    assert await task
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_drain_waits_for_tasks_that_tasks_start() -> None:
    tasks, ended = Tasks(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.start(second())
        ended.append("first")

    tasks.start(first())
    await tasks.drain()
    assert ended == ["first", "second"]


async def test_drain_cancels_what_runs_for_too_long() -> None:
    tasks = Tasks()
    task = tasks.start(asyncio.Event().wait())
    await tasks.drain(0.0)
    assert task.cancelled()


async def test_cancel_waits_until_tasks_have_cleaned_up() -> None:
    tasks, cleaned = Tasks(), list[bool]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    tasks.start(work())
    await asyncio.sleep(0)
    await tasks.cancel()
    assert (cleaned, len(tasks)) == ([True], 0)


async def test_an_exception_is_that_of_the_task() -> None:
    async def fail() -> None:
        raise ValueError("no")

    tasks = Tasks()
    task = tasks.start(fail())
    await tasks.drain()
    with pytest.raises(ValueError, match="no"):
        await task


async def test_a_timer_calls_once_at_the_last_time_that_was_set() -> None:
    calls: list[float] = []
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def call() -> None:
        calls.append(loop.time())
        done.set_result(None)

    timer = Timer(call)
    timer.after(3600.0)
    timer.at(due := loop.time() + 0.01)
    assert timer.when == pytest.approx(due)
    await done
    assert len(calls) == 1
    assert calls[0] >= due - 0.002
    assert timer.when is None


async def test_a_timer_that_is_stopped_makes_no_call() -> None:
    calls: list[str] = []
    timer = Timer(lambda: calls.append("late"))
    timer.after(0.0)
    timer.stop()
    await asyncio.sleep(0.01)
    assert (calls, timer.when) == ([], None)


async def test_at_latest_moves_a_call_to_an_earlier_time_only() -> None:
    timer = Timer(lambda: None)
    now = asyncio.get_running_loop().time()
    timer.at_latest(now + 20)
    timer.at_latest(now + 30)
    assert timer.when == pytest.approx(now + 20)
    timer.at_latest(now + 10)
    assert timer.when == pytest.approx(now + 10)
    timer.stop()


async def test_a_key_has_one_lock_while_it_is_in_use() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    async with locks["a"]:
        assert locks["a"].locked()
        assert not locks["b"].locked()
    gc.collect()
    assert not len(locks._locks)


def test_delays_double_up_to_their_limit_and_begin_again() -> None:
    backoff = Backoff(0.25, 1.0)
    assert [backoff.next_seconds() for _ in range(4)] == [0.25, 0.5, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_seconds() == 0.25


def test_a_timer_that_is_due_at_once_knows_its_time_on_uvloop() -> None:
    async def work() -> tuple[bool, list[str]]:
        calls = list[str]()
        timer = Timer(lambda: calls.append("now"))
        timer.after(0.0)
        timer.at_latest(asyncio.get_running_loop().time() + 60)
        due = timer.when is not None
        await asyncio.sleep(0.01)
        return due, calls

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == (True, ["now"])
