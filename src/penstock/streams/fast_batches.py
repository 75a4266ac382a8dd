"""Fast batches: messages that are stored as they are received, with shared acks and flow control.

Sequences within a batch reveal missing messages. An ack reports how far the batch is durable, and
how many messages the client may send before the next ack.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError
from penstock.model.units import OffsetRange
from penstock.streams.answers import Answers, api_error, quoted
from penstock.streams.appender import Appender
from penstock.streams.batches import without_level
from penstock.streams.checks import CheckedStage, MessageChecks
from penstock.streams.open_batches import (
    FAST_BATCHES_MAX,
    ID_BYTES_MAX,
    STREAM_FAST_BATCHES_MAX,
    IdleTimeout,
    OpenBatches,
)
from penstock.streams.publish_fields import RESERVED_PREFIX
from penstock.streams.stage import Stage
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors, fast_batches, levels
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.fast_batches import FastMessage, Operation
from penstock.wire.parser import Publishes

FLOW_MAX: Final = 500
"""Limit of unacknowledged messages, of all fast batches of a stream together."""


class FastBatch:
    """How far one batch was received, stored and acknowledged."""

    def __init__(self, first: FastMessage, timeout: IdleTimeout) -> None:
        self.batch_id, self.gaps, self.flow_max = first.batch, first.gaps, first.flow
        self.timeout = timeout
        self.flow = 1
        """The number of messages per ack."""
        self.received = 0
        """The last sequence that was received."""
        self.stored = 0
        """The last sequence that is durable or that will not be stored."""
        self.acked = 0
        """The last sequence that was acknowledged."""
        self.pending = 0
        """Number of messages that are not durable yet."""
        self.stream_sequence = 0
        """The stream sequence of the last durable message."""
        self.ended_by: bytes | None = None
        """The reply subject of the message that ended the batch; None while it is open."""

    def begin(self, others: int) -> None:
        """Set the initial flow: the client's wish if no other batch is open, else slow."""
        self.flow = 1 if others else min(FLOW_MAX, self.flow_max)

    def next_ack(self, batches: int) -> bool:
        """Whether an ack is due when `acked` is durable; adjusts `flow` towards a fair share of
        all.
        """
        steps = (self.stored - self.acked) // self.flow
        if steps < 1:
            return False
        self.acked += steps * self.flow
        fair = min(max(FLOW_MAX // batches, 1), self.flow_max)
        if self.flow < fair:
            self.flow = min(self.flow * 2, fair)
        else:
            self.flow = max(self.flow // 2, fair)
        return True


class _Span(NamedTuple):
    """Messages that are neighbours both in the log and in their batch."""

    batch: FastBatch
    messages: int
    sequence: int
    """Batch sequence of the last message."""
    reply: bytes


@dataclass(slots=True)
class _GatheredMessages:
    """Messages of several batches that are appended together."""

    subjects: list[bytes] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)

    async def stage(self) -> Stage:
        return Stage(None, self.subjects, self.blocks, self.payloads)


class _Row(NamedTuple):
    subject: bytes
    reply: bytes
    block: bytes
    payload: bytes


class FastBatches:
    """The fast batches of one stream."""

    def __init__(
        self,
        stream: Stream,
        checks: MessageChecks,
        appender: Appender,
        answers: Answers,
        open_batches: OpenBatches,
    ) -> None:
        self._stream, self._checks, self._appender = stream, checks, appender
        self._answers, self._open_batches = answers, open_batches
        self._batches: dict[bytes, FastBatch] = {}
        self._gathered = _GatheredMessages()

    async def publish(self, run: Publishes) -> None:
        """Process messages of batches."""
        blocks = run.headers or [b""] * len(run.payloads)
        bare, place = not any(blocks), 0
        while place < len(run.payloads):
            reply = run.replies[place]
            row = _Row(run.subjects[place], reply, blocks[place], run.payloads[place])
            place += 1
            try:
                await self._receive(row)
            except PenstockError as error:
                self._answers.refuse([reply], error)
            spans = self._gathered.spans
            if bare and spans and spans[-1].reply == reply:
                place += self._gather_following(run, place)
        await self._flush()

    def discard_all(self) -> None:
        """Forget all batches; messages that were stored stay."""
        for batch in list(self._batches.values()):
            self._end(batch)

    # -- receiving

    async def _receive(self, row: _Row) -> None:
        admission = self._stream.admission
        admission.check_open()
        admission.check_size(len(row.block), len(row.payload))
        if not self._stream.config.allow_batched:
            raise errors.FAST_DISABLED.error()
        message = fast_batches.parse(row.reply)
        if message is None:
            raise errors.FAST_PATTERN_INVALID.error()
        batch = self._batches.get(message.batch) or self._begin(message)
        if levels.refuses(row.block):
            self._end(batch)
            raise errors.API_LEVEL_REQUIRED.error()
        batch.timeout.restart()
        if message.operation is Operation.PING:
            self._ping(batch, message, row.reply)
        elif batch.ended_by is None and self._follows(batch, message, row.reply):
            await self._store(batch, message, row)

    def _begin(self, message: FastMessage) -> FastBatch:
        limits = self._open_batches
        if len(message.batch) > ID_BYTES_MAX:
            raise errors.FAST_ID_INVALID.error()
        if message.sequence != 1 or message.operation is Operation.PING:
            raise errors.FAST_ID_UNKNOWN.error()
        known = len(self._batches)
        if known >= STREAM_FAST_BATCHES_MAX or limits.fast_batches >= FAST_BATCHES_MAX:
            raise errors.FAST_MAX.error()
        timeout = IdleTimeout(limits.idle_seconds, lambda: self._time_out(batch))
        batch = self._batches[message.batch] = FastBatch(message, timeout)
        batch.begin(known)
        limits.fast_batches += 1
        return batch

    def _ping(self, batch: FastBatch, message: FastMessage, reply: bytes) -> None:
        if message.sequence > batch.received:
            gap = fast_batches.gap(batch.received + 1, message.sequence + 1)
            self._answers.send([reply], [gap])
            if not batch.gaps:
                self._commit(batch, reply)
                return
            batch.received = message.sequence
            if not batch.pending:
                batch.stored = batch.received
            if self._check_flow(batch, reply):
                return
        self._ack(batch, reply)

    def _follows(self, batch: FastBatch, message: FastMessage, reply: bytes) -> bool:
        """Whether a message is to be checked; one that only ends the batch is not."""
        expected = batch.received + 1
        if message.sequence != expected:
            self._answers.send([reply], [fast_batches.gap(expected, message.sequence)])
            if not batch.gaps or message.sequence < expected:
                self._commit(batch, reply)
                return False
        batch.received = message.sequence
        if message.operation is Operation.END:
            batch.received -= 1
            if not batch.pending:
                batch.stored = batch.received
        if message.commits:
            self._commit(batch, reply)
        elif message.sequence == 1:
            self._answers.send([reply], [fast_batches.ack(0, batch.flow)])
        return message.operation is not Operation.END

    def _gather_following(self, run: Publishes, place: int) -> int:
        """Append all messages that follow the last one directly; returns their number.

        Their expected reply subjects are known, so that none has to be parsed.
        """
        gathered = self._gathered
        span = gathered.spans[-1]
        batch, replies = span.batch, run.replies[place:]
        if batch.ended_by is not None or span.sequence != batch.received:
            return 0
        shared, first = span.reply.rsplit(b".", 3)[0], span.sequence + 1
        numbers = range(first, first + len(replies))
        expected = [b"%b.%d.1.$FI" % (shared, number) for number in numbers]
        count = len(replies)
        if replies != expected:
            pairs = enumerate(zip(replies, expected, strict=True))
            count = next(index for index, (reply, due) in pairs if reply != due)
        if count:
            stop = place + count
            gathered.subjects += run.subjects[place:stop]
            gathered.blocks += [b""] * count
            gathered.payloads += run.payloads[place:stop]
            batch.received += count
            batch.pending += count
            last = _Span(batch, span.messages + count, batch.received, run.replies[stop - 1])
            gathered.spans[-1] = last
        return count

    # -- appending

    async def _store(self, batch: FastBatch, message: FastMessage, row: _Row) -> None:
        stream = self._stream
        ruled = not stream.admission.plain or stream.interested is not None
        typed = stream.topic.spec.schema is not None
        batch.pending += 1
        span = _Span(batch, 1, message.sequence, row.reply)
        if not ruled and not typed and RESERVED_PREFIX not in row.block:
            gathered = self._gathered
            gathered.subjects.append(row.subject)
            gathered.blocks.append(row.block)
            gathered.payloads.append(row.payload)
            gathered.spans.append(span)
            return
        await self._flush()

        async def check() -> CheckedStage:
            stage = self._checks.begin()
            parsed = self._checks.parse(row.subject, without_level(row.block), row.payload)
            await self._checks.add_batched(stage, parsed)
            return stage

        try:
            stored = await self._appender.append(check)
        except PenstockError as error:
            batch.pending -= 1
            await self._refused(batch, message, row, api_error(error))
        else:
            self._when_stored(stored, [span])

    async def _flush(self) -> None:
        """Append the gathered messages."""
        gathered, self._gathered = self._gathered, _GatheredMessages()
        if not gathered.spans:
            return
        try:
            stored = await self._appender.append(gathered.stage)
        except PenstockError as error:
            self._failed(gathered.spans, error)
        else:
            self._when_stored(stored, gathered.spans)

    def _when_stored(self, stored: asyncio.Future[OffsetRange] | None, spans: list[_Span]) -> None:
        if stored is not None:
            confirm, fail = partial(self._stored, spans), partial(self._failed, spans)
            self._answers.when_durable(stored, confirm, fail)

    def _stored(self, spans: list[_Span], offsets: OffsetRange) -> None:
        """Count messages as durable, and send the acks that are due."""
        sequence: int = offsets.first
        for span in spans:
            sequence += span.messages
            span.batch.pending -= span.messages
            span.batch.stream_sequence = sequence
        for batch, span in {span.batch: span for span in spans}.items():
            batch.stored = span.sequence if batch.pending else batch.received
            if not self._complete(batch):
                self._check_flow(batch, span.reply)

    def _failed(self, spans: list[_Span], error: PenstockError) -> None:
        """End batches whose messages were lost, and answer with the reason."""
        for batch, span in {span.batch: span for span in spans}.items():
            if self._end(batch):
                self._answers.refuse([batch.ended_by or span.reply], error)

    # -- messages that are not stored

    async def _refused(
        self, batch: FastBatch, message: FastMessage, row: _Row, error: ApiError
    ) -> None:
        duplicate = error.err_code == errors.BATCH_DUPLICATE.err_code
        if duplicate and not batch.pending:
            batch.stored = message.sequence
            self._check_flow(batch, row.reply)
        if duplicate and not message.commits:
            return
        if not message.gaps and batch.received == 1:
            self._end(batch)
            await self._refuse_first(message, row, error, duplicate=duplicate)
            return
        if not duplicate:
            if error.err_code == errors.WRONG_LAST_MESSAGE_ID.err_code:
                # nats-server answers this one as if it were no part of a batch.
                self._answers.refuse([row.reply], error)
            else:
                self._answers.send(
                    [row.reply], [fast_batches.failure(message.sequence, error)], confirms=False
                )
            if message.gaps and not message.commits:
                return
            batch.received -= 1
            if not batch.pending:
                batch.stored = batch.received
        self._commit(batch, row.reply)

    async def _refuse_first(
        self, message: FastMessage, row: _Row, error: ApiError, *, duplicate: bool
    ) -> None:
        """Answer the refused first message of a batch like a single message."""
        message_id = headers.get(row.block, b"Nats-Msg-Id") or b""
        known = await self._appender.stored_as(message_id) if duplicate else None
        if known is None:
            self._answers.refuse([row.reply], error)
            return
        text = b'{"stream":%b,"seq":%d,"duplicate": true,"batch":%b,"count":%d}'
        facts = (self._answers.name, known, quoted(message.batch), message.sequence)
        self._answers.send([row.reply], [text % facts])

    # -- acks and the end

    def _check_flow(self, batch: FastBatch, reply: bytes) -> bool:
        """Send an ack if one is due, and agree on the next one."""
        known = self._batches.get(batch.batch_id) is batch
        if not known or not batch.next_ack(len(self._batches)):
            return False
        self._ack(batch, reply)
        return True

    def _ack(self, batch: FastBatch, reply: bytes) -> None:
        self._answers.send([reply], [fast_batches.ack(batch.acked, batch.flow)])

    def _commit(self, batch: FastBatch, reply: bytes) -> None:
        """Accept no more messages, and answer when all are durable."""
        batch.ended_by = reply
        batch.timeout.stop()
        self._complete(batch)

    def _complete(self, batch: FastBatch) -> bool:
        if batch.ended_by is None or batch.stored != batch.received or not self._end(batch):
            return False
        sequence, count = batch.stream_sequence, batch.received
        self._answers.batch(batch.ended_by, sequence, batch.batch_id, count)
        return True

    def _time_out(self, batch: FastBatch) -> None:
        self._end(batch)

    def _end(self, batch: FastBatch) -> bool:
        """Forget a batch; returns whether it was known."""
        if self._batches.get(batch.batch_id) is not batch:
            return False
        del self._batches[batch.batch_id]
        batch.timeout.stop()
        self._open_batches.fast_batches -= 1
        return True
