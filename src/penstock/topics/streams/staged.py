"""Messages that are stored together or not at all, and what they are checked for.

They are checked one after the other against what is there and against those before them. What is
found out on the way belongs to the moment: `store` stores everything as one run, or says that the
moment has passed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from penstock.model.batch import OffsetRange
from penstock.model.errors import AppendQueueFull
from penstock.model.units import Offset
from penstock.topics.streams import schedule_rules
from penstock.topics.streams.counters import Sums
from penstock.topics.streams.expectations import RESERVED, Expectations, expectations_of
from penstock.topics.streams.schedule_rules import as_stored, ended_by
from penstock.topics.streams.storing import Replaced, Storing
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.counter_values import PAYLOAD, add_up
from penstock.wire.parser import Publishes

BATCH_FIELDS: Final = b"Nats-Batch-"


@dataclass(slots=True)
class Staged:
    """Messages that passed their checks."""

    taken: Offset
    """Where the first of them would be."""
    subjects: list[bytes] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    written: set[bytes] = field(default_factory=set)
    """Subjects of these messages."""
    ids: dict[bytes, int] = field(default_factory=dict)
    """Sequences of messages with an id."""
    lives: list[tuple[int, int]] = field(default_factory=list)
    """Offsets, and for how many nanoseconds they live."""
    lasts: dict[bytes, int] = field(default_factory=dict)
    """Last sequences of subjects that were looked up."""
    sums: dict[bytes, Decimal] = field(default_factory=dict)
    bases: dict[bytes, Decimal] = field(default_factory=dict)
    """Counters after these messages, and before."""
    totals: list[Decimal] = field(default_factory=list)
    rolled: list[Replaced] = field(default_factory=list)
    """What is replaced."""

    def take(self, subject: bytes, block: bytes, payload: bytes) -> None:
        self.written.add(subject)
        self.subjects.append(subject)
        self.blocks.append(block)
        self.payloads.append(payload)

    def run(self) -> Publishes:
        headers = self.blocks if any(self.blocks) else None
        replies = [b""] * len(self.payloads)
        return Publishes(self.subjects, replies, headers, self.payloads)


class Stage:
    """Checks and stores such messages of one stream."""

    def __init__(self, stream: Stream, sums: Sums, storing: Storing) -> None:
        self._stream, self._sums, self._storing = stream, sums, storing

    def begin(self) -> Staged:
        return Staged(self._storing.taken)

    async def add(self, staged: Staged, subject: bytes, block: bytes, payload: bytes) -> None:
        """Raises ApiError when a message cannot be stored behind those before it."""
        config = self._stream.config
        if not _asks(block) and not config.allow_msg_counter:
            self._stream.admission.check_size(len(block), 0)
            staged.take(subject, block, payload)
            return
        block = as_stored(block, config)
        asked = expectations_of(block)
        self._stream.admission.check_size(len(block), 0)
        number = asked.check_increment(config, payload)
        asked.check_allowed(config)
        await self._check_id(staged, asked.message_id)
        if config.allow_msg_counter:
            if number is None:
                raise errors.INCREMENT_MISSING.error()
            payload = await self._count(staged, subject, number)
            self._stream.admission.check_size(len(block), len(payload))
        self._check_last(staged, asked)
        await self._check_last_of_subject(staged, subject, asked)
        asked.check_rollup(config)
        await self._check_schedules(staged, subject, asked.schedules)
        await self._roll_up(staged, subject, asked)
        offset = staged.taken + len(staged.payloads)
        if asked.message_id:
            staged.ids[asked.message_id] = offset + 1
        if asked.ttl_ns is not None:
            staged.lives.append((offset, asked.ttl_ns))
        staged.take(subject, block, payload)

    async def room(self, staged: Staged) -> None:
        """Wait until the log would take them, and the stream's limits can be held."""
        await self._stream.admission.prepare(staged.written)
        size_bytes = self._storing.log_run(staged.run()).measure()
        await self._storing.make_room(len(staged.payloads), size_bytes)

    def store(self, staged: Staged) -> asyncio.Future[OffsetRange] | None:
        """Append them as one run; None when they have to be checked again.

        Raises as `Log.append` does.
        """
        storing, stream = self._storing, self._stream
        if storing.taken != staged.taken or self._sums.known(staged.bases) != staged.bases:
            return None
        try:
            with stream.admission.counted():
                stored = stream.log.append(storing.log_run(staged.run()))
        except AppendQueueFull:
            return None
        if staged.totals:
            self._sums.note(staged.taken, staged.subjects, staged.totals)
        storing.remember(staged.ids, stored)
        for offset, ttl_ns in staged.lives:
            storing.expire(offset, ttl_ns, stored)
        for start, offsets, subject in staged.rolled:
            storing.drop(start, offsets, subject)
        self._drop_unwanted(staged)
        return stored

    def _drop_unwanted(self, staged: Staged) -> None:
        interested = self._stream.interested
        if interested is None:
            return
        for offset, subject in enumerate(staged.subjects, staged.taken):
            if not interested(subject):
                self._storing.drop(Offset(0), [offset], subject)

    async def _check_id(self, staged: Staged, message_id: bytes) -> None:
        if not message_id:
            return
        if message_id in staged.ids or await self._storing.stored_as(message_id) is not None:
            raise errors.BATCH_DUPLICATE.error()

    async def _count(self, staged: Staged, subject: bytes, number: Decimal) -> bytes:
        if subject not in staged.sums:
            staged.sums[subject] = staged.bases[subject] = await self._sums.get(subject)
        total = add_up(staged.sums, subject, number)
        staged.totals.append(total)
        return PAYLOAD % str(total).encode()

    def _check_last(self, staged: Staged, asked: Expectations) -> None:
        last = staged.taken + len(staged.payloads)
        if asked.last_sequence is None:
            return
        if asked.last_sequence != last:
            raise errors.WRONG_LAST_SEQUENCE.error(last)
        if staged.payloads:
            raise errors.WRONG_SEQUENCE_IN_BATCH.error()

    async def _check_last_of_subject(
        self, staged: Staged, subject: bytes, asked: Expectations
    ) -> None:
        if asked.last_subject_sequence is None:
            return
        subject = asked.subject or subject
        if subject in staged.written:
            raise errors.WRONG_SEQUENCE_IN_BATCH.error()
        if subject not in staged.lasts:
            staged.lasts[subject] = await self._storing.last_sequence(subject)
        if staged.lasts[subject] != asked.last_subject_sequence:
            raise errors.WRONG_LAST_SEQUENCE.error(staged.lasts[subject])

    async def _check_schedules(self, staged: Staged, subject: bytes, block: bytes) -> None:
        if not block:
            return
        await schedule_rules.check(self._stream, self._storing, subject, block)
        if ended_by(block) in staged.written:
            raise errors.SCHEDULER_INVALID.error()

    async def _roll_up(self, staged: Staged, subject: bytes, asked: Expectations) -> None:
        if asked.rollup == b"sub" and subject in staged.written:
            raise errors.ROLLUP_FAILED.error("batch rollup sub invalid")
        if asked.rollup == b"all" and staged.written:
            raise errors.ROLLUP_FAILED.error("batch rollup all invalid")
        ended = ended_by(asked.schedules)
        staged.rolled += await self._storing.replaced(subject, asked.rollup, ended)


def _asks(block: bytes) -> bool:
    """Whether a message asks for more than to be part of its batch."""
    return block.count(RESERVED) > block.count(BATCH_FIELDS)
