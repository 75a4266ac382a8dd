"""The tail cache: recent batches in memory, written through, bounded in bytes and age.

One cache for the whole broker, so that one number bounds it; the oldest batch of any topic goes
first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from penstock.model.batch import Batch
from penstock.model.units import Nanoseconds, Offset, PartitionId

FORGOTTEN_MAX: Final = 256
"""Places in the order that may belong to no batch any more, if most others do."""


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
        index = self._find(batches, offset)
        if batches is None or index is None:
            return []
        found, size = [batches[index]], batches[index].nbytes
        for position in range(index + 1, len(batches)):
            size += batches[position].nbytes
            if size > bytes_max:
                break
            found.append(batches[position])
        return found

    def holding(self, partition: PartitionId, offset: Offset) -> Batch | None:
        """The batch with this offset."""
        batches = self._batches.get(partition)
        index = self._find(batches, offset)
        return None if batches is None or index is None else batches[index]

    def _find(self, batches: deque[Batch] | None, offset: Offset) -> int | None:
        if not batches or not batches[0].first_offset <= offset < batches[-1].next_offset:
            self._cache.misses += 1
            return None
        self._cache.hits += 1
        return bisect_right(batches, offset, key=_first_offset) - 1

    def first(self, partition: PartitionId) -> Offset | None:
        """The oldest offset that is cached."""
        batches = self._batches.get(partition)
        return batches[0].first_offset if batches else None

    def first_after(self, partition: PartitionId, timestamp: int) -> Offset | None:
        """The first cached offset that is not older than `timestamp`."""
        for batch in self._batches.get(partition, ()):
            stamps = batch.timestamp_column().to_numpy()
            position = int(np.searchsorted(stamps, timestamp))
            if position < batch.messages:
                return Offset(batch.first_offset + position)
        return None

    def batches(self) -> Iterator[Batch]:
        """All that is cached, each partition in order."""
        for batches in self._batches.values():
            yield from batches

    def clear(self) -> None:
        for partition in list(self._batches):
            self._cache.forget(self, PartitionId(partition))

    def drop_first(self, partition: PartitionId, offset: Offset) -> Batch | None:
        """Called by the cache alone: the batch at `offset` if it is still there, the oldest."""
        if not self.holds(partition, offset):
            return None
        batches = self._batches[partition]
        dropped = batches.popleft()
        if not batches:
            del self._batches[partition]
        return dropped

    def holds(self, partition: PartitionId, offset: Offset) -> bool:
        """Whether a batch that was added at `offset` has not been forgotten since."""
        batches = self._batches.get(partition)
        return batches is not None and batches[0].first_offset <= offset

    def take(self, partition: PartitionId) -> deque[Batch]:
        """Called by the cache alone."""
        return self._batches.pop(partition, deque())


class TailCache:
    """The bound over all tails."""

    def __init__(self, bytes_max: int, age_max: Nanoseconds) -> None:
        self._bytes_max = bytes_max
        self._age_max = age_max
        self._order: deque[tuple[Nanoseconds, Tail, PartitionId, Offset]] = deque()
        self._forgotten = 0
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def tail(self) -> Tail:
        return Tail(self)

    def added(self, tail: Tail, batch: Batch, now: Nanoseconds) -> None:
        self._order.append((now, tail, batch.partition, batch.first_offset))
        self.size_bytes += batch.nbytes
        self.evict(now)

    def evict(self, now: Nanoseconds) -> None:
        """Drop the oldest batches until the bounds hold."""
        order = self._order
        while order and (self.size_bytes > self._bytes_max or now - order[0][0] > self._age_max):
            _, tail, partition, offset = order.popleft()
            dropped = tail.drop_first(partition, offset)
            if dropped is None:
                self._forgotten -= 1
            else:
                self.size_bytes -= dropped.nbytes

    def forget(self, tail: Tail, partition: PartitionId) -> None:
        """Drop a whole partition of a tail; its places in the order are passed over later."""
        batches = tail.take(partition)
        self.size_bytes -= sum(batch.nbytes for batch in batches)
        self._forgotten += len(batches)
        if self._forgotten > FORGOTTEN_MAX and 2 * self._forgotten > len(self._order):
            self._order = deque(entry for entry in self._order if entry[1].holds(*entry[2:]))
            self._forgotten = 0


def _first_offset(batch: Batch) -> Offset:
    return batch.first_offset
