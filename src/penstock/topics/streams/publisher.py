"""Publishes into a stream, and what a publish may ask for: to be stored once, or only if.

A run that asks for nothing special goes to the log as it is, in one step. Any other is taken
message by message, in order; what has to be looked up first makes those behind it wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from itertools import groupby
from typing import NamedTuple

from penstock.model.batch import OffsetRange
from penstock.model.errors import AppendQueueFull, PenstockError
from penstock.model.units import Offset
from penstock.topics.streams import schedule_rules
from penstock.topics.streams.answers import Answer, Answers
from penstock.topics.streams.batches import BATCH_ID, Batches
from penstock.topics.streams.counters import Counting, Sums
from penstock.topics.streams.expectations import RESERVED, Expectations, expectations_of
from penstock.topics.streams.fast_batches import FastBatches
from penstock.topics.streams.schedule_rules import as_stored, ended_by
from penstock.topics.streams.staged import Stage
from penstock.topics.streams.staging import Staging
from penstock.topics.streams.storing import Replaced, Storing
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.window import Window
from penstock.wire import headers
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.fast_batches import SUFFIX
from penstock.wire.parser import Publishes


class _Kind(Enum):
    """How a message that is not plain is taken."""

    ALONE = auto()
    COUNTED = auto()
    IN_BATCH = auto()
    IN_FAST_BATCH = auto()


class _Message(NamedTuple):
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Publisher:
    """Publishes into one stream, in the order it is told."""

    def __init__(self, stream: Stream, window: Window, answer: Answer, staging: Staging) -> None:
        self._stream, self._window = stream, window
        storing = self._storing = Storing(stream, window)
        answers = self._answers = Answers(stream, answer)
        sums = Sums(stream, storing)
        stage = Stage(stream, sums, storing)
        self._counting = Counting(stream, sums, storing, answers)
        self._batches = Batches(stream, stage, answers, staging)
        self._fast_batches = FastBatches(stream, stage, storing, answers, staging)
        self._waiting: deque[tuple[Publishes, int, Callable[[], None]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None
        self._rolling: set[asyncio.Task[None]] = set()
        self._ack = b'{"stream":%b,"seq":%%d}' % answers.name.replace(b"%", b"%%")

    @property
    def stream(self) -> Stream:
        return self._stream

    def publish(self, run: Publishes, taken: Callable[[], None], owner: int = 0) -> bool:
        """Take a run. False when it has to wait; then `taken` is called once it is in the log.

        `owner` is the number of the connection it came by.
        """
        stream = self._stream
        if stream.mapping is not None:
            map_ = stream.mapping.map
            run = run._replace(subjects=[map_(subject) or subject for subject in run.subjects])
        reserved = stream.opened.reserved(stream.partition, len(run.payloads))
        if not self._waiting and reserved and self._plain(run):
            try:
                self._append(run)
            except AppendQueueFull:
                pass
            except PenstockError as error:
                self._answers.refuse(run.replies, error)
                return True
            else:
                return True
        self._waiting.append((run, owner, taken))
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())
        return False

    def roll_up(self, run: Publishes) -> None:
        """Take one message to a subject with wildcards that replaces all that matches them."""
        task = asyncio.get_running_loop().create_task(self._roll_up(run))
        self._rolling.add(task)
        task.add_done_callback(self._rolling.discard)

    def wait_for(self, before: asyncio.Task[None]) -> None:
        """Look at nothing closely before this is done."""
        self._before = before

    def configured(self) -> None:
        """The stream has another configuration, perhaps without batches."""
        if not self._stream.config.allow_atomic:
            self._batches.give_up()
        if not self._stream.config.allow_batched:
            self._fast_batches.give_up()

    def stop(self) -> None:
        """Throw away what waits for more messages."""
        self._batches.give_up()
        self._fast_batches.give_up()

    async def drained(self) -> None:
        """Wait until everything that was taken is in the log."""
        while self._working is not None:
            await asyncio.wait([self._working])

    # -- the plain way

    def _plain(self, run: Publishes) -> bool:
        """Whether nothing about the run or the stream needs a closer look."""
        stream = self._stream
        ruled = (
            not stream.admission.plain
            or stream.config.retention == "interest"
            or stream.topic.spec.schema is not None
        )
        asks = run.headers is not None and RESERVED in b"".join(run.headers)
        replies = b"".join(run.replies)
        # A single character is looked for much faster than a word.
        asks = asks or (b"$" in replies and SUFFIX in replies)
        return not ruled and not asks and stream.admission.ready(run.subjects)

    def _append(self, run: Publishes) -> asyncio.Future[OffsetRange]:
        future = self._stream.log.append(self._storing.log_run(run))
        future.add_done_callback(partial(self._stored, run.replies))
        return future

    def _stored(self, replies: list[bytes], future: asyncio.Future[OffsetRange]) -> None:
        """A run is durable, or failed: answer those who asked for that."""
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            first, next_ = future.result()
            ack = self._ack
            self._answers.tell(replies, [ack % seq for seq in range(first + 1, next_ + 1)])
        elif isinstance(error, PenstockError):
            self._answers.refuse(replies, error)

    # -- the careful way

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
        storing = self._storing
        try:
            await self._stream.admission.prepare(run.subjects)
            if self._plain(run):
                await storing.make_room(len(run.payloads), storing.log_run(run).measure())
                self._append(run)
                return
        except PenstockError as error:
            self._answers.refuse(run.replies, error)
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

    def _parts(self, run: Publishes) -> Iterator[tuple[_Kind, Publishes]]:
        """Neighbours of one kind."""
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
        """What is to happen with a message that was appended."""
        if asked.message_id:
            self._storing.remember({asked.message_id: offset + 1}, stored)
        if asked.ttl_ns is not None:
            self._storing.expire(offset, asked.ttl_ns, stored)
        interested = self._stream.interested
        if interested is not None and not interested(subject):
            self._storing.drop(Offset(0), [offset], subject)

    async def _checked(
        self, subject: bytes, asked: Expectations, size_bytes: int
    ) -> list[Replaced]:
        """Raises ApiError when what is expected is not so; else what the message replaces.

        On return nothing was appended by others since the first look.
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

    async def _roll_up(self, run: Publishes) -> None:
        (subject,), (block,) = run.subjects, run.headers or [b""]
        asked = expectations_of(block)
        try:
            asked.check_allowed(self._stream.config)
            rolled = await self._checked(subject, asked, len(block))
            self._append(run)
            for start, offsets, _ in rolled:
                self._storing.drop(start, offsets, None)
        except PenstockError as error:
            self._answers.refuse(run.replies, error)
