"""Clocks: time of day for messages, monotonic time for durations, boot time for leases.

A deadline in time of day needs a timer in monotonic time. `ClockJumps` notices when the two clocks
move apart (the clock was set or slewed, or the machine slept), so that timers can be set again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from threading import Event
from typing import Final

from penstock.host.tasks import Timer
from penstock.model.units import Microseconds, Nanoseconds

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks."""

    @cached_property
    def jumps(self) -> ClockJumps:
        """Notifies of jumps of the time of day, for deadlines in time of day."""
        return ClockJumps(self.now_us, self.monotonic_ns)

    def now_us(self) -> Microseconds:
        """Time of day; it may jump either way."""
        return Microseconds(time.time_ns() // 1000)

    def monotonic_ns(self) -> Nanoseconds:
        """Monotonic time; only differences are meaningful."""
        return Nanoseconds(time.monotonic_ns())

    def boottime_ns(self) -> Nanoseconds:
        """Monotonic time that also advances while the machine sleeps, if the system has it.

        Another machine measures leases and does not sleep with this one.
        """
        return Nanoseconds(time.clock_gettime_ns(_BOOTTIME))

    def wait(self, event: Event, seconds: float) -> bool:
        """Block the thread until the event is set or the time is over; whether it is set."""
        return event.wait(seconds)


LOOK_SECONDS: Final = 0.5
JUMP_US: Final = 100_000
"""Change of the difference of the clocks that counts as a jump."""


class ClockJumps:
    """Compares the clocks twice a second while there are watchers."""

    def __init__(self, now_us: Callable[[], int], monotonic_ns: Callable[[], int]) -> None:
        self._now_us, self._monotonic_ns = now_us, monotonic_ns
        self._watchers: dict[Callable[[], None], None] = {}
        self._timer = Timer(self._look)
        self._distance_us = 0

    def watch(self, jumped: Callable[[], None]) -> None:
        """Call `jumped` on the loop within a second of every jump."""
        self._watchers[jumped] = None
        if self._timer.when is None:
            self._distance_us = self._measure()
            self._timer.after(LOOK_SECONDS)

    def unwatch(self, jumped: Callable[[], None]) -> None:
        """Stop calling `jumped`; no error if it does not watch."""
        self._watchers.pop(jumped, None)
        if not self._watchers:
            self._timer.stop()

    def _look(self) -> None:
        self._timer.after(LOOK_SECONDS)
        distance_us = self._measure()
        if abs(distance_us - self._distance_us) > JUMP_US:
            self._distance_us = distance_us
            for jumped in list(self._watchers):
                jumped()

    def _measure(self) -> int:
        return self._now_us() - self._monotonic_ns() // 1000
