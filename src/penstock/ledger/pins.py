"""The client that a consumer with policy `pinned_client` serves.

The client receives an id with its first message and names it in its requests. Other requests wait
until the client sends none for a time limit; then the next one is pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger.requests import PullRequest


class Pin:
    """The id of the pinned client and its deadline."""

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self.id = ""
        self.until_ns = 0

    def refuses(self, request: PullRequest) -> bool:
        """Whether the request names another pin than the current one."""
        return bool(request.pin) and request.pin != self.id

    def extend(self, request: PullRequest, now_ns: int) -> None:
        """Extend the deadline if the request is from the pinned client."""
        if self.id and request.pin == self.id:
            self.until_ns = now_ns + self.limit_ns

    def choose(self, serving: Sequence[PullRequest], new_id: str, now_ns: int) -> list[PullRequest]:
        """The requests of the pinned client. If no client is pinned, pin one under `new_id`: the
        client of the first request that names no pin.
        """
        if not self.id:
            chosen = next((item for item in serving if not item.pin), None)
            if chosen is None:
                return []
            self.id = chosen.pin = new_id
            self.until_ns = now_ns + self.limit_ns
        return [item for item in serving if item.pin == self.id]

    def expire(self, now_ns: int) -> bool:
        """Unpin a client whose deadline has passed; returns whether it had."""
        if not self.id or now_ns < self.until_ns:
            return False
        self.id = ""
        return True
