import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.clock import Clock
from penstock.model.units import Nanoseconds
from penstock.objects.bandwidth import CREDIT_SECONDS, Bandwidth, Bucket

SECOND = 1_000_000_000


class FakeClock(Clock):
    """Stands still unless somebody sleeps."""

    def __init__(self) -> None:
        self.now = 5 * SECOND

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(self.now)


def test_the_first_second_is_free_and_then_every_byte_is_waited_for() -> None:
    bucket = Bucket(100, Nanoseconds(0))
    assert bucket.take(100, Nanoseconds(0)) == 0
    assert bucket.take(50, Nanoseconds(0)) == 0.5
    assert bucket.take(50, Nanoseconds(0)) == 1.0
    assert bucket.take(0, Nanoseconds(SECOND)) == 0
    assert bucket.take(10, Nanoseconds(SECOND)) == 0.1


def test_a_pause_earns_no_more_than_one_second() -> None:
    bucket = Bucket(100, Nanoseconds(0))
    bucket.take(100, Nanoseconds(0))
    assert bucket.take(101, Nanoseconds(3600 * SECOND)) == 0.01


@pytest.mark.feature("T14")
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3 * SECOND)), min_size=1))
def test_no_more_bytes_pass_than_the_rate_allows_from_any_start(
    takes: list[tuple[int, int]],
) -> None:
    bucket, now, sent = Bucket(1000, Nanoseconds(0)), 0, 0
    for size, pause in takes:
        now += pause
        now += round(bucket.take(size, Nanoseconds(now)) * SECOND)
        sent += size
        assert sent <= 1000 * (now / SECOND + CREDIT_SECONDS) + 0.01


async def test_bytes_wait_for_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    bandwidth = Bandwidth(1000, FakeClock())
    for size in (1000, 500, 0, 250):
        await bandwidth.wait(size)
    assert slept == [0.5, 0.5, 0.75]


async def test_without_a_limit_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "sleep", None)
    await Bandwidth(0, FakeClock()).wait(1 << 40)
