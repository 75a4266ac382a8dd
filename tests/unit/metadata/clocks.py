"""A clock that stands still until the test moves it."""

from __future__ import annotations

import time
from threading import Event

from penstock.host.clock import Clock
from penstock.model.units import Microseconds, Nanoseconds


class StillClock(Clock):
    """All three clocks, moved together."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000
        self.waited_ns = 0
        """The time at which a thread last found that it has to wait on."""

    def now_us(self) -> Microseconds:
        return Microseconds(1_700_000_000_000_000 + self.ns // 1000)

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(self.ns)

    def boottime_ns(self) -> Nanoseconds:
        return Nanoseconds(self.ns)

    def wait(self, event: Event, seconds: float) -> bool:
        end_ns = self.ns + int(seconds * 1e9)
        while not event.is_set() and (now_ns := self.ns) < end_ns:
            self.waited_ns = now_ns
            time.sleep(0.0005)
        return event.is_set()

    def pass_seconds(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)
