"""Reads the messages of a stream by offset, by time and by subject."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import structlog

from penstock.log import SubjectRow
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import DataDamaged
from penstock.model.subjects import Filter
from penstock.model.units import Microseconds, Offset
from penstock.streams.rows import NO_ROWS, Rows, first_rows, joined, row_of
from penstock.topics import OpenPartition

READ_BYTES: Final = 1 << 20
SUBJECTS_PAGE: Final = 10_000

_events = structlog.get_logger(__name__)


class StreamReader:
    """Reads one partition as the stream `name`."""

    def __init__(self, name: str, partition: OpenPartition, subject: bytes) -> None:
        """`subject` is that of messages without one of their own."""
        self.name, self.partition, self.subject = name, partition, subject

    # -- by offset and time

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
            answer = await self.partition.read(offset, bytes_max)
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
            first = offsets[position]
            span = offsets[-1] - first + 1
            rows = self.peek(first, span) or await self.read(first, span)
            if not isinstance(rows, Rows):
                if isinstance(rows, Gone) and rows.earliest > first:
                    position = _index_of(offsets, position, rows.earliest)
                    continue
                break
            stop = _index_of(offsets, position, rows.offsets[-1] + 1)
            found.append(_rows_at(rows, offsets[position:stop]))
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
                self.log_skipped(damage)
                before = bisect_left(offsets, damage.first)
                after = max(bisect_left(offsets, damage.next), before + 1)
                found.append(await self.read_offsets(offsets[:before]))
                offsets = offsets[after:]
        found = [rows for rows in found if rows.count]
        return joined(found) if found else NO_ROWS

    def log_skipped(self, damage: DataDamaged) -> None:
        """Log that a reader skips damaged messages."""
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
        """The last offset whose subject matches."""
        return await self.partition.subjects.last(chosen)

    async def next(self, chosen: Filter, offset: int) -> Offset | None:
        """The first offset from this one on whose subject matches."""
        return await self.partition.subjects.next(chosen, offset)

    async def matching(self, chosen: Filter, offset: int, limit: int) -> list[Offset]:
        """Up to `limit` offsets from `offset` on whose subjects match, in order."""
        return await self.partition.subjects.matching(chosen, offset, limit)

    async def count(self, chosen: Filter, first: int, stop: int) -> int:
        """Number of live messages in a range whose subjects match."""
        return await self.partition.subjects.count(chosen, first, stop)

    def count_all(self, first: int, stop: int) -> int:
        """Number of live messages in a range, without a look-up."""
        return self.partition.count_live(first, stop)

    async def subjects(
        self, chosen: Filter, after: bytes = b"", limit: int = SUBJECTS_PAGE
    ) -> list[SubjectRow]:
        """The first subjects after `after`, in order, with their live messages."""
        return await self.partition.subjects.list(chosen, after, limit)


def _index_of(offsets: Sequence[int], position: int, limit: int) -> int:
    """The first index from `position` on whose offset is at least `limit`."""
    while position < len(offsets) and offsets[position] < limit:
        position += 1
    return position


def _rows_at(rows: Rows, offsets: Sequence[int]) -> Rows:
    """The rows that have one of these offsets."""
    if len(rows.offsets) == len(offsets) and rows.offsets[0] == offsets[0]:
        return rows
    indexes = {offset: index for index, offset in enumerate(rows.offsets)}
    return rows.take([indexes[offset] for offset in offsets if offset in indexes])
