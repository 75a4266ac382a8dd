"""A limit on bytes per second: a token bucket that may be overdrawn, and pays by waiting.

Taking more than there is makes a debt; whoever comes next waits for it, too. So any size may be
taken at once, order is kept, and the average holds. After a pause there is one second of credit.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.host.clock import Clock
from penstock.model.units import Nanoseconds

CREDIT_SECONDS: Final = 1.0
_SECOND_NS: Final = 1_000_000_000


class Bucket:
    """The arithmetic; time comes in."""

    def __init__(self, bytes_per_second: int, now_ns: Nanoseconds) -> None:
        self._rate = bytes_per_second
        self._credit_bytes = self._rate * CREDIT_SECONDS
        self._at_ns = now_ns

    def take(self, size_bytes: int, now_ns: Nanoseconds) -> float:
        """Seconds to wait before these bytes may go."""
        earned = (now_ns - self._at_ns) * self._rate / _SECOND_NS
        self._at_ns = now_ns
        self._credit_bytes = min(self._rate * CREDIT_SECONDS, self._credit_bytes + earned)
        self._credit_bytes -= size_bytes
        return max(0.0, -self._credit_bytes / self._rate)


class Bandwidth:
    """Lets bytes pass at most at this rate; 0 is no limit."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._clock = clock
        self._bucket = Bucket(bytes_per_second, clock.monotonic_ns()) if bytes_per_second else None

    async def wait(self, size_bytes: int) -> None:
        """Return when these bytes may go."""
        if self._bucket is not None:
            seconds = self._bucket.take(size_bytes, self._clock.monotonic_ns())
            if seconds:
                await asyncio.sleep(seconds)
