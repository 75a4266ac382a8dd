import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.host.threads import WorkerThreads


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[WorkerThreads]:
    workers = WorkerThreads(2, "test")
    yield workers
    await workers.close()


async def test_a_call_runs_in_a_named_thread_and_returns_its_result(workers: WorkerThreads) -> None:
    def where(prefix: str, *, suffix: str) -> str:
        return prefix + threading.current_thread().name + suffix

    assert await workers.run(where, "<", suffix=">") in ("<test-0>", "<test-1>")


async def test_the_exception_of_a_call_is_raised_here(workers: WorkerThreads) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        await workers.run(fail)
    assert caught.value.errno == 28
    assert await workers.run(int, "7") == 7


async def test_a_thread_survives_calls_that_fail(workers: WorkerThreads) -> None:
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0)
    assert await workers.run(int, "7") == 7


async def test_every_thread_runs_a_call_at_the_same_time(workers: WorkerThreads) -> None:
    barrier = threading.Barrier(2, timeout=5)
    assert sorted(await asyncio.gather(*(workers.run(barrier.wait) for _ in range(2)))) == [0, 1]


async def test_one_thread_runs_calls_in_order() -> None:
    workers = WorkerThreads(1, "one")
    seen: list[int] = []
    await asyncio.gather(*(workers.run(seen.append, n) for n in range(100)))
    await workers.close()
    assert seen == list(range(100))


async def test_a_cancelled_wait_does_not_disturb_the_others(workers: WorkerThreads) -> None:
    release = threading.Event()
    task = asyncio.create_task(workers.run(release.wait, 5))
    await asyncio.sleep(0.01)
    task.cancel()
    assert await workers.run(int, "7") == 7
    release.set()
    assert await workers.run(int, "8") == 8


async def test_a_report_runs_on_the_loop(workers: WorkerThreads) -> None:
    arrival: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    workers.submit(lambda: workers.report(arrival.set_result, "here"))
    assert await asyncio.wait_for(arrival, 5) == "here"


async def test_close_finishes_submitted_calls_and_ends_the_threads() -> None:
    workers = WorkerThreads(2, "closing")
    seen: list[int] = []
    calls = [asyncio.create_task(workers.run(seen.append, n)) for n in range(50)]
    await asyncio.sleep(0)
    await workers.close()
    await asyncio.gather(*calls)
    assert sorted(seen) == list(range(50))
    assert not [t for t in threading.enumerate() if t.name.startswith("closing")]


async def test_a_call_after_the_close_fails_instead_of_waiting_for_ever() -> None:
    workers = WorkerThreads(1, "closed")
    await workers.close()
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(workers.run(int, "7"), 1)
