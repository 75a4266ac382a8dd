"""Counts the messages of a partition and their bytes, those that are not durable yet included."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

import numpy as np
from pyroaring import BitMap64

from penstock.log import range_count, range_from
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset
from penstock.streams.sizes import Measured, SizeCounting, Sizes
from penstock.topics import OpenPartition

SIZES_MAX: Final = 1 << 20
"""Number of sizes that are remembered of the newest and of the oldest messages each."""


class StreamCounts:
    """The number and the bytes of the messages of one partition.

    A message counts as deleted from the moment its deletion is appended, durable or not.
    """

    def __init__(self, partition: OpenPartition, counting: SizeCounting) -> None:
        self._partition, self.counting = partition, counting
        self.reset()

    def reset(self) -> None:
        """Count again from what is durable."""
        partition = self._partition
        self.sizes = Sizes(partition.next_offset)
        self._old_bytes = self._new_bytes = 0
        """Bytes of live messages before, and from, the first remembered new size."""
        self.unmeasured = partition.start_offset < self.sizes.base
        """Whether there are messages that were never counted."""
        self._deleting: set[int] = set()
        """Single messages whose deletion is not durable yet."""
        self._appended_start: int = partition.start_offset
        """Everything before this offset counts as deleted."""

    # -- state

    @property
    def total_bytes(self) -> int:
        """Bytes of all live messages, once they are measured."""
        return self._old_bytes + self._new_bytes

    @property
    def durable_bytes(self) -> int:
        """Bytes of the messages that are visible to readers."""
        durable, stop = max(self._partition.next_offset, self.start()), self.sizes.stop
        if durable >= stop:
            return self.total_bytes
        return self.total_bytes - (self.bytes_between(durable, stop) or 0)

    def start(self) -> int:
        """The log start offset, deletions that are not durable yet included."""
        return max(self._appended_start, self._partition.start_offset)

    def live(self) -> int:
        """Number of messages."""
        stop = self._partition.appended_offset
        start, deleted = self.start(), self._partition.deleted
        holes = 0 if deleted is None else deleted.range_cardinality(start, stop)
        return stop - start - holes - len(self._deleting)

    def alive(self, offsets: Iterable[int]) -> set[int]:
        """The offsets among these that have a message."""
        deleted, deleting = self._partition.deleted, self._deleting
        start, stop = self.start(), self._partition.appended_offset
        found = {offset for offset in offsets if start <= offset < stop} - deleting
        return found if deleted is None else {offset for offset in found if offset not in deleted}

    def live_from(self, start: int, stop: int, count: int) -> Sequence[int]:
        """The first live offsets of a range: at least `count` if there are so many."""
        deleted, deleting = self._partition.deleted, self._deleting
        found = range_from(start, stop, deleted, count + len(deleting))
        return [offset for offset in found if offset not in deleting] if deleting else found

    def first_live(self) -> int:
        """The first offset from the start on whose deletion is not durable."""
        return self._partition.next_live(self.start())

    def bytes_between(self, start: int, stop: int) -> int | None:
        """Bytes of the live messages in a range; None if some are unknown."""
        total = self.sizes.total(start, stop)
        if total is None:
            return None
        return total - sum(self.sizes.get(offset) or 0 for offset in self._deleted(start, stop))

    # -- changes

    def append(self, run: Run | ColumnRun, first_offset: Offset) -> None:
        """Count a run that was appended."""
        if first_offset != self.sizes.stop:
            self._jump(first_offset)
        sizes, total = self.counting.count(run)
        self.sizes.add(run.count, sizes)
        self._new_bytes += total

    def commit(self) -> None:
        """Count what was appended before as durable."""
        start = self._partition.start_offset
        if start > self._appended_start:
            self._purged(start)
        if self._deleting:
            deleted = self._partition.deleted
            self._deleting = {
                offset
                for offset in self._deleting
                if offset >= start and (deleted is None or offset not in deleted)
            }

    def delete(self, start: int, offsets: Collection[int]) -> set[int]:
        """Count deletions: everything before `start`, and single messages.

        Returns the single messages that existed.
        """
        alive = self.alive(offsets)
        for offset in alive:
            self._subtract(self.sizes.get(offset), old=offset < self.sizes.base)
        self._deleting |= alive
        before, start = self.start(), min(start, self.sizes.stop)
        if start > before:
            base = self.sizes.base
            if start >= base:
                self._old_bytes, self.unmeasured = 0, False
                self._subtract(self.bytes_between(max(before, base), start), old=False)
            else:
                self._subtract(self.bytes_between(before, start), old=True)
            self._appended_start = start
            self._deleting = {offset for offset in self._deleting if offset >= start}
            self.sizes.forget_before(start)
        return alive

    def add_measured(self, base: int, measured: Measured) -> None:
        """Add the sizes of all messages before `base`, where the newer sizes began when they were
        measured.
        """
        if base != self.sizes.base:
            return
        deleted, excluded = self._partition.deleted, BitMap64(self._deleting)
        if deleted is not None:
            excluded |= BitMap64(measured.offsets) & deleted
        alive = measured.offsets >= self.start()
        alive &= ~np.isin(measured.offsets, np.fromiter(excluded, np.int64))
        self._old_bytes = int(measured.sizes[alive].sum())
        first = measured.first(base)
        self.sizes.set_oldest(first, measured.dense(first, min(first + SIZES_MAX, base)))
        self.unmeasured = False

    def shrink(self) -> None:
        """Forget sizes of newer messages if too many are remembered."""
        if len(self.sizes) > SIZES_MAX and not self.unmeasured:
            self._forget_sizes(len(self.sizes) - SIZES_MAX // 2)

    # -- details

    def _purged(self, start: int) -> None:
        """Adjust the sums after others deleted everything before an offset."""
        self._appended_start = start
        self.sizes.forget_before(start)
        base, stop = self.sizes.base, self.sizes.stop
        self.unmeasured = start < base
        first = min(max(start, base), stop)
        self._old_bytes, self._new_bytes = 0, self.bytes_between(first, stop) or 0

    def _jump(self, first: int) -> None:
        """Adjust to a message that does not follow the last known one."""
        stop, deleted = self.sizes.stop, self._partition.deleted
        self._forget_sizes(len(self.sizes))
        self.sizes.base = first
        if range_count(max(stop, self.start()), first, deleted):
            self.unmeasured = True

    def _subtract(self, size: int | None, *, old: bool) -> None:
        if size is None:
            self.unmeasured = True
        elif old:
            self._old_bytes -= size
        else:
            self._new_bytes -= size

    def _deleted(self, start: int, stop: int) -> list[int]:
        """Single deleted messages in a range."""
        found = [offset for offset in self._deleting if start <= offset < stop]
        deleted = self._partition.deleted
        if deleted is not None and (count := deleted.range_cardinality(start, stop)):
            found += islice(deleted.iter_equal_or_larger(start), count)
        return found

    def _forget_sizes(self, count: int) -> None:
        moved = self.bytes_between(self.sizes.base, self.sizes.base + count) or 0
        self._old_bytes += moved
        self._new_bytes -= moved
        self.sizes.forget(count, SIZES_MAX)
