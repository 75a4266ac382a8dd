"""The one client that a pinned consumer serves, known by an id that it got with a message.

While it is heard of within a time limit, others wait. Then the next one is pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger.requests import Request


class Pin:
    """Who is pinned, and until when."""

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self.id = ""
        self.until_ns = 0

    def refuses(self, request: Request) -> bool:
        """Whether the request names another pin than the present one."""
        return bool(request.pin) and request.pin != self.id

    def heard(self, request: Request, now_ns: int) -> None:
        if self.id and request.pin == self.id:
            self.until_ns = now_ns + self.limit_ns

    def choose(self, serving: Sequence[Request], fresh: str, now_ns: int) -> list[Request]:
        """Those of the pinned client; without one the first that has no pin becomes it."""
        if not self.id:
            chosen = next((item for item in serving if not item.pin), None)
            if chosen is None:
                return []
            self.id = chosen.pin = fresh
            self.until_ns = now_ns + self.limit_ns
        return [item for item in serving if item.pin == self.id]

    def expire(self, now_ns: int) -> bool:
        """Whether the pinned client was silent for too long; then nobody is pinned."""
        if not self.id or now_ns < self.until_ns:
            return False
        self.id = ""
        return True
