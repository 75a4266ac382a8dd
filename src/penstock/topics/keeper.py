"""Keeps a stream within its limits: how many messages, how many bytes, how many of one subject.

Told of every run when it is appended, by whatever door, it deletes what is too much in the same
group, so that nobody ever sees the limits exceeded. What it would have to look up on disk first is
deleted a moment later.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from penstock.log.log import Log
from penstock.log.subjects.bits import range_from
from penstock.log.subjects.index import Miss
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId

FILE_OVERHEAD: Final = 30
"""Bytes that a message counts beside its subject and payload; with headers, a few more."""
HEADER_OVERHEAD: Final = 4
MEMORY_OVERHEAD: Final = 16
SIZES_MAX: Final = 1 << 20
"""Messages whose size is remembered one by one."""
SUBJECTS_MAX: Final = 100_000
"""Subjects whose messages are remembered; more are looked up again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one stream; None is none."""

    messages: int | None = None
    bytes: int | None = None
    per_subject: int | None = None
    refuse_new: bool = False
    """Whether what is too much is refused rather than made room for."""


@dataclass(slots=True)
class _OfSubject:
    """Offsets of one subject, oldest first; more may be on disk while `loading`."""

    offsets: deque[int]
    loading: bool = False


class Keeper:
    """Counts and limits the messages of one partition."""

    def __init__(
        self, log: Log, partition: PartitionId, limits: Limits, in_memory: bool, subject: bytes
    ) -> None:
        self._log, self.partition, self.limits = log, partition, limits
        self._in_memory, self._subject = in_memory, subject
        self._sizes = array("I")
        self._base = self.counted_from = log.next_offset(partition)
        self._subjects: dict[bytes, _OfSubject] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self.total_bytes = 0
        """Of all live messages, counted as NATS does."""
        self._dropping: set[int] = set()
        self._start_taken = 0
        """Everything before goes, durably or not yet."""

    # -- what the log tells

    def appended(self, run: Run | ColumnRun, first: Offset) -> None:
        """A run was taken; make room for it."""
        if run.partition != self.partition:
            return
        if first != self._base + len(self._sizes):
            # What was taken before was thrown away by an error of the disk.
            del self._sizes[max(first - self._base, 0) :]
        sizes = self.sizes(run)
        self._sizes.extend(sizes)
        self.total_bytes += sum(sizes)
        if self.limits.per_subject is not None:
            self._limit_subjects(self.limits.per_subject, run, first)
        if self.limits.messages is not None or self.limits.bytes is not None:
            self._limit_all()
        if len(self._sizes) > SIZES_MAX:
            self._forget_sizes(len(self._sizes) - SIZES_MAX // 2)

    def dropped(self, offsets: Collection[int], subject: bytes | None = None) -> None:
        """These were deleted, by others; all of one subject if that is told."""
        self._account(offsets)
        gone, told = set(offsets), self._subjects.get(subject or b"")
        for known in self._subjects.values() if subject is None else filter(None, [told]):
            if not gone.isdisjoint(known.offsets):
                known.offsets = deque(offset for offset in known.offsets if offset not in gone)

    def dropped_before(self, start: int, new_start: int) -> None:
        """Everything between was purged, by others."""
        self.total_bytes -= self._sum(start, new_start)
        for known in self._subjects.values():
            while known.offsets and known.offsets[0] < new_start:
                known.offsets.popleft()

    def counted(self, total_bytes: int) -> None:
        """What lies there from before takes so much."""
        self.total_bytes += total_bytes

    # -- looking

    def sizes(self, run: Run | ColumnRun) -> Sequence[int]:
        """What each message counts."""
        if isinstance(run, Run):
            return self._raw_sizes(run.subjects, run.payloads, run.headers)
        content = run.content
        if not isinstance(content, Columns):
            each = content.nbytes // max(content.num_rows, 1)
            return [FILE_OVERHEAD + len(self._subject) + each] * content.num_rows
        subject, blocks = content.subject, content.headers
        subjects = subject if isinstance(subject, bytes) else subject.to_pylist()
        headers = None if blocks is None else [block or b"" for block in blocks.to_pylist()]
        return self._raw_sizes(subjects, content.payload.to_pylist(), headers)

    def size_of(self, batches: Iterable[Batch]) -> int:
        """What the messages of these batches count."""
        return sum(sum(self.sizes(ColumnRun(batch.content, batch.partition))) for batch in batches)

    def live(self) -> int:
        """Messages, those that are not durable yet included."""
        stop = self._log.writer.next_offset(self.partition)
        start, deleted = self._start(), self._log.state.bitmap(self.partition)
        gone = 0 if deleted is None else deleted.range_cardinality(start, stop)
        return stop - start - gone - len(self._dropping)

    def of_subject(self, subject: bytes) -> int | None:
        """Messages of a subject; None when that has to be looked up first."""
        known = self._known(subject)
        return None if known.loading else len(known.offsets)

    def last_of(self, subject: bytes) -> Offset | Miss | None:
        """The last offset of a subject, one that is not durable yet included."""
        known = self._subjects.get(subject)
        if known is not None and known.offsets:
            return Offset(known.offsets[-1])
        return self._log.index.peek_last(self.partition, subject)

    async def loaded(self) -> None:
        """Wait until nothing has to be looked up any more."""
        while self._loads:
            await asyncio.wait(self._loads)

    # -- details

    def _raw_sizes(
        self,
        subjects: bytes | Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None,
    ) -> list[int]:
        fixed = MEMORY_OVERHEAD if self._in_memory else FILE_OVERHEAD
        extra = 0 if self._in_memory else HEADER_OVERHEAD
        if isinstance(subjects, bytes):
            fixed += len(subjects)
            sizes = [fixed + size for size in map(len, payloads)]
        else:
            lengths = zip(map(len, subjects), map(len, payloads), strict=True)
            sizes = [fixed + subject + payload for subject, payload in lengths]
        if headers is None:
            return sizes
        return [
            size + len(block) + extra if block else size
            for size, block in zip(sizes, headers, strict=True)
        ]

    def _limit_all(self) -> None:
        """Drop the oldest until the limits hold."""
        start, limits = self._start(), self.limits
        stop = self._log.writer.next_offset(self.partition)
        new = start
        if limits.messages is not None and (excess := self.live() - limits.messages) > 0:
            new = self._after(start, stop, excess)
        if limits.bytes is not None and self.total_bytes > limits.bytes:
            left = self.total_bytes - self._sum(start, new)
            while left > limits.bytes and new < stop:
                left -= self._size(new)
                new = self._after(new, stop, 1)
        if new > start:
            self.total_bytes -= self._sum(start, new)
            self._drop(Offset(new), ())

    def _after(self, start: int, stop: int, count: int) -> int:
        """The offset behind the first `count` live ones."""
        deleted = self._log.state.bitmap(self.partition)
        found = range_from(start, stop, deleted, count + 1)
        return found[count] if len(found) > count else stop

    def _limit_subjects(self, most: int, run: Run | ColumnRun, first: int) -> None:
        gone: list[int] = []
        for index, subject in enumerate(self.subjects(run)):
            known = self._known(subject)
            known.offsets.append(first + index)
            if not known.loading:
                while len(known.offsets) > most:
                    gone.append(known.offsets.popleft())
        if gone:
            self._delete(gone)

    def _known(self, subject: bytes) -> _OfSubject:
        known = self._subjects.get(subject)
        if known is not None:
            return known
        if len(self._subjects) >= SUBJECTS_MAX and not self._loads:
            self._subjects.clear()
        known = self._subjects[subject] = _OfSubject(deque())
        last = self._log.index.peek_last(self.partition, subject)
        if last is None:
            return known
        if self.limits.per_subject == 1 and not isinstance(last, Miss):
            known.offsets.append(last)
            return known
        known.loading = True
        task = asyncio.get_running_loop().create_task(self._load(subject, known))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return known

    async def _load(self, subject: bytes, known: _OfSubject) -> None:
        """Find the older messages of a subject, then drop what is too much."""
        chosen = Filter.parse(subject)
        try:
            found = await self._log.index.matching(self.partition, chosen, Offset(0), SIZES_MAX)
        except PenstockError:
            self._subjects.pop(subject, None)
            return
        known.offsets.extendleft(
            offset for offset in reversed(found) if not known.offsets or offset < known.offsets[0]
        )
        known.loading = False
        most = self.limits.per_subject
        if most is not None and len(known.offsets) > most:
            self._delete([known.offsets.popleft() for _ in range(len(known.offsets) - most)])

    def subjects(self, run: Run | ColumnRun) -> Sequence[bytes]:
        if isinstance(run, Run):
            return [run.subjects] * run.count if isinstance(run.subjects, bytes) else run.subjects
        if isinstance(run.content, Columns):
            subjects: list[bytes] = run.content.subjects().to_pylist()
            return subjects
        return [self._subject] * run.count

    def _account(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.total_bytes -= self._size(offset)

    def _delete(self, offsets: list[int]) -> None:
        self._account(offsets)
        self._dropping.update(offsets)
        self._drop(Offset(0), offsets)

    def _drop(self, start: Offset, offsets: Sequence[int]) -> None:
        try:
            future = self._log.drop_soon(self.partition, start, offsets, "limits")
        except PenstockError:
            self._dropping.difference_update(offsets)
            return
        future.add_done_callback(lambda done: self._dropped_durably(done, offsets))
        self._start_taken = max(self._start_taken, start)

    def _dropped_durably(self, done: asyncio.Future[None], offsets: Sequence[int]) -> None:
        self._dropping.difference_update(offsets)
        if not done.cancelled():
            done.exception()

    def _start(self) -> int:
        return max(self._start_taken, self._log.start_offset(self.partition))

    def _size(self, offset: int) -> int:
        index = offset - self._base
        return self._sizes[index] if 0 <= index < len(self._sizes) else 0

    def _sum(self, start: int, stop: int) -> int:
        """Bytes of the live messages from `start` up to, not including, `stop`."""
        deleted = self._log.state.bitmap(self.partition)
        low, high = max(start - self._base, 0), max(stop - self._base, 0)
        total = sum(self._sizes[low:high])
        if deleted is not None and (gone := deleted.range_cardinality(start, stop)):
            total -= sum(map(self._size, islice(deleted.iter_equal_or_larger(start), gone)))
        return total - sum(
            self._size(offset) for offset in self._dropping if start <= offset < stop
        )

    def _forget_sizes(self, count: int) -> None:
        del self._sizes[:count]
        self._base = Offset(self._base + count)
