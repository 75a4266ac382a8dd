"""A topic, or a partition of one, as the NATS door sees it: messages by sequence and by subject.

The sequence of a message is its offset and one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
import structlog

from penstock.log.subjects.bits import range_count
from penstock.log.subjects.listing import Row
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import DataDamaged
from penstock.model.run import ColumnRun
from penstock.model.subject_mapping import SubjectMapping
from penstock.model.subjects import Filter
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.topics.local import read_partition
from penstock.topics.streams.admission import Admission
from penstock.topics.streams.keeper import Keeper, Limits
from penstock.topics.streams.rows import NO_ROWS, Rows, joined, row_of, rows_of
from penstock.topics.streams.sizes import Counting, Int64s
from penstock.topics.topics import OpenTopic
from penstock.wire.jetstream.stream_config import StreamConfig

READ_BYTES: Final = 1 << 20
SUBJECTS_PAGE: Final = 10_000

_events = structlog.get_logger(__name__)


class Stream:
    """One stream that is served here."""

    def __init__(
        self, name: str, config: StreamConfig, opened: OpenTopic, partition: PartitionId
    ) -> None:
        self.name, self.config, self.opened, self.partition = name, config, opened, partition
        self.topic, self.log = opened.topic, opened.log
        self.created_us = opened.topic.created_us
        counting = Counting(config.storage == "memory", self.subject)
        self.keeper = Keeper(self.log, partition, limits_of(config), counting, self._sizes)
        self.admission = Admission(config, self.keeper, self.measured)
        self.mapping = mapping_of(config)
        """How subjects are rewritten before they are stored; None is not at all."""
        self.listeners: set[Callable[[], None]] = set()
        """Called after every commit to the stream, on the loop."""
        self.interested: Callable[[bytes], bool] | None = None
        """Whether a consumer wants a subject, where messages that nobody wants are not kept."""
        self.expires: Callable[[int, int], None] = lambda offset, ttl_ns: None
        """Told of a message that lives for so many nanoseconds only."""
        self.losses = 0
        """How often what was not durable was thrown away."""
        self._measuring: asyncio.Task[None] | None = None

    @property
    def subject(self) -> bytes:
        """Of messages that have none of their own."""
        return self.topic.name.topic.encode()

    # -- what there is

    @property
    def first_offset(self) -> Offset:
        """Of the first live message; the next offset when there is none."""
        state = self.log.state
        return state.next_live(self.partition, state.start(self.partition))

    @property
    def next_offset(self) -> Offset:
        return self.log.next_offset(self.partition)

    @property
    def last_seq(self) -> int:
        return self.next_offset

    @property
    def first_seq(self) -> int:
        """Of the first live message, the next one's when there is none; 0 before the first ever."""
        return self.first_offset + 1 if self.next_offset else 0

    @property
    def messages(self) -> int:
        return self.log.live_count(self.partition)

    @property
    def size_bytes(self) -> int:
        """As NATS counts them; see `measured`."""
        return self.keeper.durable_bytes

    def deleted(self) -> list[int]:
        """Sequences between the first and the last that are gone."""
        bitmap = self.log.state.bitmap(self.partition)
        first, last = self.first_offset, self.next_offset
        return [] if bitmap is None else [gone + 1 for gone in bitmap if first <= gone < last]

    async def measured(self) -> None:
        """Wait until `size_bytes` counts what was there before the stream was opened."""
        while self.keeper.unmeasured:
            await asyncio.shield(self._measure())

    def measure_soon(self) -> None:
        """A limit of bytes needs to know how many there are."""
        if self.keeper.limits.bytes is not None and self.keeper.unmeasured:
            self._measure().add_done_callback(_look_at)

    # -- reading

    def peek(
        self, offset: int, messages_max: int, bytes_max: int = READ_BYTES
    ) -> Rows | AtHead | Gone | None:
        """Messages from the first live one at or after `offset`, from memory; None: ask `read`."""
        answer = self.log.lookup.peek(self.partition, Offset(offset), bytes_max)
        return self._rows(answer, messages_max) if isinstance(answer, list) else answer

    def peek_one(self, offset: int) -> Rows | None:
        """One message, if it is alive and in memory."""
        batch = self.log.lookup.holding(self.partition, Offset(offset))
        return None if batch is None else row_of(batch, offset, self.subject)

    async def read(
        self, offset: int, messages_max: int, bytes_max: int = READ_BYTES
    ) -> Rows | AtHead | Gone:
        """The same from wherever they are; perhaps fewer than there are."""
        while True:
            answer = await self._batches(offset, bytes_max)
            if not isinstance(answer, list):
                return answer
            rows = self._rows(answer, messages_max)
            if rows.count:
                return rows
            offset = answer[-1].next_offset

    async def rows_from(self, offset: int, messages_max: int) -> AsyncIterator[Rows]:
        """Everything there is from an offset on, so many messages at a time at most."""
        while not isinstance(answer := await self.read(offset, messages_max), AtHead):
            if isinstance(answer, Gone):
                offset = max(answer.earliest, offset + 1)
            else:
                yield answer
                offset = answer.offsets[-1] + 1

    async def read_offsets(self, offsets: Sequence[int]) -> Rows:
        """These messages, as far as they are alive, in order."""
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
        """The same without what is damaged; the process's log tells of that."""
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
        """Somebody goes on behind messages that nobody can read any more."""
        facts = {"first": int(damage.first), "next": int(damage.next), "cause": damage.cause}
        _events.error("damage_passed_over", stream=self.name, **facts)

    async def get(self, offset: int) -> Rows:
        """One message, or none."""
        return await self.read_offsets([offset])

    async def offset_at(self, time_us: int) -> Offset:
        """The first live offset not older than this, else the next one."""
        place = self.opened.tier or self.log
        return await place.offset_at(self.partition, Microseconds(time_us))

    def arrival(self) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that completes with the next commit; register, look again, then wait."""
        return self.log.waiters.arrival(self.partition)

    # -- by subject

    async def last(self, chosen: Filter) -> Offset | None:
        return await self.log.index.last(self.partition, chosen)

    async def next(self, chosen: Filter, offset: int) -> Offset | None:
        return await self.log.index.next(self.partition, chosen, Offset(offset))

    async def matching(self, chosen: Filter, offset: int, limit: int) -> list[Offset]:
        return await self.log.index.matching(self.partition, chosen, Offset(offset), limit)

    async def count(self, chosen: Filter, first: int, stop: int) -> int:
        return await self.log.index.count(self.partition, chosen, Offset(first), Offset(stop))

    def count_all(self, first: int, stop: int) -> int:
        """Live messages between, at once."""
        state = self.log.state
        first, stop = max(first, state.start(self.partition)), min(stop, self.next_offset)
        return range_count(first, stop, state.bitmap(self.partition))

    async def subjects(
        self, chosen: Filter, after: bytes = b"", limit: int = SUBJECTS_PAGE
    ) -> list[Row]:
        """The first subjects behind `after`, in order, with what is alive of them."""
        return await self.log.index.subjects(self.partition, chosen, after, limit)

    # -- deleting

    async def delete(self, offsets: Sequence[int], reason: str = "message") -> None:
        """Delete single messages; durable on return."""
        alive = [offset for offset in offsets if self.count_all(offset, offset + 1)]
        self.keeper.dropped(0, alive)
        try:
            await self.log.delete(self.partition, alive, reason)
        except BaseException:
            self.thrown_away()
            raise
        self.tell()

    async def purge(self, before: int, reason: str = "purge") -> None:
        """Drop everything before an offset; durable on return."""
        if before > self.log.start_offset(self.partition):
            self.keeper.dropped(before, ())
            try:
                await self.log.purge(self.partition, Offset(before), reason)
            except BaseException:
                self.thrown_away()
                raise
            self.tell()

    def tell(self) -> None:
        """Something changed: tell who listens."""
        for listener in list(self.listeners):
            listener()

    # -- what the log tells

    def committed(self, partitions: Collection[int]) -> None:
        """Something of the topic is durable now."""
        if self.partition in partitions:
            self.keeper.committed()
            self.tell()

    def thrown_away(self) -> None:
        """What was not durable will never be."""
        self.losses += 1
        self.keeper.thrown_away()
        self.measure_soon()

    async def update(self, config: StreamConfig) -> None:
        """Serve by another configuration from now on; its limits hold on return."""
        self.config = self.admission.config = config
        self.mapping = mapping_of(config)
        self.keeper.limits = limits = limits_of(config)
        await self.log.writer.flush()
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
        await self.log.writer.flush()

    # -- details

    def _measure(self) -> asyncio.Task[None]:
        """Count what was not counted when it came; one counts for all who ask."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.get_running_loop().create_task(self._count_older())
        return self._measuring

    async def _count_older(self) -> None:
        first = self.log.start_offset(self.partition)
        self.keeper.learn(first, await self._sizes(first, self.keeper.sizes.base))

    async def _sizes(self, first: int, stop: int) -> Int64s:
        """What each message between counts; 0 where there is none."""
        found = np.zeros(max(stop - first, 0), np.int64)
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
                found[offsets[asked] - first] = np.broadcast_to(sizes, len(offsets))[asked]
            offset = answer[-1].next_offset
        return found

    async def _batches(self, offset: int, bytes_max: int) -> list[Batch] | AtHead | Gone:
        return await read_partition(self.opened, self.partition, Offset(offset), bytes_max)

    def _rows(self, batches: Sequence[Batch], messages_max: int) -> Rows:
        parts: list[Rows] = []
        for batch in batches:
            held = batch.messages
            if held:
                some = batch if held <= messages_max else batch.first_messages(messages_max)
                parts.append(rows_of(some, self.subject))
            if held >= messages_max:
                break
            messages_max -= held
        return joined(parts) if parts else NO_ROWS


