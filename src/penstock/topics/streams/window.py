"""Message ids of the recent past: what is published twice within the window is stored once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

IDS_MAX: Final = 1_000_000
"""Ids that are remembered; beyond that the oldest are forgotten before their time."""


class Window:
    """The ids of one stream, the oldest first."""

    def __init__(self, window_us: int, now_us: Callable[[], int]) -> None:
        self.window_us, self._now_us = window_us, now_us
        self._sequences: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()
        self._last = (0, b"")

    def last_id(self, sequence: int) -> bytes:
        """The id of the message that is the last one now; empty when it has none."""
        return self._last[1] if self._last[0] == sequence else b""

    def find(self, message_id: bytes) -> int | None:
        """The sequence under which this id was stored within the window."""
        self._expire()
        return self._sequences.get(message_id)

    def add(self, message_id: bytes, sequence: int, at_us: int | None = None) -> None:
        """Remember an id; `at_us` is when it came, if not now."""
        self._last = (sequence, message_id)
        if self.window_us:
            self._sequences[message_id] = sequence
            self._order.append((self._now_us() if at_us is None else at_us, message_id))
            self._expire()

    def forget(self, message_id: bytes) -> None:
        """It was not stored after all."""
        self._sequences.pop(message_id, None)

    def _expire(self) -> None:
        oldest = self._now_us() - self.window_us
        order = self._order
        while order and (order[0][0] < oldest or len(order) > IDS_MAX):
            _, message_id = order.popleft()
            self._sequences.pop(message_id, None)
