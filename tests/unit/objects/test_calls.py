import asyncio
import time

import pytest
from opendal import AsyncOperator

from penstock.objects.calls import REST_SECONDS, CallLimits, Calls
from penstock.objects.failures import Failure, Meaning


def calls(seconds: float = 30.0, retries_max: int = 1) -> Calls:
    limits = CallLimits(call_seconds=seconds, retries_max=retries_max)
    return Calls(AsyncOperator("memory"), limits)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_call_returns_what_it_returns() -> None:
    one = calls(retries_max=0)
    await one.run(one.operator.write("a", b"x"))
    assert await one.run(one.operator.read("a")) == b"x"
    await one.close()


async def test_a_call_that_takes_too_long_is_cancelled_and_counts_as_no_answer() -> None:
    task = asyncio.create_task(never())
    with pytest.raises(Failure, match=r"not done within 0\.01 seconds") as failure:
        await calls(0.01).run(task)
    assert failure.value.meaning is Meaning.AWAY
    assert task.cancelled()


async def test_an_error_of_opendal_becomes_a_failure() -> None:
    one = calls()
    with pytest.raises(Failure) as failure:
        await one.run(one.operator.stat("missing"))
    assert failure.value.meaning is Meaning.MISSING


async def test_an_error_of_a_writer_becomes_a_failure_too() -> None:
    async def fail() -> None:
        raise OSError("Unexpected (persistent) at write, context: { } => io operation timeout")

    with pytest.raises(Failure, match="io operation timeout") as failure:
        await calls().run(fail())
    assert failure.value.meaning is Meaning.AWAY


async def test_a_bug_is_not_taken_for_a_failure_of_the_store() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await calls().run(fail())


async def test_closing_lets_calls_in_hand_finish_and_takes_no_more() -> None:
    one, end = calls(), asyncio.Event()
    call = asyncio.create_task(one.run(end.wait()))
    await asyncio.sleep(0)
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0)
    end.set()
    await closing
    assert await call is True
    with pytest.raises(Failure, match="the store is closed"):
        await one.run(asyncio.sleep(0))


async def test_closing_cancels_what_does_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.objects.calls.DRAIN_SECONDS", 0.01)
    one = calls()
    call = asyncio.create_task(one.run(never()))
    await asyncio.sleep(0)
    await one.close()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_the_process_rests_before_it_exits_only_after_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, slept = calls(), list[float]()
    await one.run(asyncio.sleep(0))
    now = time.monotonic()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    Calls.rest_before_exit()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    Calls.rest_before_exit()
    assert 0 < slept[0] <= REST_SECONDS
    assert slept[1] == 0
