"""How messages get into a stream's log, with what belongs to that: room, ids, ages, roll-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from penstock.formats import json_rows
from penstock.model.batch import OffsetRange
from penstock.model.errors import FormatError, NameInvalid
from penstock.model.run import ColumnRun, Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.window import Window
from penstock.wire.jetstream import errors
from penstock.wire.parser import Publishes

Replaced = tuple[Offset, list[Offset], bytes]
"""Everything before an offset, single ones, and whose they are."""


class Storing:
    """Of one stream."""

    def __init__(self, stream: Stream, window: Window) -> None:
        self._stream, self._window = stream, window

    @property
    def taken(self) -> Offset:
        """What the next message will get, those that are not durable yet counted."""
        return self._stream.log.writer.next_offset(self._stream.partition)

    def check_last_id(self, expected: bytes | None) -> None:
        """Raises ApiError when the last message does not have the id that is expected."""
        last_id = self._window.last_id(self.taken)
        if expected not in (None, last_id):
            raise errors.WRONG_LAST_MESSAGE_ID.error(last_id.decode(errors="replace"))

    def log_run(self, run: Publishes) -> Run | ColumnRun:
        """As the log takes it; raises FormatError when a row does not fit a typed topic."""
        partition, schema = self._stream.partition, self._stream.topic.spec.schema
        if schema is not None:
            rows = json_rows.rows(schema, b"[%b]" % b",".join(run.payloads), None)
            if rows.num_rows != len(run.payloads):
                raise FormatError("a message must be one JSON object")
            return ColumnRun(rows, partition)
        first, subjects = run.subjects[0], run.subjects
        same = subjects.count(first) == len(subjects)
        return Run(first if same else subjects, run.payloads, run.headers, partition)

    # -- before

    async def make_room(self, messages: int, size_bytes: int) -> None:
        """Wait until the log would take so much."""
        await self._stream.opened.reserve(self._stream.partition, messages)
        await self._stream.log.room(size_bytes)

    async def settled(self) -> None:
        """Wait until all that was taken, by whatever door, can be found by subject."""
        stream, taken = self._stream, self.taken
        while stream.next_offset < taken:
            with stream.arrival() as arrival:
                if stream.next_offset < taken <= self.taken:
                    await arrival
                else:
                    break

    async def last_sequence(self, subject: bytes) -> int:
        """Of the last message of a subject, or of what matches it; raises ApiError."""
        try:
            chosen = Filter.parse(subject)
        except NameInvalid:
            raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error() from None
        await self._settled_for(chosen)
        last = await self._stream.last(chosen)
        return 0 if last is None else last + 1

    async def stored_as(self, message_id: bytes) -> int | None:
        """Under which sequence this id is stored already, durably."""
        while (known := self._window.find(message_id)) is not None:
            if self._stream.next_offset >= known:
                break
            await self.settled()
        return known

    async def replaced(
        self, subject: bytes, rollup: bytes | None, ended: bytes = b""
    ) -> list[Replaced]:
        """What a message replaces by its roll-up, and the schedule that it ends."""
        found: list[Replaced] = []
        if rollup == b"all":
            found.append((self.taken, [], subject))
        elif rollup is not None:
            found.append((Offset(0), await self._all_of(subject), subject))
        if ended:
            found.append((Offset(0), await self._all_of(ended), ended))
        return found

    async def _all_of(self, subject: bytes) -> list[Offset]:
        stream, chosen = self._stream, Filter.parse(subject)
        await self._settled_for(chosen)
        if chosen.literal and stream.log.index.peek_last(stream.partition, subject) is None:
            return []
        return await stream.matching(chosen, 0, 1 << 31)

    async def _settled_for(self, chosen: Filter) -> None:
        """The same for what matches a filter only."""
        under_way = self._stream.keeper.under_way
        if under_way is None or not chosen.literal or under_way.has(chosen.text):
            await self.settled()

    # -- after

    def remember(self, ids: Mapping[bytes, int], stored: asyncio.Future[OffsetRange]) -> None:
        """Store these ids once, each under its sequence; unless they are not stored after all."""

        def look(future: asyncio.Future[OffsetRange]) -> None:
            if future.cancelled() or future.exception() is not None:
                for message_id in ids:
                    self._window.forget(message_id)

        for message_id, sequence in ids.items():
            self._window.add(message_id, sequence)
        stored.add_done_callback(look)

    def expire(self, offset: int, ttl_ns: int, stored: asyncio.Future[OffsetRange]) -> None:
        """Delete a message after so long, once it is stored."""
        stored.add_done_callback(partial(self._expires, offset, ttl_ns))

    def drop(self, start: Offset, offsets: Sequence[int], subject: bytes | None) -> None:
        """Drop what the message replaces that was appended last."""
        self._stream.keeper.drop_soon(start, offsets, subject)

    def _expires(self, offset: int, ttl_ns: int, stored: asyncio.Future[OffsetRange]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._stream.expires(offset, ttl_ns)
