"""Atomic batches: messages that are received one by one and stored all at once, or never.

    first message -> staged -> ... -> staged -> commit: checked, stored as one run, answered
                        │
                        └─ a gap, a wrong field, too much, silence, the end of its connection:
                           discarded

Until its commit a batch is in memory only, invisible to readers. One run is one frame, so that
after a crash all of its messages exist, or none.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock.model.errors import PenstockError
from penstock.model.units import OffsetRange
from penstock.streams.answers import Answers
from penstock.streams.staging import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    BATCHES_MAX,
    ID_BYTES_MAX,
    STAGED_BYTES_MAX,
    STREAM_BATCHES_MAX,
    Patience,
    Stage,
    Staged,
    Staging,
)
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors, levels
from penstock.wire.parser import Publishes

BATCH_ID: Final = b"Nats-Batch-Id"
SEQUENCE: Final = b"Nats-Batch-Sequence"
COMMIT: Final = b"Nats-Batch-Commit"
LAST_MESSAGE_ID: Final = b"Nats-Expected-Last-Msg-Id"
END: Final = b"eob"
LEVEL: Final = frozenset({levels.REQUIRED_LEVEL})
BARE: Final = b"NATS/1.0\r\n\r\n"
MESSAGE_BYTES: Final = 256
"""Memory that a staged message takes in addition to its bytes."""


class AtomicBatch:
    """Messages that wait for the commit of their batch."""

    def __init__(self, batch_id: bytes, owner: int, patience: Patience) -> None:
        self.batch_id, self.owner, self.patience = batch_id, owner, patience
        self.messages: list[tuple[bytes, bytes, bytes]] = []
        """Subject, header block and payload of each message."""
        self.size_bytes = 0


class Batches:
    """The atomic batches of one stream."""

    def __init__(self, stream: Stream, stage: Stage, answers: Answers, staging: Staging) -> None:
        self._stream, self._stage, self._answers = stream, stage, answers
        self._staging = staging
        self._batches: dict[bytes, AtomicBatch] = {}

    async def take(self, run: Publishes, owner: int) -> None:
        """Process messages of batches; `owner` is the connection that sent them."""
        blocks = run.headers or [b""] * len(run.payloads)
        rows = zip(run.subjects, run.replies, blocks, run.payloads, strict=True)
        for subject, reply, block, payload in rows:
            try:
                await self._take(subject, reply, block, payload, owner)
            except PenstockError as error:
                self._answers.refuse([reply], error)

    def give_up(self) -> None:
        """Discard all batches."""
        for batch in list(self._batches.values()):
            self._end(batch)

    async def _take(
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
            self._answers.tell([reply], [b""])
            return
        try:
            await self._commit(batch, reply, ended=commit == END)
        finally:
            self._end(batch)

    def _begin(
        self, batch_id: bytes, sequence: int, commit: bytes | None, owner: int
    ) -> AtomicBatch:
        staging = self._staging
        if sequence != 1:
            _check_count(sequence, commit)
            raise errors.BATCH_INCOMPLETE.error()
        if len(self._batches) >= STREAM_BATCHES_MAX or staging.batches >= BATCHES_MAX:
            raise errors.BATCHES_MAX.error()
        patience = Patience(staging.idle_seconds, lambda: self._abandon(batch, "timeout"))
        batch = self._batches[batch_id] = AtomicBatch(batch_id, owner, patience)
        staging.batches += 1
        staging.own(owner, batch, lambda: self._abandon(batch, "incomplete"))
        return batch

    def _check(self, batch: AtomicBatch, sequence: int, commit: bytes | None, block: bytes) -> None:
        """Raise ApiError, and abandon the batch, if the message does not follow the last one."""
        if levels.refuses(block):
            self._abandon(batch, "unsupported")
            raise errors.API_LEVEL_REQUIRED.error()
        batch.patience.touch()
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
        if self._staging.size_bytes + size_bytes > STAGED_BYTES_MAX:
            self._abandon(batch, "large")
            raise errors.INSUFFICIENT_RESOURCES.error()
        batch.messages.append((subject, block, payload))
        batch.size_bytes += size_bytes
        self._staging.size_bytes += size_bytes

    async def _commit(self, batch: AtomicBatch, reply: bytes, *, ended: bool) -> None:
        """Store all messages of a batch; raises PenstockError if none is stored."""
        batch.patience.stop()
        self._staging.disown(batch.owner, batch)
        if ended:
            subject, block, payload = batch.messages[-1]
            marked = headers.with_fields(block, [(COMMIT, b"1")])
            batch.messages[-1] = (subject, marked, payload)
        stored = None
        while stored is None:
            staged = await self._checked(batch)
            await self._stage.room(staged)
            stored = self._stage.store(staged)
        told = partial(self._stored, batch.batch_id, len(batch.messages), reply)
        stored.add_done_callback(told)

    async def _checked(self, batch: AtomicBatch) -> Staged:
        staged = self._stage.begin()
        for subject, block, payload in batch.messages:
            if LAST_MESSAGE_ID in block and headers.get(block, LAST_MESSAGE_ID):
                raise errors.BATCH_HEADER_UNSUPPORTED.error(LAST_MESSAGE_ID.decode())
            await self._stage.add(staged, subject, block, payload)
        return staged

    def _stored(
        self, batch_id: bytes, count: int, reply: bytes, future: asyncio.Future[OffsetRange]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._answers.batch(reply, future.result().next, batch_id, count)
        elif isinstance(error, PenstockError):
            self._answers.refuse([reply], error)

    def _abandon(self, batch: AtomicBatch, reason: str) -> None:
        """Discard a batch and publish an advisory."""
        self._end(batch)
        self._staging.tell(self._stream.name, batch.batch_id, reason)

    def _end(self, batch: AtomicBatch) -> None:
        if self._batches.get(batch.batch_id) is not batch:
            return
        del self._batches[batch.batch_id]
        batch.patience.stop()
        self._staging.disown(batch.owner, batch)
        self._staging.batches -= 1
        self._staging.size_bytes -= batch.size_bytes


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
    kept = headers.without(block, LEVEL)
    return b"" if kept == BARE else kept
