"""What a publish requests in its header fields, and how its message is stored accordingly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from penstock.formats import json_rows
from penstock.model.errors import FormatError
from penstock.model.run import ColumnRun, Run
from penstock.model.subjects import Filter, storable_subject
from penstock.model.units import Offset, OffsetRange
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors, sourced
from penstock.wire.jetstream.counter_values import FIELD, increment_of
from penstock.wire.jetstream.stream_config import StreamConfig
from penstock.wire.jetstream.times import parse_ttl
from penstock.wire.parser import Publishes

MARK: Final = b"Nats-Schedul"
"""Common prefix of the header fields of schedules."""
RESERVED: Final = b"Nats-"
"""Common prefix of the header fields with a meaning."""
NEVER: Final = -1
"""A sequence that no message has; an unparsable number becomes this one, which never matches."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """What one publish requests; None where it requests nothing."""

    message_id: bytes = b""
    stream: bytes | None = None
    last_sequence: int | None = None
    last_subject_sequence: int | None = None
    subject: bytes = b""
    """The subject whose last sequence is expected, if not the message's own."""
    last_message_id: bytes | None = None
    rollup: bytes | None = None
    ttl: bytes | None = None
    schedules: bytes = b""
    """The header block, if it has fields of schedules."""
    increment: bytes | None = None
    """The increment of the subject's counter."""
    source: bytes | None = None
    """The origin of a copied message: only a source may set that."""

    def check_allowed(self, config: StreamConfig) -> None:
        """Raise ApiError if another stream is expected, or the stream does not support a
        request.
        """
        if self.stream is not None and self.stream != config.name.encode():
            raise errors.EXPECTED_STREAM.error()
        if self.ttl is not None:
            if not config.allow_msg_ttl:
                raise errors.TTL_DISABLED.error()
            parse_ttl(self.ttl)
        if self.subject and self.last_subject_sequence is None:
            raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error()
        if self.source is not None:
            raise errors.SOURCE_HEADER_REFUSED.error()

    def check_increment(self, config: StreamConfig, payload: bytes) -> Decimal | None:
        """The increment, if there is one; raises ApiError if it is invalid."""
        if self.increment is None:
            return None
        number = increment_of(self.increment)
        if not config.allow_msg_counter:
            raise errors.COUNTERS_DISABLED.error()
        if payload:
            raise errors.INCREMENT_WITH_PAYLOAD.error()
        expected = (self.stream, self.last_sequence, self.last_subject_sequence)
        if any(one is not None for one in (*expected, self.last_message_id, self.rollup)):
            raise errors.INCREMENT_INVALID.error()
        if self.subject:
            raise errors.INCREMENT_INVALID.error()
        return number

    def check_rollup(self, config: StreamConfig) -> None:
        """Raise ApiError if the message must not replace others."""
        if self.rollup is not None:
            if not config.allow_rollup_hdrs or config.deny_purge:
                raise errors.ROLLUP_FAILED.error("rollup not permitted")
            if self.rollup not in (b"sub", b"all"):
                told = self.rollup.decode(errors="replace")
                raise errors.ROLLUP_FAILED.error(f'rollup value invalid: "{told}"')


def expectations_of(block: bytes) -> Expectations:
    """Parse a header block."""
    get = headers.get
    return Expectations(
        message_id=get(block, b"Nats-Msg-Id") or b"",
        stream=get(block, b"Nats-Expected-Stream") or None,
        last_sequence=_number(get(block, b"Nats-Expected-Last-Sequence")),
        last_subject_sequence=_number(get(block, b"Nats-Expected-Last-Subject-Sequence")),
        subject=get(block, b"Nats-Expected-Last-Subject-Sequence-Subject") or b"",
        last_message_id=get(block, b"Nats-Expected-Last-Msg-Id") or None,
        rollup=get(block, b"Nats-Rollup") or None,
        ttl=get(block, b"Nats-TTL") or None,
        schedules=block if MARK in block else b"",
        source=get(block, sourced.FIELD) or None,
        increment=get(block, FIELD) or None,
    )


def _number(text: bytes | None) -> int | None:
    if not text:
        return None
    return int(text) if text.isdigit() and len(text) < 20 else NEVER


Replaced = tuple[Offset, list[Offset], bytes | None]
"""Everything before an offset, single offsets, and their subject if they share one."""


