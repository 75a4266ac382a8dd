"""Publishes into a stream, including conditional publishes, ids, roll-ups and batches.

A run without special header fields is appended as it is, in one step. Any other is processed
message by message, in order; a message whose check needs a look-up delays those after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from itertools import groupby
from typing import NamedTuple

from penstock.host.tasks import Tasks
from penstock.model.errors import AppendQueueFull, PenstockError, RunInvalid
from penstock.model.units import Offset, OffsetRange
from penstock.streams import schedule_rules
from penstock.streams.answers import Answer, Answers
from penstock.streams.batches import BATCH_ID, Batches
from penstock.streams.counters import CounterPublishes, Sums
from penstock.streams.fast_batches import FastBatches
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.schedule_rules import as_stored, ended_by
from penstock.streams.staging import Stage, Staging
from penstock.streams.storing import RESERVED, Expectations, Replaced, Storing, expectations_of
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.fast_batches import SUFFIX
from penstock.wire.parser import Publishes


class _Kind(Enum):
    """How a message that is not plain is processed."""

    ALONE = auto()
    COUNTED = auto()
    IN_BATCH = auto()
    IN_FAST_BATCH = auto()


class _Message(NamedTuple):
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


def _divisible(run: Publishes, error: PenstockError) -> bool:
    """Whether the error may concern one message of several, which alone is to be refused."""
    return isinstance(error, RunInvalid) and len(run.payloads) > 1


def _each(run: Publishes) -> Iterator[Publishes]:
    """Each message as a run of its own."""
    for place, (subject, reply, payload) in enumerate(
        zip(run.subjects, run.replies, run.payloads, strict=True)
    ):
        blocks = None if run.headers is None else [run.headers[place]]
        yield Publishes([subject], [reply], blocks, [payload])


class Publisher:
    """Publishes into one stream, in the order of the calls."""

    def __init__(
        self, stream: Stream, window: DuplicateWindow, answer: Answer, staging: Staging
    ) -> None:
        self._stream, self._window = stream, window
        storing = self._storing = Storing(stream, window)
        answers = self._answers = Answers(stream, answer)
        sums = Sums(stream, storing)
        stage = Stage(stream, sums, storing)
        self._counting = CounterPublishes(stream, sums, storing, answers)
        self._batches = Batches(stream, stage, answers, staging)
        self._fast_batches = FastBatches(stream, stage, storing, answers, staging)
        self._waiting: deque[tuple[Publishes, int, Callable[[], None]]] = deque()
        self._tasks = Tasks()
        self._working: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None
        self._ack = b'{"stream":%b,"seq":%%d}' % answers.name.replace(b"%", b"%%")

    @property
    def stream(self) -> Stream:
        return self._stream

    def publish(self, run: Publishes, taken: Callable[[], None], owner: int = 0) -> bool:
        """Publish a run. Returns False if it must wait; then `taken` is called once it is appended.

        `owner` is the number of the connection that sent it.
        """
        stream = self._stream
        if stream.mapping is not None:
            map_ = stream.mapping.map
            run = run._replace(subjects=[map_(subject) or subject for subject in run.subjects])
        at_once = stream.partition.takes_at_once(len(run.payloads))
        if not self._waiting and at_once and self._plain(run):
            try:
                self._append(run)
            except AppendQueueFull:
                pass
            except PenstockError as error:
                if not _divisible(run, error):
                    self._answers.refuse(run.replies, error)
                    return True
            else:
                return True
        self._waiting.append((run, owner, taken))
        if self._working is None:
            self._working = self._tasks.start(self._work())
        return False

    def wait_for(self, before: asyncio.Task[None]) -> None:
        """Check no message closely before this task is done."""
        self._before = before

    def configured(self) -> None:
        """Apply another configuration of the stream, perhaps one without batches."""
        if not self._stream.config.allow_atomic:
            self._batches.give_up()
        if not self._stream.config.allow_batched:
            self._fast_batches.give_up()

    def stop(self) -> None:
        """Discard batches that wait for more messages."""
        self._batches.give_up()
        self._fast_batches.give_up()

    async def drained(self) -> None:
        """Wait until every run so far is appended."""
        while self._working is not None:
            await asyncio.wait([self._working])

    # -- plain runs

    def _plain(self, run: Publishes) -> bool:
        """Whether neither the run nor the stream needs a closer check."""
        stream = self._stream
        ruled = (
            not stream.admission.plain
            or stream.config.retention == "interest"
            or stream.topic.spec.schema is not None
        )
        asks = run.headers is not None and RESERVED in b"".join(run.headers)
        replies = b"".join(run.replies)
        # Searching for a single character is much faster than for a word.
        asks = asks or (b"$" in replies and SUFFIX in replies)
        return not ruled and not asks and stream.admission.ready(run.subjects)

    def _append(self, run: Publishes) -> asyncio.Future[OffsetRange]:
        future = self._stream.partition.append(self._storing.log_run(run))
        future.add_done_callback(partial(self._stored, run.replies))
        return future

    def _stored(self, replies: list[bytes], future: asyncio.Future[OffsetRange]) -> None:
        """Answer the publishers of a run that is durable, or has failed."""
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            first, next_ = future.result()
            ack = self._ack
            self._answers.tell(replies, [ack % seq for seq in range(first + 1, next_ + 1)])
        elif isinstance(error, PenstockError):
            self._answers.refuse(replies, error)

    # -- runs that are checked message by message

    async def _work(self) -> None:
        try:
            while self._waiting:
                run, owner, taken = self._waiting[0]
                try:
                    await self._take(run, owner)
                finally:
                    self._waiting.popleft()
                    taken()
        finally:
            self._working = None

    async def _take(self, run: Publishes, owner: int) -> None:
        try:
            if await self._append_if_plain(run):
                return
        except PenstockError as error:
            if not _divisible(run, error):
                self._answers.refuse(run.replies, error)
                return
            for alone in _each(run):
                await self._take(alone, owner)
            return
        if self._before is not None:
            await asyncio.wait([self._before])
        for kind, part in self._parts(run):
            if kind is _Kind.COUNTED:
                await self._counting.take(part)
            elif kind is _Kind.IN_BATCH:
                await self._batches.take(part, owner)
            elif kind is _Kind.IN_FAST_BATCH:
                await self._fast_batches.take(part)
            else:
                await self._take_each(part)

    async def _append_if_plain(self, run: Publishes) -> bool:
        """Append the run unless it needs a closer check; raises what `OpenPartition.append`
        raises.
        """
        storing = self._storing
        await self._stream.admission.prepare(run.subjects)
        if not self._plain(run):
            return False
        await storing.make_room(len(run.payloads), storing.log_run(run).measure())
        self._append(run)
        return True

    def _parts(self, run: Publishes) -> Iterator[tuple[_Kind, Publishes]]:
        """Neighbouring messages of one kind."""
        blocks = run.headers or [b""] * len(run.payloads)
        kinds = list(map(self._kind, run.replies, blocks))
        start = 0
        for kind, alike in groupby(kinds):
            cut = slice(start, start + len(list(alike)))
            start = cut.stop
            yield (
                kind,
                Publishes(run.subjects[cut], run.replies[cut], blocks[cut], run.payloads[cut]),
            )

    def _kind(self, reply: bytes, block: bytes) -> _Kind:
        if reply.endswith(SUFFIX):
            return _Kind.IN_FAST_BATCH
        if BATCH_ID in block and headers.get(block, BATCH_ID):
            return _Kind.IN_BATCH
        if self._stream.config.allow_msg_counter and self._counting.simple(block):
            return _Kind.COUNTED
        return _Kind.ALONE

    async def _take_each(self, run: Publishes) -> None:
        for message in map(_Message, run.subjects, run.replies, run.headers or (), run.payloads):
            try:
                await self._take_one(message)
            except PenstockError as error:
                self._answers.refuse([message.reply], error)

    async def _take_one(self, message: _Message) -> None:
        stream = self._stream
        block = as_stored(message.headers, stream.config)
        asked = expectations_of(block) if RESERVED in block else Expectations()
        stream.admission.check_open()
        stream.admission.check_size(len(block), len(message.payload))
        number = asked.check_increment(stream.config, message.payload)
        asked.check_allowed(stream.config)
        blocks = None if not block else [block]
        alone = Publishes([message.subject], [message.reply], blocks, [message.payload])
        size_bytes = self._storing.log_run(alone).measure()
        rolled = await self._checked(message.subject, asked, size_bytes)
        if asked.message_id:
            known = await self._storing.stored_as(asked.message_id)
            if known is not None:
                self._answers.duplicate(message.reply, known)
                return
        self._storing.check_last_id(asked.last_message_id)
        asked.check_rollup(stream.config)
        if stream.config.allow_msg_counter:
            if number is None:
                raise errors.INCREMENT_MISSING.error()
            offset, stored = await self._counting.add(alone, [number])
        else:
            offset, stored = self._storing.taken, self._append(alone)
        self._see_to(message.subject, asked, offset, stored)
        for replaced in rolled:
            self._storing.drop(*replaced)

    def _see_to(
        self, subject: bytes, asked: Expectations, offset: int, stored: asyncio.Future[OffsetRange]
    ) -> None:
        """Apply the roll-up, remember the id and delete what nobody needs, after an append."""
        if asked.message_id:
            self._storing.remember({asked.message_id: offset + 1}, stored)
        interested = self._stream.interested
        if interested is not None and not interested(subject):
            self._storing.drop(Offset(0), [offset], subject)

    async def _checked(
        self, subject: bytes, asked: Expectations, size_bytes: int
    ) -> list[Replaced]:
        """Return what the message replaces; raises ApiError if an expectation is not met.

        On return nobody else has appended since the check.
        """
        storing = self._storing
        while True:
            taken = storing.taken
            await self._check_expected(subject, asked)
            if asked.schedules:
                await schedule_rules.check(self._stream, storing, subject, asked.schedules)
            await self._stream.admission.prepare([subject])
            rolled = await storing.replaced(subject, asked.rollup, ended_by(asked.schedules))
            await storing.make_room(1, size_bytes)
            if storing.taken == taken:
                return rolled

    async def _check_expected(self, subject: bytes, asked: Expectations) -> None:
        if asked.last_subject_sequence is not None:
            found = await self._storing.last_sequence(asked.subject or subject)
            if found != asked.last_subject_sequence:
                raise errors.WRONG_LAST_SEQUENCE.error(found)
        taken = self._storing.taken
        if asked.last_sequence not in (None, taken):
            raise errors.WRONG_LAST_SEQUENCE.error(taken)
