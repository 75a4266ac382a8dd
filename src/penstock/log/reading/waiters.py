"""Wakes callers that wait for messages of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Waiters:
    """Futures of callers that wait for a message at or after an offset, by partition.

    A caller registers *before* it looks at the head again, so that it misses no wake-up.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def arrival(self, partition: int, offset: int = 0) -> Iterator[asyncio.Future[None]]:
        """A future that completes when the partition's end passes `offset`, or the log closes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(partition, {})[future] = offset
        try:
            yield future
        finally:
            future.cancel()
            self._remove(partition, [future])

    def wake(self, partition: int, next_offset: int | None = None) -> None:
        """Complete the futures that wait for an offset before the new end; all if it is None."""
        waiting = self._waiting.get(partition, {})
        woken = [
            future
            for future, offset in waiting.items()
            if next_offset is None or offset < next_offset
        ]
        self._remove(partition, woken)
        for future in woken:
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Complete all futures."""
        for partition in list(self._waiting):
            self.wake(partition)

    def _remove(self, partition: int, futures: Iterable[asyncio.Future[None]]) -> None:
        if waiting := self._waiting.get(partition):
            for future in futures:
                waiting.pop(future, None)
            if not waiting:
                del self._waiting[partition]
