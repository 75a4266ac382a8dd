"""A topic, or a partition of one, as a stream: messages by sequence and by subject.

The sequence of a message is its offset plus one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, Protocol

import numpy as np
import structlog

from penstock.host.notifier import Cancel, Notifier
from penstock.host.tasks import Tasks
from penstock.log import LogObserver, SubjectRow
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import DataDamaged
from penstock.model.run import ColumnRun
from penstock.model.subjects import Filter, SubjectMapping
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.streams.admission import Admission
from penstock.streams.keeper import Keeper, limits_of
from penstock.streams.rows import NO_ROWS, Rows, first_rows, joined, row_of
from penstock.streams.sizes import Int64s, Measured, SizeCounting
from penstock.topics import OpenTopic
from penstock.wire.jetstream.stream_config import StreamConfig

READ_BYTES: Final = 1 << 20
SUBJECTS_PAGE: Final = 10_000
DELETED_LISTED_MAX: Final = 100_000
"""Limit of the deleted sequences in the details of a stream; `num_deleted` counts all of them."""

_events = structlog.get_logger(__name__)


class Holder(Protocol):
    """A consumer or copy that a stream retains messages for, if its retention depends on
    interest.
    """

    def needs(self, seq: int) -> bool: ...

    def wants(self, subject: bytes) -> bool: ...

    @property
    def settled_seq(self) -> int:
        """No message up to this sequence is needed."""
        ...

    @property
    def reached_seq(self) -> int:
        """No message after this sequence was delivered."""
        ...


class Stream(LogObserver):
    """One stream that this broker serves."""

    def __init__(
        self,
        name: str,
        config: StreamConfig,
        opened: OpenTopic,
        partition: PartitionId,
        copies: Callable[[], Iterable[Holder]] = tuple,
    ) -> None:
        """`copies` returns the sources of other streams that copy from this one."""
        self.name, self.config, self.opened = name, config, opened
        self.topic, self.partition = opened.topic, opened.partition(partition)
        self.created_us = opened.topic.created_us
        counting = SizeCounting(config.storage == "memory", self.subject)
        self.keeper = Keeper(self.partition, limits_of(config), counting, self._sizes)
        self.admission = Admission(config, self.partition.id, self.keeper, self.measured)
        self.mapping = mapping_of(config)
        """How subjects are rewritten before they are stored; None if they are not."""
        self.listeners: set[Callable[[], None]] = set()
        """Called on the loop after every commit to the stream."""
        self.copies = copies
        self.copied = Notifier[[Sequence[int]]]()
        """Notifies observers of the sequences that another stream has copied."""
        self._interested: Callable[[bytes], bool] | None = None
        self.losses = 0
        """How many times messages that were not durable were discarded."""
        self._tasks = Tasks()
        self._measuring: asyncio.Task[None] | None = None

    @property
    def interested(self) -> Callable[[bytes], bool] | None:
        """Returns whether messages of a subject are stored; None if those of every subject are."""
        return self._interested

    def require_interest(self, interested: Callable[[bytes], bool]) -> Cancel:
        """Store only messages of subjects for which `interested` is true.

        Replaces the previous condition; returns the function that removes this one.
        """
        self._interested = interested

        def cancel() -> None:
            if self._interested is interested:
                self._interested = None

        return cancel

    @property
    def subject(self) -> bytes:
        """The subject of messages without one of their own."""
        return self.topic.name.topic.encode()

    # -- state

    @property
    def first_offset(self) -> Offset:
        """The offset of the first live message; the next offset if there is none."""
        return self.partition.next_live(self.partition.start_offset)

    @property
    def next_offset(self) -> Offset:
        return self.partition.next_offset

    @property
    def last_seq(self) -> int:
        return self.next_offset

    @property
    def first_seq(self) -> int:
        """The sequence of the first live message, or the next one's; 0 before the first message
        ever.
        """
        return self.first_offset + 1 if self.next_offset else 0

    @property
    def messages(self) -> int:
        return self.partition.live_count

    @property
    def size_bytes(self) -> int:
        """The size as NATS counts it; complete after `measured`."""
        return self.keeper.durable_bytes

    @property
    def deleted_count(self) -> int:
        """Number of sequences between the first and the last without a message."""
        bitmap = self.partition.deleted
        first, next_ = self.first_offset, self.next_offset
        return 0 if bitmap is None else bitmap.range_cardinality(first, next_)

    def deleted(self) -> list[int]:
        """The first `DELETED_LISTED_MAX` sequences without a message between the first and the
        last.
        """
        bitmap, count = self.partition.deleted, self.deleted_count
        if bitmap is None:
            return []
        found = bitmap.iter_equal_or_larger(self.first_offset)
        return [offset + 1 for offset in islice(found, min(count, DELETED_LISTED_MAX))]

    async def measured(self) -> None:
        """Wait until `size_bytes` includes the messages that existed before the stream was
        opened.
        """
        while self.keeper.unmeasured:
            await asyncio.shield(self._measure())

    def measure_soon(self) -> None:
        """Start to measure older messages, if there is a byte limit."""
        if self.keeper.limits.bytes is not None and self.keeper.unmeasured:
            self._measure().add_done_callback(_look_at)

    # -- reading

    def peek(
        self, offset: int, messages_max: int, bytes_max: int = READ_BYTES
    ) -> Rows | AtHead | Gone | None:
        """Messages from the first live one at or after `offset`, if in memory; None if `read` is
        needed.
        """
        answer = self.partition.peek(offset, bytes_max)
        return (
            first_rows(answer, messages_max, self.subject) if isinstance(answer, list) else answer
        )

    def peek_one(self, offset: int) -> Rows | None:
        """One message, if it exists and is in memory."""
        batch = self.partition.cached_batch(offset)
        return None if batch is None else row_of(batch, offset, self.subject)

    async def read(
        self, offset: int, messages_max: int, bytes_max: int = READ_BYTES
    ) -> Rows | AtHead | Gone:
        """Messages from the first live one at or after `offset`, wherever they are stored;
        perhaps fewer than exist.
        """
        while True:
            answer = await self._batches(offset, bytes_max)
            if not isinstance(answer, list):
                return answer
            rows = first_rows(answer, messages_max, self.subject)
            if rows.count:
                return rows
            offset = answer[-1].next_offset

    async def rows_from(self, offset: int, messages_max: int) -> AsyncIterator[Rows]:
        """All messages from an offset on, in parts of at most `messages_max`."""
        while not isinstance(answer := await self.read(offset, messages_max), AtHead):
            if isinstance(answer, Gone):
                offset = max(answer.earliest, offset + 1)
            else:
                yield answer
                offset = answer.offsets[-1] + 1

    async def read_offsets(self, offsets: Sequence[int]) -> Rows:
        """The live messages among these offsets, in order."""
        found: list[Rows] = []
        position = 0
        while position < len(offsets):
            wanted = offsets[position]
            span = offsets[-1] - wanted + 1
            rows = self.peek(wanted, span) or await self.read(wanted, span)
            if not isinstance(rows, Rows):
                if isinstance(rows, Gone) and rows.earliest > wanted:
                    position = _behind(offsets, position, rows.earliest)
                    continue
                break
            stop = _behind(offsets, position, rows.offsets[-1] + 1)
            found.append(_picked(rows, offsets[position:stop]))
            position = stop
        found = [rows for rows in found if rows.count]
        return joined(found) if found else NO_ROWS

    async def read_intact(self, offsets: Sequence[int]) -> Rows:
        """The live messages among these offsets, without damaged ones, which are logged."""
        found: list[Rows] = []
        while offsets:
            try:
                found.append(await self.read_offsets(offsets))
                break
            except DataDamaged as damage:
                self.passed_over(damage)
                before = bisect_left(offsets, damage.first)
                behind = max(bisect_left(offsets, damage.next), before + 1)
                found.append(await self.read_offsets(offsets[:before]))
                offsets = offsets[behind:]
        found = [rows for rows in found if rows.count]
        return joined(found) if found else NO_ROWS

    def passed_over(self, damage: DataDamaged) -> None:
        """Log that a reader skips messages that are damaged."""
        facts = {"first": int(damage.first), "next": int(damage.next), "cause": damage.cause}
        _events.error("damage_passed_over", stream=self.name, **facts)

    async def get(self, offset: int) -> Rows:
        """One message, or none."""
        return await self.read_offsets([offset])

    async def offset_at(self, time_us: int) -> Offset:
        """The first live offset that is not older than this, else the next one."""
        return await self.partition.offset_at(Microseconds(time_us))

    def arrival(self) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that completes with the next commit; register, look again, then wait."""
        return self.partition.arrival()

    # -- by subject

    async def last(self, chosen: Filter) -> Offset | None:
        return await self.partition.subjects.last(chosen)

    async def next(self, chosen: Filter, offset: int) -> Offset | None:
        return await self.partition.subjects.next(chosen, offset)

    async def matching(self, chosen: Filter, offset: int, limit: int) -> list[Offset]:
        return await self.partition.subjects.matching(chosen, offset, limit)

    async def count(self, chosen: Filter, first: int, stop: int) -> int:
        return await self.partition.subjects.count(chosen, first, stop)

    def count_all(self, first: int, stop: int) -> int:
        """Number of live messages in a range, without a look-up."""
        return self.partition.count_live(first, stop)

    async def subjects(
        self, chosen: Filter, after: bytes = b"", limit: int = SUBJECTS_PAGE
    ) -> list[SubjectRow]:
        """The first subjects after `after`, in order, with their live messages."""
        return await self.partition.subjects.list(chosen, after, limit)

    # -- deleting

    async def delete(self, offsets: Sequence[int], reason: str = "message") -> None:
        """Delete single messages; durable on return."""
        alive = [offset for offset in offsets if self.count_all(offset, offset + 1)]
        self.keeper.dropped(0, alive)
        try:
            await self.partition.delete(alive, reason)
        except BaseException:
            self.thrown_away()
            raise
        self.tell()

    async def purge(self, before: int, reason: str = "purge", *, past_end: bool = False) -> None:
        """Delete everything before an offset; durable on return.

        With `past_end`, an offset after the end becomes that of the next message.
        """
        if before > self.partition.start_offset:
            if past_end:
                await self.partition.reserve(before - self.next_offset)
            self.keeper.dropped(before, ())
            try:
                await self.partition.purge(before, reason, past_end=past_end)
            except BaseException:
                self.thrown_away()
                raise
            self.tell()

    def tell(self) -> None:
        """Call the listeners after a change."""
        for listener in list(self.listeners):
            listener()

    # -- observer of the log

    def committed(self, partitions: set[int]) -> None:
        """Notify listeners of a commit; the keeper was notified before."""
        if self.partition.id in partitions:
            self.tell()

    def discarded(self) -> None:
        """Count a loss of messages that were not durable; the keeper was notified before."""
        self.losses += 1
        self.measure_soon()

    def thrown_away(self) -> None:
        """Count again from what is durable, after a deletion failed."""
        self.keeper.discarded()
        self.discarded()

    async def update(self, config: StreamConfig) -> None:
        """Apply another configuration; its limits hold on return."""
        self.config = self.admission.config = config
        self.mapping = mapping_of(config)
        self.keeper.limits = limits = limits_of(config)
        await self.opened.flush()
        after: bytes | None = b"" if limits.per_subject else None
        while after is not None:
            page = await self.subjects(Filter.parse(b">"), after)
            for subject, count, _ in page:
                if count > (limits.per_subject or 0):
                    self.keeper.of_subjects.load(subject)
            after = page[-1][0] if len(page) == SUBJECTS_PAGE else None
        if limits.bytes is not None:
            await self.measured()
        await self.keeper.loaded()
        self.keeper.limit()
        await self.opened.flush()

    # -- details

    def _measure(self) -> asyncio.Task[None]:
        """Measure messages that existed at opening; all callers share one task."""
        if self._measuring is None or self._measuring.done():
            self._measuring = self._tasks.start(self._count_older())
        return self._measuring

    async def _count_older(self) -> None:
        base = self.keeper.sizes.base
        first = self.partition.start_offset
        self.keeper.learn(base, await self._sizes(first, base))

    async def _sizes(self, first: int, stop: int) -> Measured:
        """The size of each message in a range."""
        found: list[tuple[Int64s, Int64s]] = []
        offset = first
        while offset < stop:
            answer = await self._batches(offset, READ_BYTES)
            if isinstance(answer, Gone):
                offset = answer.earliest
                continue
            if isinstance(answer, AtHead):
                break
            for batch in answer:
                sizes, _ = self.keeper.counting.count(ColumnRun(batch.content, batch.partition))
                offsets = batch.offsets()
                asked = (offsets >= offset) & (offsets < stop)
                found.append((offsets[asked], np.broadcast_to(sizes, len(offsets))[asked]))
            offset = answer[-1].next_offset
        empty = np.empty(0, np.int64)
        columns = zip((empty, empty), *found, strict=True)
        return Measured(*map(np.concatenate, columns))

    async def _batches(self, offset: int, bytes_max: int) -> list[Batch] | AtHead | Gone:
        return await self.partition.read(offset, bytes_max)


def mapping_of(config: StreamConfig) -> SubjectMapping | None:
    """The subject mapping in a stream's configuration."""
    transform = config.subject_transform
    if transform is None:
        return None
    return SubjectMapping.parse(transform.src.encode(), transform.dest.encode())


def _look_at(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _events.warning("stream_not_measured", reason=str(error))


def _behind(offsets: Sequence[int], position: int, limit: int) -> int:
    """The first index from `position` on whose offset reaches `limit`."""
    while position < len(offsets) and offsets[position] < limit:
        position += 1
    return position


def _picked(rows: Rows, wanted: Sequence[int]) -> Rows:
    """The rows with the given offsets."""
    if len(rows.offsets) == len(wanted) and rows.offsets[0] == wanted[0]:
        return rows
    places = {offset: place for place, offset in enumerate(rows.offsets)}
    return rows.take([places[offset] for offset in wanted if offset in places])
