"""Enforces the limits of a stream: messages, bytes, and messages per subject.

The enforcer observes every append, over any protocol, and deletes the excess in the same group
commit, so that no reader sees the limits exceeded. Excess that must first be looked up on disk is
deleted a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.host.tasks import Tasks
from penstock.log import LogObserver
from penstock.model.errors import PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset
from penstock.streams.shared_scan import SharedScan
from penstock.streams.size_measuring import SizeMeasuring
from penstock.streams.sizes import SizeCounting
from penstock.streams.stream_counts import StreamCounts
from penstock.streams.subject_offsets import PendingSubjects, SubjectOffsets
from penstock.topics import OpenPartition
from penstock.wire.jetstream.stream_config import StreamConfig

OLDEST_EXAMINED: Final = 1000
"""The oldest messages that are examined together."""
OLDEST_LOOKED_UP: Final = 10_000
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

    @property
    def deletes_oldest(self) -> bool:
        """Whether an append may delete messages of other subjects."""
        limited = self.messages is not None or self.bytes is not None
        return limited and not self.refuse_new


def limits_of(config: StreamConfig) -> Limits:
    """The limits in a stream's configuration."""
    return Limits(
        config.max_msgs if config.max_msgs > 0 else None,
        config.max_bytes if config.max_bytes > 0 else None,
        config.max_msgs_per_subject if config.max_msgs_per_subject > 0 else None,
        config.discard == "new",
        config.allow_rollup_hdrs,
    )


class LimitEnforcer(LogObserver):
    """Counts the messages of one partition and enforces its limits."""

    def __init__(
        self,
        partition: OpenPartition,
        limits: Limits,
        counting: SizeCounting,
        scan: SharedScan,
    ) -> None:
        self._partition = partition
        self.counts = counts = StreamCounts(partition, counting)
        self.measuring = SizeMeasuring(partition, counts, scan, self.enforce)
        self.subject_offsets = SubjectOffsets(
            partition, counts.start, counts.alive, self._delete_looked_up
        )
        self.pending_subjects: PendingSubjects | None = None
        """Subjects of messages that are not durable, for streams whose messages replace others."""
        self.limits = limits
        self._tasks = Tasks()
        self._looking_up = False

    @property
    def limits(self) -> Limits:
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits, self.subject_offsets.most = limits, limits.per_subject
        if not limits.rolls_up:
            self.pending_subjects = None
        elif self.pending_subjects is None:
            self.pending_subjects = PendingSubjects(self._partition)

    async def looked_up(self) -> None:
        """Wait until no look-up is running."""
        await self.subject_offsets.looked_up()
        await self._tasks.drain()

    # -- observer of the log

    def appended(self, run: Run | ColumnRun, first_offset: Offset) -> None:
        """Count a run that was appended, and make room for it."""
        if run.partition != self._partition.id:
            return
        counts = self.counts
        counts.append(run, first_offset)
        if self.pending_subjects is not None:
            self.pending_subjects.add(_subjects(run, counts.counting), first_offset + run.count)
        if self.limits.per_subject is not None:
            subjects = counts.counting.subjects(run)
            self._delete_single(self.subject_offsets.add(subjects, first_offset))
        self.enforce()
        counts.shrink()

    def committed(self, partitions: set[int]) -> None:
        """Count what was appended before as durable."""
        if self._partition.id in partitions:
            self.counts.commit()

    def discarded(self) -> None:
        """Forget what was not durable."""
        self.counts.reset()
        self.subject_offsets.forget()
        self._looking_up = False

    # -- deletions by others

    def note_deleted(
        self, start: int, offsets: Collection[int], subject: bytes | None = None
    ) -> None:
        """Count a deletion: everything before `start`, and single offsets, all of `subject` if
        given.
        """
        self.subject_offsets.note_deleted(self.counts.delete(start, offsets), subject)

    def delete_soon(self, start: Offset, offsets: Collection[int], subject: bytes | None) -> None:
        """Delete messages in the group commit that forms now, because a message just appended
        replaces them.

        Raises what `OpenPartition.drop_soon` raises.
        """
        self.note_deleted(start, offsets, subject)
        future = self._partition.drop_soon(start, offsets, "rollup")
        future.add_done_callback(_ignore_error)

    # -- limits of all messages

    def enforce(self) -> None:
        """Delete the oldest messages until the limits hold, unless excess is refused."""
        counts, limits = self.counts, self.limits
        if limits.refuse_new or self.subject_offsets.loading:
            # What a limit per subject deletes must not be counted twice.
            return
        start, stop = counts.start(), self._partition.appended_offset
        new = start
        if limits.messages is not None and (excess := counts.live() - limits.messages) > 0:
            new = self._after(start, stop, excess)
        if limits.bytes is not None and not counts.unmeasured:
            new = self._within_bytes(limits.bytes, new, stop)
        if new > start:
            counts.delete(new, ())
            self._delete(Offset(new), ())

    def _within_bytes(self, most: int, new: int, stop: int) -> int:
        """The offset from which on the messages fit the byte limit, as far as sizes are known."""
        counts = self.counts
        if counts.total_bytes <= most:
            return new
        first = counts.first_live()
        before = counts.bytes_between(first, max(first, new))
        if before is None:
            self._look_up_oldest()
            return new
        remaining = counts.total_bytes - before
        while remaining > most and new < stop:
            for offset in counts.live_from(new, stop, OLDEST_EXAMINED):
                size = counts.sizes.get(offset)
                if size is None:
                    self._look_up_oldest()
                if size is None or remaining <= most:
                    return offset
                remaining -= size
                new = offset + 1
        return new

    def _after(self, start: int, stop: int, count: int) -> int:
        """The offset of the live message after the first `count`."""
        found = self.counts.live_from(start, stop, count + 1)
        return found[count] if len(found) > count else stop

    def _look_up_oldest(self) -> None:
        if not self._looking_up:
            self._looking_up = True
            self._tasks.start(self._enforce_after_look_up())

    async def _enforce_after_look_up(self) -> None:
        """Look up the sizes of the oldest messages, then delete the excess."""
        sizes, first = self.counts.sizes, self.counts.first_live()
        stop = min(first + OLDEST_LOOKED_UP, sizes.base)
        try:
            measured = await self.measuring.read(first, stop)
        except PenstockError:
            self._looking_up = False
            return
        if self.counts.sizes is sizes:
            sizes.set_oldest(first, measured.dense(first, stop))
            self._looking_up = False
            self.enforce()

    # -- details

    def _delete_looked_up(self, excess: list[int]) -> None:
        """Delete the excess messages of a subject that was looked up."""
        self._delete_single(excess)
        self.enforce()

    def _delete_single(self, offsets: list[int]) -> None:
        self._delete(Offset(0), sorted(self.counts.delete(0, offsets)))

    def _delete(self, start: Offset, offsets: Sequence[int]) -> None:
        if not start and not offsets:
            return
        try:
            future = self._partition.drop_soon(start, offsets, "limits")
        except PenstockError:
            # The log accepts nothing any more; what was appended before is discarded with it.
            return
        future.add_done_callback(_ignore_error)


def _subjects(run: Run | ColumnRun, counting: SizeCounting) -> Sequence[bytes]:
    if isinstance(run, Run) and isinstance(run.subjects, bytes):
        return [run.subjects]
    return counting.subjects(run)


def _ignore_error(done: asyncio.Future[None]) -> None:
    """Mark an error as seen: if a deletion fails, the log discards it with what was appended."""
    if not done.cancelled():
        done.exception()
