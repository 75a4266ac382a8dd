"""The tail cache: recent batches of all logs in memory, bounded in bytes and age.

Batches enter when they are committed. All topics share one limit; the oldest batch of any topic is
evicted first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from penstock.model.batch import Batch
from penstock.model.metrics import Metric, single
from penstock.model.units import Nanoseconds, Offset, PartitionId

STALE_ENTRIES_MAX: Final = 256
"""Entries of the eviction order without a batch, beyond which the order may be rebuilt."""


class Tail:
    """Cached batches of one log, by partition, in offset order and without gaps."""

    def __init__(
        self, cache: TailCache, dropped: Callable[[PartitionId, Offset], None] | None = None
    ) -> None:
        """`dropped` is called with the offset after messages that have left the cache."""
        self._cache, self._dropped = cache, dropped
        self._batches: dict[int, deque[Batch]] = {}

    def add(self, batch: Batch, now: Nanoseconds) -> None:
        """Add a committed batch; a batch that does not continue the tail replaces it."""
        batches = self._batches.setdefault(batch.partition, deque())
        if batches and batches[-1].next_offset != batch.first_offset:
            self._note_dropped(batches[-1])
            self._cache.forget(self, batch.partition)
            batches = self._batches.setdefault(batch.partition, deque())
        batches.append(batch)
        self._cache.added(self, batch, now)

    def get(self, partition: PartitionId, offset: Offset, bytes_max: int) -> list[Batch]:
        """Batches from the one with `offset` on, at least one and up to `bytes_max`, or none."""
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
        """The batch that contains this offset."""
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
        """All cached batches, those of a partition in order."""
        for batches in self._batches.values():
            yield from batches

    def clear(self) -> None:
        for partition in list(self._batches):
            self._cache.forget(self, PartitionId(partition))

    def drop_first(self, partition: PartitionId, offset: Offset) -> Batch | None:
        """Remove and return the oldest batch if it is the one at `offset`; for the cache only."""
        if not self.holds(partition, offset):
            return None
        batches = self._batches[partition]
        dropped = batches.popleft()
        if not batches:
            del self._batches[partition]
        self._note_dropped(dropped)
        return dropped

    def holds(self, partition: PartitionId, offset: Offset) -> bool:
        """Whether the batch that was added at `offset` is still cached."""
        batches = self._batches.get(partition)
        return batches is not None and batches[0].first_offset <= offset

    def _note_dropped(self, batch: Batch) -> None:
        if self._dropped is not None:
            self._dropped(batch.partition, batch.next_offset)

    def take(self, partition: PartitionId) -> deque[Batch]:
        """Remove and return all batches of a partition; for the cache only."""
        return self._batches.pop(partition, deque())


class TailCache:
    """Bounds the tails of all logs together."""

    def __init__(self, bytes_max: int, age_max: Nanoseconds) -> None:
        self._bytes_max = bytes_max
        self._age_max = age_max
        self._order: deque[tuple[Nanoseconds, Tail, PartitionId, Offset]] = deque()
        self._stale = 0
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def tail(self, dropped: Callable[[PartitionId, Offset], None] | None = None) -> Tail:
        return Tail(self, dropped)

    def added(self, tail: Tail, batch: Batch, now: Nanoseconds) -> None:
        self._order.append((now, tail, batch.partition, batch.first_offset))
        self.size_bytes += batch.nbytes
        self.evict(now)

    def evict(self, now: Nanoseconds) -> None:
        """Evict the oldest batches until the limits hold."""
        order = self._order
        while order and (self.size_bytes > self._bytes_max or now - order[0][0] > self._age_max):
            _, tail, partition, offset = order.popleft()
            dropped = tail.drop_first(partition, offset)
            if dropped is None:
                self._stale -= 1
            else:
                self.size_bytes -= dropped.nbytes

    def forget(self, tail: Tail, partition: PartitionId) -> None:
        """Drop a partition of a tail; its entries in the eviction order are skipped later."""
        batches = tail.take(partition)
        self.size_bytes -= sum(batch.nbytes for batch in batches)
        self._stale += len(batches)
        if self._stale > STALE_ENTRIES_MAX and 2 * self._stale > len(self._order):
            self._order = deque(entry for entry in self._order if entry[1].holds(*entry[2:]))
            self._stale = 0

    def metrics(self) -> list[Metric]:
        """Size and hit ratio as metrics."""
        reads = self.hits + self.misses
        return [
            single("penstock_walcache_bytes", "gauge", "Bytes in the tail cache.", self.size_bytes),
            single(
                "penstock_walcache_hit_ratio",
                "gauge",
                "Share of reads answered by the tail cache.",
                self.hits / reads if reads else 1.0,
            ),
        ]


def _first_offset(batch: Batch) -> Offset:
    return batch.first_offset
