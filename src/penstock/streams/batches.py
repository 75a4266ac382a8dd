"""Atomic batches: messages that are received one by one and stored all at once, or never.

    first message -> collected -> ... -> collected -> commit: checked, stored as one run, answered
                        │
                        └─ a gap, a wrong field, too many messages or bytes, a time-out, the end of
                           the connection: abandoned

Until its commit a batch is in memory only, invisible to readers. One run is one frame, so that
after a crash all of its messages exist, or none.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.model.errors import PenstockError
from penstock.streams.answers import Answers
from penstock.streams.appender import Appender
from penstock.streams.checks import CheckedStage, MessageChecks
from penstock.streams.open_batches import (
    BATCH_BYTES_MAX,
    BATCHES_MAX,
    ID_BYTES_MAX,
    STAGED_BYTES_MAX,
    STREAM_BATCHES_MAX,
    IdleTimeout,
    OpenBatches,
)
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors, levels
from penstock.wire.parser import Publishes

BATCH_ID: Final = b"Nats-Batch-Id"
SEQUENCE: Final = b"Nats-Batch-Sequence"
COMMIT: Final = b"Nats-Batch-Commit"
END: Final = b"eob"
LEVEL: Final = frozenset({levels.REQUIRED_LEVEL})
BARE: Final = b"NATS/1.0\r\n\r\n"
BATCH_MESSAGES_MAX: Final = 1000
MESSAGE_BYTES: Final = 256
"""Memory that a collected message uses in addition to its bytes."""


class AtomicBatch:
    """Messages that wait for the commit of their batch."""

    def __init__(self, batch_id: bytes, owner: int, timeout: IdleTimeout) -> None:
        self.batch_id, self.owner, self.timeout = batch_id, owner, timeout
        self.messages: list[tuple[bytes, bytes, bytes]] = []
        """Subject, header block and payload of each message."""
        self.size_bytes = 0


class Batches:
    """The atomic batches of one stream."""

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
        self._batches: dict[bytes, AtomicBatch] = {}

    async def publish(self, run: Publishes, owner: int) -> None:
        """Process messages of batches; `owner` is the connection that sent them."""
        blocks = run.headers or [b""] * len(run.payloads)
        rows = zip(run.subjects, run.replies, blocks, run.payloads, strict=True)
        for subject, reply, block, payload in rows:
            try:
                await self._receive(subject, reply, block, payload, owner)
            except PenstockError as error:
                self._answers.refuse([reply], error)

    def discard_all(self) -> None:
        """Discard all batches."""
        for batch in list(self._batches.values()):
            self._end(batch)

    async def _receive(
        self, subject: bytes, reply: bytes, block: bytes, payload: bytes, owner: int
    ) -> None:
        admission = self._stream.admission
        admission.check_open()
        admission.check_size(len(block), len(payload))
        if not self._stream.config.allow_atomic:
            raise errors.ATOMIC_DISABLED.error()
        batch_id = headers.get(block, BATCH_ID) or b""
        sequence = _sequence(batch_id, block)
        commit = headers.get(block, COMMIT) if COMMIT in block else None
        batch = self._batches.get(batch_id)
        if batch is None:
            batch = self._begin(batch_id, sequence, commit, owner)
        if commit not in (None, b"1", END):
            self._end(batch)
            raise errors.BATCH_COMMIT_INVALID.error()
        self._check(batch, sequence, commit, block)
        if commit != END:
            self._add(batch, subject, without_level(block), payload)
        if commit is None:
            self._answers.send([reply], [b""])
            return
        try:
            await self._commit(batch, reply, ended=commit == END)
        finally:
            self._end(batch)

    def _begin(
        self, batch_id: bytes, sequence: int, commit: bytes | None, owner: int
    ) -> AtomicBatch:
        limits = self._open_batches
        if sequence != 1:
            _check_count(sequence, commit)
            raise errors.BATCH_INCOMPLETE.error()
        if len(self._batches) >= STREAM_BATCHES_MAX or limits.batches >= BATCHES_MAX:
            raise errors.BATCHES_MAX.error()
        timeout = IdleTimeout(limits.idle_seconds, lambda: self._abandon(batch, "timeout"))
        batch = self._batches[batch_id] = AtomicBatch(batch_id, owner, timeout)
        limits.batches += 1
        limits.own(owner, batch, lambda: self._abandon(batch, "incomplete"))
        return batch

    def _check(self, batch: AtomicBatch, sequence: int, commit: bytes | None, block: bytes) -> None:
        """Raise ApiError, and abandon the batch, if the message does not follow the last one."""
        if levels.refuses(block):
            self._abandon(batch, "unsupported")
            raise errors.API_LEVEL_REQUIRED.error()
        batch.timeout.restart()
        if sequence != len(batch.messages) + 1 or (sequence == 1 and commit == END):
            self._abandon(batch, "incomplete")
            raise errors.BATCH_INCOMPLETE.error()
        try:
            _check_count(sequence, commit)
        except PenstockError:
            self._abandon(batch, "large")
            raise

    def _add(self, batch: AtomicBatch, subject: bytes, block: bytes, payload: bytes) -> None:
        size_bytes = len(subject) + len(block) + len(payload) + MESSAGE_BYTES
        if batch.size_bytes + size_bytes > BATCH_BYTES_MAX:
            self._abandon(batch, "large")
            raise errors.BATCH_TOO_LARGE.error(f"{BATCH_BYTES_MAX} bytes")
        if self._open_batches.size_bytes + size_bytes > STAGED_BYTES_MAX:
            self._abandon(batch, "large")
            raise errors.INSUFFICIENT_RESOURCES.error()
        batch.messages.append((subject, block, payload))
        batch.size_bytes += size_bytes
        self._open_batches.size_bytes += size_bytes

    async def _commit(self, batch: AtomicBatch, reply: bytes, *, ended: bool) -> None:
        """Store all messages of a batch; raises PenstockError if none is stored."""
        batch.timeout.stop()
        self._open_batches.disown(batch.owner, batch)
        if ended:
            subject, block, payload = batch.messages[-1]
            marked = headers.with_fields(block, [(COMMIT, b"1")])
            batch.messages[-1] = (subject, marked, payload)
        stored = await self._appender.append(partial(self._checked, batch))
        if stored is not None:
            count = len(batch.messages)
            self._answers.when_durable(
                stored,
                lambda offsets: self._answers.batch(reply, offsets.next, batch.batch_id, count),
                partial(self._answers.refuse, [reply]),
            )

    async def _checked(self, batch: AtomicBatch) -> CheckedStage:
        """A stage of all messages of a batch; raises ApiError if one of them is refused."""
        stage = self._checks.begin()
        for subject, block, payload in batch.messages:
            message = self._checks.parse(subject, block, payload)
            if message.fields.last_message_id is not None:
                raise errors.BATCH_HEADER_UNSUPPORTED.error("Nats-Expected-Last-Msg-Id")
            await self._checks.add_batched(stage, message)
        return stage

    def _abandon(self, batch: AtomicBatch, reason: str) -> None:
        """Discard a batch and publish an advisory."""
        self._end(batch)
        self._open_batches.publish_abandoned(self._stream.name, batch.batch_id, reason)

    def _end(self, batch: AtomicBatch) -> None:
        if self._batches.get(batch.batch_id) is not batch:
            return
        del self._batches[batch.batch_id]
        batch.timeout.stop()
        self._open_batches.disown(batch.owner, batch)
        self._open_batches.batches -= 1
        self._open_batches.size_bytes -= batch.size_bytes


def _sequence(batch_id: bytes, block: bytes) -> int:
    if len(batch_id) > ID_BYTES_MAX:
        raise errors.BATCH_ID_INVALID.error()
    text = headers.get(block, SEQUENCE) or b""
    if not text.isdigit() or len(text) > 19:
        raise errors.BATCH_SEQUENCE_MISSING.error()
    return int(text)


def _check_count(sequence: int, commit: bytes | None) -> None:
    if sequence - (commit == END) > BATCH_MESSAGES_MAX:
        raise errors.BATCH_TOO_LARGE.error(BATCH_MESSAGES_MAX)


def without_level(block: bytes) -> bytes:
    """The header block without the field that sets the required API level."""
    if levels.REQUIRED_LEVEL not in block:
        return block
    remaining = headers.without(block, LEVEL)
    return b"" if remaining == BARE else remaining
