"""The tail cache: recent batches in memory, written through, bounded in bytes and age.

One cache for the whole broker, so that one number bounds it; the oldest batch of any topic goes
first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from penstock.model.batch import Batch
from penstock.model.units import Nanoseconds, Offset, PartitionId


class Tail:
    """Cached batches of one log, by partition, in offset order and without gaps."""

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._batches: dict[int, deque[Batch]] = {}

    def add(self, batch: Batch, now: Nanoseconds) -> None:
        """Keep a committed batch; what does not continue the tail replaces it."""
        batches = self._batches.setdefault(batch.partition, deque())
        if batches and batches[-1].next_offset != batch.first_offset:
            self._cache.forget(self, batch.partition)
            batches = self._batches.setdefault(batch.partition, deque())
        batches.append(batch)
        self._cache.added(self, batch, now)

    def get(self, partition: PartitionId, offset: Offset, bytes_max: int) -> list[Batch]:
        """Batches from the one with `offset` on, at least one, then up to `bytes_max`; or none."""
        batches = self._batches.get(partition)
        if not batches or not batches[0].first_offset <= offset < batches[-1].next_offset:
            self._cache.misses += 1
            return []
        self._cache.hits += 1
        index = bisect_right(batches, offset, key=_first_offset) - 1
        found, size = [batches[index]], batches[index].nbytes
        for position in range(index + 1, len(batches)):
            size += batches[position].nbytes
            if size > bytes_max:
                break
            found.append(batches[position])
        return found

    def first(self, partition: PartitionId) -> Offset | None:
        """The oldest offset that is cached."""
        batches = self._batches.get(partition)
        return batches[0].first_offset if batches else None

    def clear(self) -> None:
        for partition in list(self._batches):
            self._cache.forget(self, PartitionId(partition))

    def drop_first(self, partition: PartitionId) -> None:
        """Called by the cache alone."""
        batches = self._batches[partition]
        batches.popleft()
        if not batches:
            del self._batches[partition]

    def take(self, partition: PartitionId) -> deque[Batch]:
        """Called by the cache alone."""
        return self._batches.pop(partition, deque())


class TailCache:
    """The bound over all tails."""

    def __init__(self, bytes_max: int, age_max: Nanoseconds) -> None:
        self._bytes_max = bytes_max
        self._age_max = age_max
        self._order: deque[tuple[Nanoseconds, Tail, Batch]] = deque()
        self._forgotten: set[int] = set()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def tail(self) -> Tail:
        return Tail(self)

    def added(self, tail: Tail, batch: Batch, now: Nanoseconds) -> None:
        self._order.append((now, tail, batch))
        self.size_bytes += batch.nbytes
        self.evict(now)

    def evict(self, now: Nanoseconds) -> None:
        """Drop the oldest batches until the bounds hold."""
        order = self._order
        while order and (self.size_bytes > self._bytes_max or now - order[0][0] > self._age_max):
            _, tail, batch = order.popleft()
            if id(batch) in self._forgotten:
                self._forgotten.remove(id(batch))
                continue
            self.size_bytes -= batch.nbytes
            tail.drop_first(batch.partition)

    def forget(self, tail: Tail, partition: PartitionId) -> None:
        """Drop a whole partition of a tail; its places in the order are passed over later."""
        for batch in tail.take(partition):
            self._forgotten.add(id(batch))
            self.size_bytes -= batch.nbytes


def _first_offset(batch: Batch) -> Offset:
    return batch.first_offset