def mapping_of(config: StreamConfig) -> SubjectMapping | None:
    """Of a stream's configuration, how subjects are rewritten."""
    transform = config.subject_transform
    if transform is None:
        return None
    return SubjectMapping.parse(transform.src.encode(), transform.dest.encode())


def limits_of(config: StreamConfig) -> Limits:
    """Of a stream's configuration, what bounds its size."""
    return Limits(
        config.max_msgs if config.max_msgs > 0 else None,
        config.max_bytes if config.max_bytes > 0 else None,
        config.max_msgs_per_subject if config.max_msgs_per_subject > 0 else None,
        config.discard == "new",
        config.allow_rollup_hdrs,
    )


def _look_at(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _events.warning("stream_not_measured", reason=str(error))


def _behind(offsets: Sequence[int], position: int, limit: int) -> int:
    """Where the offsets from `position` on reach `limit`."""
    while position < len(offsets) and offsets[position] < limit:
        position += 1
    return position


def _picked(rows: Rows, wanted: Sequence[int]) -> Rows:
    """Of these rows, those with the wanted offsets."""
    if len(rows.offsets) == len(wanted) and rows.offsets[0] == wanted[0]:
        return rows
    places = {offset: place for place, offset in enumerate(rows.offsets)}
    return rows.take([places[offset] for offset in wanted if offset in places])
