"""Messages that are stored together or not at all, and the limits that all batches share.

Staged messages are checked one after the other, against the stream and those before them. The
results hold for the moment only: `store` appends all as one run, or returns None if they must be
checked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Timer
from penstock.model.errors import AppendQueueFull
from penstock.model.limits import RUN_BYTES_MAX
from penstock.model.run import Origin
from penstock.model.times import time_text_us
from penstock.model.units import Offset, OffsetRange
from penstock.streams import schedule_rules
from penstock.streams.counters import Sums
from penstock.streams.republish import Send
from penstock.streams.schedule_rules import as_stored, ended_by
from penstock.streams.storing import RESERVED, Expectations, Replaced, Storing, expectations_of
from penstock.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.counter_values import PAYLOAD, add_up
from penstock.wire.jetstream.documents import advisory
from penstock.wire.parser import Publishes

BATCHES_MAX: Final = 1000
STREAM_BATCHES_MAX: Final = 50
BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = RUN_BYTES_MAX // 2
"""Limit of one batch, which becomes one frame; sums of counters may take twice as much."""
STAGED_BYTES_MAX: Final = 256 << 20
"""Limit of all batches that are not committed yet."""
FAST_BATCHES_MAX: Final = 50_000
STREAM_FAST_BATCHES_MAX: Final = 1000
ID_BYTES_MAX: Final = 64
IDLE_SECONDS: Final = 10.0
"""A batch is abandoned after this time without a message."""


class Staging:
    """Counters and owners of all open batches of the broker."""

    def __init__(self, clock: Clock, send: Send) -> None:
        """`send` publishes a message to the current subscribers of its subject."""
        self._clock, self._send = clock, send
        self.idle_seconds = IDLE_SECONDS
        self.batches = self.fast_batches = self.size_bytes = 0
        """Number of open batches, and the memory that they use."""
        self._owned: dict[int, dict[object, Callable[[], None]]] = {}

    def own(self, owner: int, batch: object, give_up: Callable[[], None]) -> None:
        """Register a batch, which ends with the connection that began it."""
        self._owned.setdefault(owner, {})[batch] = give_up

    def disown(self, owner: int, batch: object) -> None:
        batches = self._owned.get(owner, {})
        batches.pop(batch, None)
        if not batches:
            self._owned.pop(owner, None)

    def tell(self, stream: str, batch: bytes, reason: str) -> None:
        """Publish the advisory that a batch was abandoned."""
        subject = f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream}".encode()
        facts = {"stream": stream, "batch": batch.decode(errors="replace"), "reason": reason}
        time = time_text_us(self._clock.now_us())
        text = advisory("stream_batch_abandoned", unique_name()[:22], time, **facts)
        self._send(subject, b"", b"", text)

    def left(self, owner: int) -> None:
        """Abandon the batches of a connection that was closed."""
        for give_up in list(self._owned.pop(owner, {}).values()):
            give_up()


class Patience:
    """Calls `give_up` if a batch receives no message for too long."""

    def __init__(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._give_up = seconds, give_up
        self._touched = self._loop.time()
        self._timer = Timer(self._look)
        self._timer.after(seconds)

    def touch(self) -> None:
        """Restart the wait after a message."""
        self._touched = self._loop.time()

    def stop(self) -> None:
        self._timer.stop()

    def _look(self) -> None:
        left = self._touched + self._seconds - self._loop.time()
        if left > 0:
            self._timer.after(left)
        else:
            self._give_up()


BATCH_FIELDS: Final = b"Nats-Batch-"


@dataclass(slots=True)
class Staged:
    """Messages that passed their checks."""

    taken: Offset
    """The offset that the first message will get."""
    subjects: list[bytes] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    written: set[bytes] = field(default_factory=set)
    """Subjects of these messages."""
    ids: dict[bytes, int] = field(default_factory=dict)
    """Sequences of messages with an id, by id."""
    lasts: dict[bytes, int] = field(default_factory=dict)
    """Last sequences of the subjects that were looked up."""
    sums: dict[bytes, Decimal] = field(default_factory=dict)
    bases: dict[bytes, Decimal] = field(default_factory=dict)
    """Sums of counters before and after these messages."""
    totals: list[Decimal] = field(default_factory=list)
    rolled: list[Replaced] = field(default_factory=list)
    """What the messages replace."""

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
    """Checks and stores messages of one stream that belong together."""

    def __init__(self, stream: Stream, sums: Sums, storing: Storing) -> None:
        self._stream, self._sums, self._storing = stream, sums, storing

    def begin(self) -> Staged:
        return Staged(self._storing.taken)

    async def add(self, staged: Staged, subject: bytes, block: bytes, payload: bytes) -> None:
        """Check and add a message; raises ApiError if it cannot be stored after those before it."""
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
        staged.take(subject, block, payload)

    async def room(self, staged: Staged) -> None:
        """Wait until the log has room, and the stream's limits can be held without a look-up."""
        await self._stream.admission.prepare(staged.written)
        size_bytes = self._storing.log_run(staged.run()).measure()
        await self._storing.make_room(len(staged.payloads), size_bytes)

    def store(self, staged: Staged) -> asyncio.Future[OffsetRange] | None:
        """Append the messages as one run; None if they must be checked again.

        Raises what `OpenPartition.append` raises.
        """
        storing, stream = self._storing, self._stream
        if storing.taken != staged.taken or self._sums.known(staged.bases) != staged.bases:
            return None
        try:
            stored = stream.partition.append(storing.log_run(staged.run()), Origin.COUNTER)
        except AppendQueueFull:
            return None
        if staged.totals:
            self._sums.note(staged.taken, staged.subjects, staged.totals)
        storing.remember(staged.ids, stored)
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
    """Whether a message requests more than to be part of its batch."""
    return block.count(RESERVED) > block.count(BATCH_FIELDS)
