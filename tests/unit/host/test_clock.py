import time

from penstock.host.clock import Clock


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
