"""A clock that stands still until the test moves it."""

from __future__ import annotations

from penstock.host.clock import Clock
from penstock.model.units import Microseconds, Nanoseconds


class StillClock(Clock):
    """All three clocks, moved together."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def now_us(self) -> Microseconds:
        return Microseconds(1_700_000_000_000_000 + self.ns // 1000)

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(self.ns)

    def boottime_ns(self) -> Nanoseconds:
        return Nanoseconds(self.ns)

    def pass_seconds(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)
