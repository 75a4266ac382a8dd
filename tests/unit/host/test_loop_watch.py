import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import structlog

from penstock.host import loop_watch
from penstock.host.loop_watch import (
    FRAMES_MAX,
    INTERVAL_SECONDS,
    STALL_SECONDS,
    LoopStalls,
    LoopWatch,
    Stall,
)
from penstock.model.metrics import Histogram
from tests.eventually import eventually


@pytest.fixture
def stalls() -> list[Stall]:
    return []


@pytest_asyncio.fixture
async def watch(stalls: list[Stall]) -> AsyncIterator[LoopWatch]:
    watch = LoopWatch(stalls.append)
    yield watch
    await watch.close()


def block(seconds: float) -> None:
    time.sleep(seconds)


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def longest(stalls: list[Stall], seconds: float) -> Stall:
    """The stall of at least this length, once it is reported."""

    async def reported() -> bool:
        return any(stall.ended and stall.seconds >= seconds for stall in stalls)

    await eventually(reported)
    return max(stalls, key=lambda stall: stall.seconds)


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("work", [block, compute])
async def test_a_stall_is_reported_with_its_length_and_what_ran(
    stalls: list[Stall], work: type
) -> None:
    seconds = 4 * STALL_SECONDS

    async def reported() -> bool:
        # Repeated: on a busy machine the thread that watches may itself be late, and sees less.
        await asyncio.sleep(2 * INTERVAL_SECONDS)
        work(seconds)
        await asyncio.sleep(2 * INTERVAL_SECONDS)
        return any(
            stall.seconds >= seconds - 2 * INTERVAL_SECONDS and of(stall) for stall in stalls
        )

    def of(stall: Stall) -> bool:
        innermost, caller, *_ = stall.frames
        return (
            stall.ended
            and len(stall.frames) <= FRAMES_MAX
            and innermost.startswith(f"{__name__}:")
            and innermost.endswith(f" {work.__name__}")
            and "test_a_stall_is_reported" in caller
        )

    await eventually(reported)


@pytest.mark.usefixtures("watch")
async def test_a_long_stall_is_reported_while_it_lasts(
    stalls: list[Stall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "LONG_STALL_SECONDS", 3 * STALL_SECONDS)
    await asyncio.sleep(2 * INTERVAL_SECONDS)
    block(10 * STALL_SECONDS)
    assert [stall.ended for stall in stalls if stall.seconds >= 3 * STALL_SECONDS] == [False]
    await longest(stalls, 9 * STALL_SECONDS)
    assert [stall.ended for stall in stalls if stall.seconds >= 3 * STALL_SECONDS] == [False, True]


async def test_a_closed_watch_reports_nothing(watch: LoopWatch, stalls: list[Stall]) -> None:
    await watch.close()
    stalls.clear()
    block(3 * STALL_SECONDS)
    await asyncio.sleep(0.05)
    assert stalls == []


async def test_a_stall_is_logged_and_counted() -> None:
    with structlog.testing.capture_logs() as events:
        stalls = LoopStalls()
        await asyncio.sleep(0.05)
        time.sleep(4 * STALL_SECONDS)

        async def logged() -> bool:
            return any(event["event"] == "loop_stalled" for event in events)

        await eventually(logged)
        await stalls.close()
    longest = max(event["seconds"] for event in events)
    assert longest >= 3 * STALL_SECONDS
    assert all(event["log_level"] == "warning" and event["frames"] for event in events)
    values = {metric.name: metric.values[0][1] for metric in stalls.metrics()}
    histogram = values["penstock_loop_stall_ms"]
    assert isinstance(histogram, Histogram)
    assert histogram.count == len(events)
    maximum = values["penstock_loop_stall_max_ms"]
    assert isinstance(maximum, float)
    assert round(maximum / 1000, 3) == longest
