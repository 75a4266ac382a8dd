"""Who waits for the next message of a partition.

A waiter registers *before* it looks at the head again, so that no wake-up is lost, and leaves in
any case, so that none leaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Waiters:
    """Futures by partition; a wake-up completes and forgets all of a partition."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def arrival(self, partition: int) -> Iterator[asyncio.Future[None]]:
        """A future that completes with the next commit to the partition, or when the log closes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(partition, set()).add(future)
        try:
            yield future
        finally:
            future.cancel()
            if waiting := self._waiting.get(partition):
                waiting.discard(future)
                if not waiting:
                    del self._waiting[partition]

    def wake(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            for future in self._waiting.pop(partition, ()):
                if not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        self.wake(list(self._waiting))
