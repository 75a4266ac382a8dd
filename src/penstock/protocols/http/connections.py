"""Limits and counters that all connections of the HTTP listener share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final

import structlog

from penstock.model.metrics import Metric, single

LINGER_SECONDS: Final = 3
"""Time for a client to read the reply to a refused request and to close the connection."""
LOG_INTERVAL_SECONDS: Final = 10
"""Refused connections are logged at most this often."""

_events = structlog.get_logger(__name__)


class Wait(Enum):
    """The next action of a client that its connection waits for."""

    FIRST_REQUEST = "first request"
    HEAD = "head"
    BODY = "body"
    REQUEST = "next request"
    READ = "read"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the HTTP listener."""

    head_bytes: int = 64 << 10
    connections: int = 20_000
    head_seconds: int = 10
    idle_seconds: int = 75
    stall_seconds: int = 30

    def seconds(self, wait: Wait) -> int:
        """The longest time that a connection waits without progress."""
        if wait in (Wait.FIRST_REQUEST, Wait.HEAD):
            return self.head_seconds
        if wait is Wait.REQUEST:
            return self.idle_seconds
        return LINGER_SECONDS if wait is Wait.CLOSE else self.stall_seconds


class Connections:
    """Admits connections, and counts refusals and timeouts."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.refused = 0
        self._refusals: Counter[int] = Counter()
        self._timeouts: Counter[Wait] = Counter()
        self._refused_logged = 0
        self._log_at_seconds = 0

    def admit(self, count: int) -> bool:
        """Return whether another connection is allowed beside `count` open ones."""
        if count < self.limits.connections:
            return True
        self.refused += 1
        return False

    def count_refusal(self, status: int) -> None:
        """Count a request that was refused before it reached the application."""
        self._refusals[status] += 1

    def count_timeout(self, wait: Wait) -> None:
        """Count a connection that was closed because its client made no progress."""
        self._timeouts[wait] += 1

    def log_refused(self, now_seconds: int) -> None:
        """Log how many connections were refused since the previous log line, if any were."""
        refused = self.refused - self._refused_logged
        if refused and now_seconds >= self._log_at_seconds:
            _events.warning(
                "http_connections_refused", connections=refused, limit=self.limits.connections
            )
            self._refused_logged = self.refused
            self._log_at_seconds = now_seconds + LOG_INTERVAL_SECONDS

    def metrics(self, count: int) -> list[Metric]:
        """The metrics of the listener, which has `count` open connections."""
        refusals: list[tuple[dict[str, str], float]] = [
            ({"status": str(status)}, number) for status, number in sorted(self._refusals.items())
        ]
        timeouts: list[tuple[dict[str, str], float]] = [
            ({"wait": wait.name.lower()}, self._timeouts[wait]) for wait in Wait
        ]
        return [
            single("penstock_http_connections", "gauge", "Open HTTP connections.", count),
            single(
                "penstock_http_connections_refused",
                "counter",
                "HTTP connections refused because of http.max_connections.",
                self.refused,
            ),
            Metric(
                "penstock_http_requests_refused",
                "counter",
                "HTTP requests refused as malformed, too large or too slow, by status.",
                [*refusals],
            ),
            Metric(
                "penstock_http_timeouts",
                "counter",
                "HTTP connections closed because the client was silent, by what was awaited.",
                [*timeouts],
            ),
        ]
