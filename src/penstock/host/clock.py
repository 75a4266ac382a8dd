"""Time of day for messages, monotonic time for durations, boot time for what others count too."""

from __future__ import annotations

import time
from typing import Final

from penstock.model.units import Microseconds, Nanoseconds

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks."""

    def now_us(self) -> Microseconds:
        """Time of day; it may jump either way."""
        return Microseconds(time.time_ns() // 1000)

    def monotonic_ns(self) -> Nanoseconds:
        """Never goes back; meaningful only as a difference."""
        return Nanoseconds(time.monotonic_ns())

    def boottime_ns(self) -> Nanoseconds:
        """Monotonic time that also runs while the machine sleeps, where the system has it.

        A lease is counted by another machine, which does not sleep with this one.
        """
        return Nanoseconds(time.clock_gettime_ns(_BOOTTIME))
