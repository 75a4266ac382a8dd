"""Enforces the limits of a stream: messages, bytes, and messages per subject.

It observes every append, over any protocol, and deletes the excess in the same group commit, so
that no reader sees the limits exceeded. Excess that must first be looked up on disk is deleted a
moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from pyroaring import BitMap64

from penstock.host.tasks import Tasks
from penstock.log import LogObserver, range_count, range_from
from penstock.model.errors import PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset
from penstock.streams.sizes import Measured, SizeCounting, Sizes
from penstock.streams.subject_offsets import PendingSubjects, SubjectOffsets
from penstock.topics import OpenPartition
from penstock.wire.jetstream.stream_config import StreamConfig

SIZES_MAX: Final = 1 << 20
"""Number of sizes that are remembered of the newest and of the oldest messages each."""
DROPPED_AT_ONCE: Final = 1000
"""The oldest messages that are examined together."""
LOOKED_UP: Final = 10_000
"""The oldest messages whose sizes are looked up together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one stream; None is no limit."""

    messages: int | None = None
    bytes: int | None = None
    per_subject: int | None = None
    refuse_new: bool = False
    """Whether excess messages are refused; otherwise the oldest are deleted."""
    rolls_up: bool = False
    """Whether a message may replace others of its subject."""


def limits_of(config: StreamConfig) -> Limits:
    """The limits in a stream's configuration."""
    return Limits(
        config.max_msgs if config.max_msgs > 0 else None,
        config.max_bytes if config.max_bytes > 0 else None,
        config.max_msgs_per_subject if config.max_msgs_per_subject > 0 else None,
        config.discard == "new",
        config.allow_rollup_hdrs,
    )


