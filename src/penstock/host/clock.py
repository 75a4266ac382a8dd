"""Time of day for messages, monotonic time for durations."""

from __future__ import annotations

import time

from penstock.model.units import Microseconds, Nanoseconds


class Clock:
    """The machine's clocks."""

    def now_us(self) -> Microseconds:
        """Time of day; it may jump either way."""
        return Microseconds(time.time_ns() // 1000)

    def monotonic_ns(self) -> Nanoseconds:
        """Never goes back; meaningful only as a difference."""
        return Nanoseconds(time.monotonic_ns())
