"""Keeps a stream within its limits: how many messages, how many bytes, how many of one subject.

Told of every run when it is appended, by whatever door, it deletes what is too much in the same
group, so that nobody ever sees the limits exceeded. What it would have to look up on disk first is
deleted a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from penstock.log.log import Log
from penstock.log.subjects.bits import range_from
from penstock.model.errors import PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset, PartitionId
from penstock.topics.streams.sizes import Counting, Int64s, Sizes
from penstock.topics.streams.subject_offsets import SubjectOffsets
from penstock.topics.streams.under_way import UnderWay

SIZES_MAX: Final = 1 << 20
"""Messages whose size is remembered one by one, of the newest and of the oldest each."""
DROPPED_AT_ONCE: Final = 1000
"""Messages that are looked at together when the oldest have to go."""
LOOKED_UP: Final = 10_000
"""Messages whose sizes are looked up together when they have become the oldest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one stream; None is none."""

    messages: int | None = None
    bytes: int | None = None
    per_subject: int | None = None
    refuse_new: bool = False
    """Whether what is too much is refused rather than made room for."""
    rolls_up: bool = False
    """Whether a message may replace others of its subject."""


class Keeper:
    """Counts and limits the messages of one partition.

    A message is gone for it from the moment its deletion is taken, durable or not.
    """

    def __init__(
        self,
        log: Log,
        partition: PartitionId,
        limits: Limits,
        counting: Counting,
        look_up: Callable[[int, int], Awaitable[Int64s]],
    ) -> None:
        """`look_up` finds the sizes of messages between two offsets, 0 for those that are gone."""
        self._log, self.partition = log, partition
        self.of_subjects = SubjectOffsets(log, partition, self._start, self.alive, self._looked_up)
        self.under_way: UnderWay | None = None
        """Subjects of what is not durable yet, where messages replace others."""
        self.limits = limits
        self.counting, self._look_up = counting, look_up
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin()

    def _begin(self) -> None:
        """Know nothing but what is durable."""
        log, partition = self._log, self.partition
        self.sizes = Sizes(log.next_offset(partition))
        self._old_bytes = self._new_bytes = 0
        """Of live messages before and from the newer sizes on."""
        self.unmeasured = log.start_offset(partition) < self.sizes.base
        """Whether there are messages that were never counted."""
        self.of_subjects.forget()
        self._dropping: set[int] = set()
        """Single messages whose deletion is not durable yet."""
        self._start_taken: int = log.start_offset(partition)
        """Everything before goes, durably or not yet, and is counted so."""
        self._looking = False

    @property
    def limits(self) -> Limits:
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits, self.of_subjects.most = limits, limits.per_subject
        if not limits.rolls_up:
            self.under_way = None
        elif self.under_way is None:
            self.under_way = UnderWay(self._log, self.partition)

    @property
    def total_bytes(self) -> int:
        """Of all live messages, once they are measured."""
        return self._old_bytes + self._new_bytes

    @property
    def durable_bytes(self) -> int:
        """Of those that everybody sees."""
        durable, stop = max(self._log.next_offset(self.partition), self._start()), self.sizes.stop
        if durable >= stop:
            return self.total_bytes
        return self.total_bytes - (self._sum(durable, stop) or 0)

    # -- what the log tells

    def appended(self, run: Run | ColumnRun, first: Offset) -> None:
        """A run was taken; make room for it."""
        if run.partition != self.partition:
            return
        if first != self.sizes.stop:
            self._jump(first)
        sizes, total = self.counting.count(run)
        self.sizes.add(run.count, sizes)
        self._new_bytes += total
        if self.under_way is not None:
            self.under_way.add(_subjects(run, self.counting), first + run.count)
        if self.limits.per_subject is not None:
            self._delete(self.of_subjects.add(self.counting.subjects(run), first))
        self.limit()
        if len(self.sizes) > SIZES_MAX and not self.unmeasured:
            self._forget_sizes(len(self.sizes) - SIZES_MAX // 2)

    def committed(self) -> None:
        """What was taken before is durable now."""
        start = self._log.start_offset(self.partition)
        if start > self._start_taken:
            self._purged(start)
        if self._dropping:
            deleted = self._log.state.bitmap(self.partition)
            self._dropping = {
                offset
                for offset in self._dropping
                if offset >= start and (deleted is None or offset not in deleted)
            }

    def thrown_away(self) -> None:
        """What was not durable will never be."""
        self._begin()

    # -- what others drop

    def dropped(self, start: int, offsets: Collection[int], subject: bytes | None = None) -> None:
        """Others drop what is before `start`, and these offsets, all of one subject if told."""
        self.of_subjects.dropped(self._note(start, offsets), subject)

    def drop_soon(self, start: Offset, offsets: Collection[int], subject: bytes | None) -> None:
        """Drop these in the group that forms now: a message that was just appended replaces them.

        Raises as `Log.append` does.
        """
        self.dropped(start, offsets, subject)
        future = self._log.drop_soon(self.partition, start, offsets, "rollup")
        future.add_done_callback(_look_at)

    def learn(self, first: int, sizes: Int64s) -> None:
        """What everything before the newer sizes counts, from `first` on."""
        base = self.sizes.base
        if first + len(sizes) != base:
            return
        start = min(max(self._start(), first), base)
        self.sizes.learn(first, sizes, SIZES_MAX)
        self._old_bytes = int(sizes[start - first :].sum())
        self._old_bytes -= sum(int(sizes[offset - first]) for offset in self._gone(start, base))
        self.unmeasured = False
        self.limit()

    # -- looking

    def live(self) -> int:
        """Messages, those that are not durable yet included."""
        stop = self._log.writer.next_offset(self.partition)
        start, deleted = self._start(), self._log.state.bitmap(self.partition)
        gone = 0 if deleted is None else deleted.range_cardinality(start, stop)
        return stop - start - gone - len(self._dropping)

    def alive(self, offsets: Iterable[int]) -> set[int]:
        """Which of these are there."""
        deleted, dropping = self._log.state.bitmap(self.partition), self._dropping
        start, stop = self._start(), self._log.writer.next_offset(self.partition)
        found = {offset for offset in offsets if start <= offset < stop} - dropping
        return found if deleted is None else {offset for offset in found if offset not in deleted}

    async def loaded(self) -> None:
        """Wait until nothing has to be looked up any more."""
        await self.of_subjects.loaded()
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- limits of all messages

    def limit(self) -> None:
        """Drop the oldest until the limits hold, where they are not held by refusing."""
        start, limits = self._start(), self.limits
        if limits.refuse_new or self.of_subjects.loading:
            # What goes for its subject's sake must not be counted twice.
            return
        stop = self._log.writer.next_offset(self.partition)
        new = start
        if limits.messages is not None and (excess := self.live() - limits.messages) > 0:
            new = self._after(start, stop, excess)
        if limits.bytes is not None and not self.unmeasured:
            new = self._within_bytes(limits.bytes, new, stop)
        if new > start:
            self._note(new, ())
            self._drop(Offset(new), ())

    def _within_bytes(self, most: int, new: int, stop: int) -> int:
        """From where on the messages are few enough bytes; as far as that is known now."""
        if self.total_bytes <= most:
            return new
        before = self._sum(self._start(), new)
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
        """The offset of the live one behind the first `count`."""
        found = self._live_from(start, stop, count + 1)
        return found[count] if len(found) > count else stop

    def _live_from(self, start: int, stop: int, count: int) -> Sequence[int]:
        """The first live ones between, `count` or more unless there are fewer."""
        deleted, dropping = self._log.state.bitmap(self.partition), self._dropping
        found = range_from(start, stop, deleted, count + len(dropping))
        return [offset for offset in found if offset not in dropping] if dropping else found

    def _look_up_oldest(self) -> None:
        if not self._looking:
            self._looking = True
            task = asyncio.get_running_loop().create_task(self._look())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look(self) -> None:
        """Find what the oldest messages count, then drop what is too much."""
        sizes, first = self.sizes, self._start()
        stop = min(first + LOOKED_UP, sizes.base)
        try:
            found = await self._look_up(first, stop)
        except PenstockError:
            self._looking = False
            return
        if self.sizes is sizes:
            sizes.learn(first, found, LOOKED_UP)
            self._looking = False
            self.limit()

    # -- details

    def _looked_up(self, too_many: list[int]) -> None:
        """A subject is known now, and so many of its messages are too many."""
        self._delete(too_many)
        self.limit()

    def _delete(self, offsets: list[int]) -> None:
        self._drop(Offset(0), sorted(self._note(0, offsets)))

    def _drop(self, start: Offset, offsets: Sequence[int]) -> None:
        if not start and not offsets:
            return
        try:
            future = self._log.drop_soon(self.partition, start, offsets, "limits")
        except PenstockError:
            # The log takes nothing any more; what was appended before is thrown away with it.
            return
        future.add_done_callback(_look_at)

    def _note(self, start: int, offsets: Collection[int]) -> set[int]:
        """Count what goes as gone; which of the single ones were there."""
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
        """Everything before went without being told; it was part of the sums."""
        self._start_taken = start
        self.sizes.forget_before(start)
        base, stop = self.sizes.base, self.sizes.stop
        self.unmeasured = start < base
        self._old_bytes, self._new_bytes = 0, self._sum(min(max(start, base), stop), stop) or 0

    def _jump(self, first: int) -> None:
        """The next message does not follow the last one known."""
        stop, deleted = self.sizes.stop, self._log.state.bitmap(self.partition)
        self._forget_sizes(len(self.sizes))
        self.sizes.base = first
        if deleted is None or deleted.range_cardinality(stop, first) < first - stop:
            self.unmeasured = True

    def _subtract(self, size: int | None, *, old: bool) -> None:
        if size is None:
            self.unmeasured = True
        elif old:
            self._old_bytes -= size
        else:
            self._new_bytes -= size

    def _start(self) -> int:
        return max(self._start_taken, self._log.start_offset(self.partition))

    def _sum(self, start: int, stop: int) -> int | None:
        """Bytes of the live messages between; None when some are not known."""
        total = self.sizes.total(start, stop)
        if total is None:
            return None
        return total - sum(self.sizes.get(offset) or 0 for offset in self._gone(start, stop))

    def _gone(self, start: int, stop: int) -> list[int]:
        """Single messages between that were there once."""
        gone = [offset for offset in self._dropping if start <= offset < stop]
        deleted = self._log.state.bitmap(self.partition)
        if deleted is not None and (count := deleted.range_cardinality(start, stop)):
            gone += islice(deleted.iter_equal_or_larger(start), count)
        return gone

    def _forget_sizes(self, count: int) -> None:
        moved = self._sum(self.sizes.base, self.sizes.base + count) or 0
        self._old_bytes += moved
        self._new_bytes -= moved
        self.sizes.forget(count, SIZES_MAX)


def _subjects(run: Run | ColumnRun, counting: Counting) -> Sequence[bytes]:
    if isinstance(run, Run) and isinstance(run.subjects, bytes):
        return [run.subjects]
    return counting.subjects(run)


def _look_at(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