class Keeper(LogObserver):
    """Counts the messages of one partition and holds its limits.

    A message counts as deleted from the moment its deletion is appended, durable or not.
    """

    def __init__(
        self,
        partition: OpenPartition,
        limits: Limits,
        counting: SizeCounting,
        look_up: Callable[[int, int], Awaitable[Measured]],
    ) -> None:
        """`look_up` returns the sizes of the messages between two offsets."""
        self._partition = partition
        self.of_subjects = SubjectOffsets(partition, self._start, self.alive, self._looked_up)
        self.pending_subjects: PendingSubjects | None = None
        """Subjects of messages that are not durable, for streams whose messages replace others."""
        self.limits = limits
        self.counting, self._look_up = counting, look_up
        self._tasks = Tasks()
        self._begin()

    def _begin(self) -> None:
        """Count from what is durable."""
        partition = self._partition
        self.sizes = Sizes(partition.next_offset)
        self._old_bytes = self._new_bytes = 0
        """Bytes of live messages before, and from, the first remembered new size."""
        self.unmeasured = partition.start_offset < self.sizes.base
        """Whether there are messages that were never counted."""
        self.of_subjects.forget()
        self._dropping: set[int] = set()
        """Single messages whose deletion is not durable yet."""
        self._start_taken: int = partition.start_offset
        """Everything before this offset counts as deleted."""
        self._looking = False

    @property
    def limits(self) -> Limits:
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits, self.of_subjects.most = limits, limits.per_subject
        if not limits.rolls_up:
            self.pending_subjects = None
        elif self.pending_subjects is None:
            self.pending_subjects = PendingSubjects(self._partition)

    @property
    def total_bytes(self) -> int:
        """Bytes of all live messages, once they are measured."""
        return self._old_bytes + self._new_bytes

    @property
    def durable_bytes(self) -> int:
        """Bytes of the messages that are visible to readers."""
        durable, stop = max(self._partition.next_offset, self._start()), self.sizes.stop
        if durable >= stop:
            return self.total_bytes
        return self.total_bytes - (self._sum(durable, stop) or 0)

    # -- observer of the log

    def appended(self, run: Run | ColumnRun, first_offset: Offset) -> None:
        """Count a run that was appended, and make room for it."""
        if run.partition != self._partition.id:
            return
        if first_offset != self.sizes.stop:
            self._jump(first_offset)
        sizes, total = self.counting.count(run)
        self.sizes.add(run.count, sizes)
        self._new_bytes += total
        if self.pending_subjects is not None:
            self.pending_subjects.add(_subjects(run, self.counting), first_offset + run.count)
        if self.limits.per_subject is not None:
            self._delete(self.of_subjects.add(self.counting.subjects(run), first_offset))
        self.limit()
        if len(self.sizes) > SIZES_MAX and not self.unmeasured:
            self._forget_sizes(len(self.sizes) - SIZES_MAX // 2)

    def committed(self, partitions: set[int]) -> None:
        """Count what was appended before as durable."""
        if self._partition.id not in partitions:
            return
        start = self._partition.start_offset
        if start > self._start_taken:
            self._purged(start)
        if self._dropping:
            deleted = self._partition.deleted
            self._dropping = {
                offset
                for offset in self._dropping
                if offset >= start and (deleted is None or offset not in deleted)
            }

    def discarded(self) -> None:
        """Forget what was not durable."""
        self._begin()

    # -- deletions by others

    def dropped(self, start: int, offsets: Collection[int], subject: bytes | None = None) -> None:
        """Record a deletion: everything before `start`, and single offsets, all of `subject` if
        given.
        """
        self.of_subjects.dropped(self._note(start, offsets), subject)

    def drop_soon(self, start: Offset, offsets: Collection[int], subject: bytes | None) -> None:
        """Delete these in the group that forms now, because a message just appended replaces them.

        Raises what `OpenPartition.drop_soon` raises.
        """
        self.dropped(start, offsets, subject)
        future = self._partition.drop_soon(start, offsets, "rollup")
        future.add_done_callback(_look_at)

    def learn(self, base: int, measured: Measured) -> None:
        """Add the sizes of all messages before `base`, where the newer sizes begin."""
        if base != self.sizes.base:
            return
        deleted, gone = self._partition.deleted, BitMap64(self._dropping)
        if deleted is not None:
            gone |= BitMap64(measured.offsets) & deleted
        alive = measured.offsets >= self._start()
        alive &= ~np.isin(measured.offsets, np.fromiter(gone, np.int64))
        self._old_bytes = int(measured.sizes[alive].sum())
        first = measured.first(base)
        self.sizes.learn(first, measured.dense(first, min(first + SIZES_MAX, base)))
        self.unmeasured = False
        self.limit()

    # -- state

    def live(self) -> int:
        """Number of messages, those that are not durable yet included."""
        stop = self._partition.appended_offset
        start, deleted = self._start(), self._partition.deleted
        gone = 0 if deleted is None else deleted.range_cardinality(start, stop)
        return stop - start - gone - len(self._dropping)

    def alive(self, offsets: Iterable[int]) -> set[int]:
        """Which of these offsets have a message."""
        deleted, dropping = self._partition.deleted, self._dropping
        start, stop = self._start(), self._partition.appended_offset
        found = {offset for offset in offsets if start <= offset < stop} - dropping
        return found if deleted is None else {offset for offset in found if offset not in deleted}

    async def loaded(self) -> None:
        """Wait until no look-up is running."""
        await self.of_subjects.loaded()
        await self._tasks.drain()

    # -- limits of all messages

    def limit(self) -> None:
        """Delete the oldest messages until the limits hold, unless excess is refused."""
        start, limits = self._start(), self.limits
        if limits.refuse_new or self.of_subjects.loading:
            # What a limit per subject deletes must not be counted twice.
            return
        stop = self._partition.appended_offset
        new = start
        if limits.messages is not None and (excess := self.live() - limits.messages) > 0:
            new = self._after(start, stop, excess)
        if limits.bytes is not None and not self.unmeasured:
            new = self._within_bytes(limits.bytes, new, stop)
        if new > start:
            self._note(new, ())
            self._drop(Offset(new), ())

    def _within_bytes(self, most: int, new: int, stop: int) -> int:
        """The offset from which on the messages fit the byte limit, as far as sizes are known."""
        if self.total_bytes <= most:
            return new
        first = self._first_live()
        before = self._sum(first, max(first, new))
        if before is None:
            self._look_up_oldest()
            return new
        left = self.total_bytes - before
        while left > most and new < stop:
            for offset in self._live_from(new, stop, DROPPED_AT_ONCE):
                size = self.sizes.get(offset)
                if size is None:
                    self._look_up_oldest()
                if size is None or left <= most:
                    return offset
                left -= size
                new = offset + 1
        return new

    def _after(self, start: int, stop: int, count: int) -> int:
        """The offset of the live message after the first `count`."""
        found = self._live_from(start, stop, count + 1)
        return found[count] if len(found) > count else stop

    def _live_from(self, start: int, stop: int, count: int) -> Sequence[int]:
        """The first live offsets of a range: at least `count` if there are so many."""
        deleted, dropping = self._partition.deleted, self._dropping
        found = range_from(start, stop, deleted, count + len(dropping))
        return [offset for offset in found if offset not in dropping] if dropping else found

    def _look_up_oldest(self) -> None:
        if not self._looking:
            self._looking = True
            self._tasks.start(self._look())

    async def _look(self) -> None:
        """Look up the sizes of the oldest messages, then delete the excess."""
        sizes, first = self.sizes, self._first_live()
        stop = min(first + LOOKED_UP, sizes.base)
        try:
            found = await self._look_up(first, stop)
        except PenstockError:
            self._looking = False
            return
        if self.sizes is sizes:
            sizes.learn(first, found.dense(first, stop))
            self._looking = False
            self.limit()

    # -- details

    def _looked_up(self, too_many: list[int]) -> None:
        """Delete the excess messages of a subject that was looked up."""
        self._delete(too_many)
        self.limit()

    def _delete(self, offsets: list[int]) -> None:
        self._drop(Offset(0), sorted(self._note(0, offsets)))

    def _drop(self, start: Offset, offsets: Sequence[int]) -> None:
        if not start and not offsets:
            return
        try:
            future = self._partition.drop_soon(start, offsets, "limits")
        except PenstockError:
            # The log accepts nothing any more; what was appended before is discarded with it.
            return
        future.add_done_callback(_look_at)

    def _note(self, start: int, offsets: Collection[int]) -> set[int]:
        """Count deletions; returns the single messages among them that existed."""
        alive = self.alive(offsets)
        for offset in alive:
            self._subtract(self.sizes.get(offset), old=offset < self.sizes.base)
        self._dropping |= alive
        before, start = self._start(), min(start, self.sizes.stop)
        if start > before:
            base = self.sizes.base
            if start >= base:
                self._old_bytes, self.unmeasured = 0, False
                self._subtract(self._sum(max(before, base), start), old=False)
            else:
                self._subtract(self._sum(before, start), old=True)
            self._start_taken = start
            self._dropping = {offset for offset in self._dropping if offset >= start}
            self.sizes.forget_before(start)
        return alive

    def _purged(self, start: int) -> None:
        """Adjust the sums after everything before an offset was deleted without notice."""
        self._start_taken = start
        self.sizes.forget_before(start)
        base, stop = self.sizes.base, self.sizes.stop
        self.unmeasured = start < base
        self._old_bytes, self._new_bytes = 0, self._sum(min(max(start, base), stop), stop) or 0

    def _jump(self, first: int) -> None:
        """Adjust to a message that does not follow the last one known."""
        stop, deleted = self.sizes.stop, self._partition.deleted
        self._forget_sizes(len(self.sizes))
        self.sizes.base = first
        if range_count(max(stop, self._start()), first, deleted):
            self.unmeasured = True

    def _subtract(self, size: int | None, *, old: bool) -> None:
        if size is None:
            self.unmeasured = True
        elif old:
            self._old_bytes -= size
        else:
            self._new_bytes -= size

    def _first_live(self) -> int:
        """The first offset from the start on whose deletion is not durable."""
        return self._partition.next_live(self._start())

    def _start(self) -> int:
        return max(self._start_taken, self._partition.start_offset)

    def _sum(self, start: int, stop: int) -> int | None:
        """Bytes of the live messages in a range; None if some are unknown."""
        total = self.sizes.total(start, stop)
        if total is None:
            return None
        return total - sum(self.sizes.get(offset) or 0 for offset in self._gone(start, stop))

    def _gone(self, start: int, stop: int) -> list[int]:
        """Single deleted messages in a range."""
        gone = [offset for offset in self._dropping if start <= offset < stop]
        deleted = self._partition.deleted
        if deleted is not None and (count := deleted.range_cardinality(start, stop)):
            gone += islice(deleted.iter_equal_or_larger(start), count)
        return gone

    def _forget_sizes(self, count: int) -> None:
        moved = self._sum(self.sizes.base, self.sizes.base + count) or 0
        self._old_bytes += moved
        self._new_bytes -= moved
        self.sizes.forget(count, SIZES_MAX)


def _subjects(run: Run | ColumnRun, counting: SizeCounting) -> Sequence[bytes]:
    if isinstance(run, Run) and isinstance(run.subjects, bytes):
        return [run.subjects]
    return counting.subjects(run)


def _look_at(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
