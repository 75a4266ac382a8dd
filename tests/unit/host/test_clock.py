from __future__ import annotations

import time

import pytest

from penstock.host import clock as clock_jumps
from penstock.host.clock import JUMP_US, Clock
from tests.eventually import eventually
from tests.unit.log.disks import Hand


def test_the_time_of_day_is_in_whole_microseconds() -> None:
    before = time.time_ns() // 1000
    now = Clock().now_us()
    assert before <= now <= time.time_ns() // 1000


def test_monotonic_time_is_in_nanoseconds_and_never_goes_back() -> None:
    clock = Clock()
    before = time.monotonic_ns()
    readings = [clock.monotonic_ns() for _ in range(100)]
    assert readings == sorted(readings)
    assert before <= readings[0] <= readings[-1] <= time.monotonic_ns()


def test_boot_time_never_goes_back_and_runs_at_least_as_far_as_monotonic_time() -> None:
    clock = Clock()
    before = clock.monotonic_ns()
    readings = [clock.boottime_ns() for _ in range(100)]
    assert readings == sorted(readings)
    assert before <= readings[0]


def test_boot_time_never_goes_back_and_is_not_behind_monotonic_time() -> None:
    clock = Clock()
    monotonic = clock.monotonic_ns()
    readings = [clock.boottime_ns() for _ in range(100)]
    assert readings == sorted(readings)
    assert readings[0] >= monotonic


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_jumps, "LOOK_SECONDS", 0.001)


@pytest.mark.parametrize("jump_us", [3600_000_000, -3600_000_000])
async def test_every_watcher_is_called_after_a_jump_in_either_direction(jump_us: int) -> None:
    clock, calls = Hand(), list[str]()
    watchers = [lambda: calls.append("a"), lambda: calls.append("b")]
    for watcher in watchers:
        clock.jumps.watch(watcher)

    async def both() -> bool:
        return sorted(calls) == ["a", "b"]

    clock.us += jump_us
    await eventually(both)
    clock.jumps.unwatch(watchers[0])
    clock.jumps.unwatch(watchers[0])
    calls.clear()
    clock.us += jump_us

    async def second() -> bool:
        return calls == ["b"]

    await eventually(second)
    clock.jumps.unwatch(watchers[1])
    assert clock.jumps._timer.when is None


async def test_clocks_that_drift_apart_slowly_are_noticed_as_well() -> None:
    clock, calls = Hand(), list[int]()

    def jumped() -> None:
        calls.append(clock.us)

    clock.jumps.watch(jumped)
    began_us = clock.us

    async def drifted() -> bool:
        clock.us += JUMP_US // 10
        return bool(calls)

    await eventually(drifted)
    assert calls[0] - began_us > JUMP_US
    clock.jumps.unwatch(jumped)


async def test_time_that_passes_is_no_jump() -> None:
    clock, looks = Clock(), list[int]()
    measure = clock.jumps._measure

    def measured() -> int:
        looks.append(1)
        return measure()

    clock.jumps._measure = measured  # type: ignore[method-assign]

    def jumped() -> None:
        raise AssertionError("the clock has not jumped")

    clock.jumps.watch(jumped)

    async def looked() -> bool:
        return len(looks) > 20

    await eventually(looked)
    clock.jumps.unwatch(jumped)
