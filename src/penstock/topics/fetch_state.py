"""The limits that all fetches of one request share.

The messages that a request may return are divided among its fetches beforehand, in request order. A
fetch that has nothing more to read gives the unused part of its share to the others, so that
together they never return more than `max_messages`, and no fetch starves because another was first.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.model.errors import FetchInvalid

TIMEOUT_MS_DEFAULT: Final = 500
TIMEOUT_MS_MAX: Final = 60_000
MIN_MESSAGES_DEFAULT: Final = 1
MAX_MESSAGES_DEFAULT: Final = 10_000
MESSAGES_MAX: Final = 100_000
FETCH_BYTES_MAX: Final = 32 << 20
"""Approximate limit of bytes that one request returns, over all its topics."""


class FetchState:
    """The deadline, minimum and maximum of one request, and what its fetches have collected so far.

    Belongs to the event loop that creates it. Raises FetchInvalid.
    """

    def __init__(
        self,
        timeout_ms: float = TIMEOUT_MS_DEFAULT,
        min_messages: int = MIN_MESSAGES_DEFAULT,
        max_messages: int = MAX_MESSAGES_DEFAULT,
        fetches: int = 1,
        bytes_max: int = FETCH_BYTES_MAX,
    ) -> None:
        _check(timeout_ms, min_messages, max_messages)
        self.deadline = asyncio.get_running_loop().time() + min(timeout_ms, TIMEOUT_MS_MAX) / 1000
        self.min_messages, self.max_messages = min_messages, max_messages
        self.collected = 0
        self.bytes_left = bytes_max
        self.pool = 0
        """Messages of returned shares, which any fetch may take."""
        self._shares = [
            Share(self, max_messages // fetches + (index < max_messages % fetches))
            for index in range(fetches)
        ]
        self._joined = 0
        self._parked: set[asyncio.Future[None]] = set()

    def join(self) -> Share:
        """Take the share of the next fetch, in request order."""
        self._joined += 1
        return self._shares[self._joined - 1]

    @property
    def enough(self) -> bool:
        """Whether a fetch at the head returns instead of waiting."""
        return self.collected >= self.min_messages or self.full

    @property
    def full(self) -> bool:
        return self.collected >= self.max_messages or self.bytes_left <= 0

    def park(self) -> asyncio.Future[None]:
        """A future that completes when another fetch collects or returns messages."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked.add(future)
        future.add_done_callback(self._parked.discard)
        return future

    def unpark(self, future: asyncio.Future[None]) -> None:
        """Wake the fetch that waits for this future."""
        if not future.done():
            future.set_result(None)

    def hurry(self) -> None:
        """Let every fetch return as soon as it reaches the head, without waiting for messages."""
        self.min_messages = 0
        self.wake()

    def wake(self) -> None:
        """Wake every parked fetch."""
        for future in list(self._parked):
            self.unpark(future)


class Share:
    """The messages that one fetch may still take: its own part, then those others returned."""

    def __init__(self, state: FetchState, reserved: int) -> None:
        self._state, self._reserved = state, reserved

    @property
    def left(self) -> int:
        return 0 if self._state.full else self._reserved + self._state.pool

    @property
    def bytes_left(self) -> int:
        return self._state.bytes_left

    def take(self, messages: int, size_bytes: int) -> None:
        """Count collected messages; at most `left`."""
        state, from_share = self._state, min(messages, self._reserved)
        self._reserved -= from_share
        state.pool -= messages - from_share
        state.collected += messages
        state.bytes_left -= size_bytes
        if state.enough:
            state.wake()

    def give_back(self) -> None:
        """Return the unused share to the pool, from which this fetch takes from now on."""
        if self._reserved:
            self._state.pool += self._reserved
            self._reserved = 0
            self._state.wake()


def _check(timeout_ms: float, min_messages: int, max_messages: int) -> None:
    if timeout_ms <= 1:
        raise FetchInvalid("timeout_ms must be greater than 1")
    if min_messages < 1:
        raise FetchInvalid("min_messages must be at least 1")
    if max_messages < 1:
        raise FetchInvalid("max_messages must be at least 1")
    if max_messages > MESSAGES_MAX:
        raise FetchInvalid(f"max_messages must be at most {MESSAGES_MAX:_}")
    if min_messages > max_messages:
        raise FetchInvalid("min_messages must be less than or equal to max_messages")