class Storing:
    """Checks what publishes request, and appends to one stream."""

    def __init__(self, stream: Stream, window: DuplicateWindow) -> None:
        self._stream, self._window = stream, window

    @property
    def taken(self) -> Offset:
        """The offset of the next message, after those that are not durable yet."""
        return self._stream.partition.appended_offset

    def check_last_id(self, expected: bytes | None) -> None:
        """Raise ApiError if the last message does not have the expected id."""
        last_id = self._window.last_id(self.taken)
        if expected not in (None, last_id):
            raise errors.WRONG_LAST_MESSAGE_ID.error(last_id.decode(errors="replace"))

    def log_run(self, run: Publishes) -> Run | ColumnRun:
        """The run as the log stores it; raises FormatError if a row does not fit a typed topic."""
        partition, schema = self._stream.partition.id, self._stream.topic.spec.schema
        if schema is not None:
            rows = json_rows.rows(schema, b"[%b]" % b",".join(run.payloads), None)
            if rows.num_rows != len(run.payloads):
                raise FormatError("a message must be one JSON object")
            return ColumnRun(rows, partition)
        first, subjects = run.subjects[0], run.subjects
        same = subjects.count(first) == len(subjects)
        return Run(first if same else subjects, run.payloads, run.headers, partition)

    # -- before the append

    async def make_room(self, messages: int, size_bytes: int, *, patient: bool = False) -> None:
        """Wait until there is room for so much; raises AppendQueueFull unless `patient`."""
        await self._stream.partition.make_room(messages, size_bytes, patient=patient)

    async def settled(self) -> None:
        """Wait until everything appended so far, over any protocol, can be found by subject."""
        stream, taken = self._stream, self.taken
        while stream.next_offset < taken:
            with stream.arrival() as arrival:
                if stream.next_offset < taken <= self.taken:
                    await arrival
                else:
                    break

    async def last_sequence(self, subject: bytes) -> int:
        """The last sequence of a subject or a subject filter; raises ApiError."""
        if not storable_subject(subject):
            raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error()
        chosen = Filter.covering(subject)
        await self._settled_for(chosen)
        last = await self._stream.last(chosen)
        return 0 if last is None else last + 1

    async def stored_as(self, message_id: bytes) -> int | None:
        """The durable sequence that stored this id; None if there is none."""
        while (known := self._window.find(message_id)) is not None:
            if self._stream.next_offset >= known:
                break
            await self.settled()
        return known

    async def replaced(
        self, subject: bytes, rollup: bytes | None, ended: bytes = b""
    ) -> list[Replaced]:
        """What a message replaces by its roll-up, or because it ends a schedule."""
        found: list[Replaced] = []
        if rollup == b"all":
            found.append((self.taken, [], subject))
        elif rollup is not None:
            chosen = Filter.covering(subject)
            offsets = await self._all_of(chosen)
            found.append((Offset(0), offsets, subject if chosen.literal else None))
        if ended:
            found.append((Offset(0), await self._all_of(Filter.exactly(ended)), ended))
        return found

    async def _all_of(self, chosen: Filter) -> list[Offset]:
        stream = self._stream
        await self._settled_for(chosen)
        if chosen.literal and stream.partition.subjects.cached_last(chosen.text) is None:
            return []
        return await stream.matching(chosen, 0, 1 << 31)

    async def _settled_for(self, chosen: Filter) -> None:
        """Wait until everything that matches a filter can be found by subject."""
        under_way = self._stream.keeper.under_way
        if under_way is None or not chosen.literal or under_way.has(chosen.text):
            await self.settled()

    # -- after the append

    def remember(self, ids: Mapping[bytes, int], stored: asyncio.Future[OffsetRange]) -> None:
        """Remember each id with its sequence; forget them again if the append fails."""

        def look(future: asyncio.Future[OffsetRange]) -> None:
            if future.cancelled() or future.exception() is not None:
                for message_id in ids:
                    self._window.forget(message_id)

        for message_id, sequence in ids.items():
            self._window.add(message_id, sequence)
        stored.add_done_callback(look)

    def drop(self, start: Offset, offsets: Sequence[int], subject: bytes | None) -> None:
        """Delete what the message replaces that was appended last."""
        self._stream.keeper.drop_soon(start, offsets, subject)
