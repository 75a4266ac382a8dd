"""Publishes into a stream, and what a publish may ask for: to be stored once, or only if.

A run that asks for nothing special goes to the log as it is, in one step. Any other is taken
message by message, in order; what has to be looked up first makes those behind it wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.formats import json_rows
from penstock.model.batch import OffsetRange
from penstock.model.errors import AppendQueueFull, FormatError, NameInvalid, PenstockError
from penstock.model.run import ColumnRun, Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.topics.streams.expectations import RESERVED, Expectations, expectations_of
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.window import Window
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.parser import Publishes

Answer = Callable[[Sequence[bytes], Sequence[bytes]], None]
"""Takes replies and what to answer to each."""


class _Message(NamedTuple):
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Publisher:
    """Publishes into one stream, in the order it is told."""

    def __init__(self, stream: Stream, window: Window, answer: Answer) -> None:
        self._stream, self._window, self._answer = stream, window, answer
        self._waiting: deque[tuple[Publishes, Callable[[], None]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None
        self._rolling: set[asyncio.Task[None]] = set()
        self._ack = b'{"stream":%b,"seq":%%d}' % _quoted(stream.name).replace(b"%", b"%%")

    @property
    def stream(self) -> Stream:
        return self._stream

    def publish(self, run: Publishes, taken: Callable[[], None]) -> bool:
        """Take a run. False when it has to wait; then `taken` is called once it is in the log."""
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
                self._refuse(run.replies, error)
                return True
            else:
                return True
        self._waiting.append((run, taken))
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
        return not ruled and not asks and stream.admission.ready(run.subjects)

    def _append(self, run: Publishes) -> asyncio.Future[OffsetRange]:
        future = self._stream.log.append(self._log_run(run))
        future.add_done_callback(partial(self._stored, run.replies))
        return future

    def _log_run(self, run: Publishes) -> Run | ColumnRun:
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

    def _stored(self, replies: list[bytes], future: asyncio.Future[OffsetRange]) -> None:
        """A run is durable, or failed: answer those who asked for that."""
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if isinstance(error, PenstockError):
                self._refuse(replies, error)
            return
        if self._stream.config.no_ack:
            return
        first, next_ = future.result()
        ack = self._ack
        answers = [ack % sequence for sequence in range(first + 1, next_ + 1)]
        if b"" in replies:
            kept = [index for index, reply in enumerate(replies) if reply]
            replies, answers = [replies[i] for i in kept], [answers[i] for i in kept]
        if replies:
            self._answer(replies, answers)

    def _refuse(self, replies: Sequence[bytes], error: PenstockError) -> None:
        asked = [reply for reply in replies if reply]
        if asked and not self._stream.config.no_ack:
            self._answer(asked, [self._error(error)] * len(asked))

    def _error(self, error: PenstockError) -> bytes:
        api = error if isinstance(error, ApiError) else errors.STORE_FAILED.error(str(error))
        body = {"error": api.document(), "stream": self._stream.name, "seq": 0}
        return msgspec.json.encode(body)

    # -- the careful way

    async def _work(self) -> None:
        try:
            while self._waiting:
                run, taken = self._waiting[0]
                try:
                    await self._take(run)
                finally:
                    self._waiting.popleft()
                    taken()
        finally:
            self._working = None

    async def _take(self, run: Publishes) -> None:
        try:
            await self._stream.admission.prepare(run.subjects)
            if self._plain(run):
                await self._make_room(len(run.payloads), self._log_run(run).measure())
                self._append(run)
                return
        except PenstockError as error:
            self._refuse(run.replies, error)
            return
        blocks = run.headers or [b""] * len(run.payloads)
        for message in map(_Message, run.subjects, run.replies, blocks, run.payloads):
            try:
                await self._take_one(message)
            except PenstockError as error:
                self._refuse([message.reply], error)

    async def _take_one(self, message: _Message) -> None:
        if self._before is not None:
            await asyncio.wait([self._before])
        stream, block = self._stream, message.headers
        asked = expectations_of(block) if RESERVED in block else Expectations()
        stream.admission.check_open()
        stream.admission.check_size(len(block), len(message.payload))
        asked.check_allowed(stream.config)
        headers = None if not block else [block]
        alone = Publishes([message.subject], [message.reply], headers, [message.payload])
        rolled = await self._checked(message.subject, asked, self._log_run(alone).measure())
        if asked.message_id and (known := await self._duplicate(asked.message_id)) is not None:
            if message.reply and not stream.config.no_ack:
                duplicate = b'{"stream":%b,"seq":%d,"duplicate": true}'
                self._answer([message.reply], [duplicate % (_quoted(stream.name), known)])
            return
        last_id = self._window.last_id(stream.log.writer.next_offset(stream.partition))
        if asked.last_message_id not in (None, last_id):
            raise errors.WRONG_LAST_MESSAGE_ID.error(last_id.decode(errors="replace"))
        asked.check_rollup(stream.config)
        offset = stream.log.writer.next_offset(stream.partition)
        stored = self._append(alone)
        if asked.message_id:
            self._remember(asked.message_id, offset + 1, stored)
        if asked.ttl_ns is not None:
            stored.add_done_callback(partial(self._expires, offset, asked.ttl_ns))
        if rolled is not None:
            self._drop(*rolled, message.subject)
        if stream.interested is not None and not stream.interested(message.subject):
            self._drop(Offset(0), [offset], message.subject)

    async def _duplicate(self, message_id: bytes) -> int | None:
        """Where this id is stored already, durably."""
        while (known := self._window.find(message_id)) is not None:
            if self._stream.next_offset >= known:
                break
            await self._settled()
        return known

    def _expires(self, offset: int, ttl_ns: int, stored: asyncio.Future[OffsetRange]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._stream.expires(offset, ttl_ns)

    async def _checked(
        self, subject: bytes, asked: Expectations, size_bytes: int
    ) -> tuple[Offset, list[Offset]] | None:
        """Raises ApiError when what is expected is not so; else what the message replaces.

        On return nothing was appended by others since the first look.
        """
        stream = self._stream
        while True:
            taken = stream.log.writer.next_offset(stream.partition)
            await self._check_expected(subject, asked)
            await stream.admission.prepare([subject])
            rolled = await self._rolled_up(subject, asked)
            await self._make_room(1, size_bytes)
            if stream.log.writer.next_offset(stream.partition) == taken:
                return rolled

    def _remember(
        self, message_id: bytes, sequence: int, stored: asyncio.Future[OffsetRange]
    ) -> None:
        """Store this id once; unless it is not stored after all."""

        def look(future: asyncio.Future[OffsetRange]) -> None:
            if future.cancelled() or future.exception() is not None:
                self._window.forget(message_id)

        self._window.add(message_id, sequence)
        stored.add_done_callback(look)

    async def _check_expected(self, subject: bytes, asked: Expectations) -> None:
        stream = self._stream
        if asked.last_subject_sequence is not None:
            await self._settled()
            try:
                chosen = Filter.parse(asked.subject or subject)
            except NameInvalid:
                raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error() from None
            last = await stream.last(chosen)
            found = 0 if last is None else last + 1
            if found != asked.last_subject_sequence:
                raise errors.WRONG_LAST_SEQUENCE.error(found)
        if asked.last_sequence is not None:
            taken = stream.log.writer.next_offset(stream.partition)
            if asked.last_sequence != taken:
                raise errors.WRONG_LAST_SEQUENCE.error(taken)

    async def _roll_up(self, run: Publishes) -> None:
        (subject,), (block,) = run.subjects, run.headers or [b""]
        asked = expectations_of(block)
        try:
            asked.check_allowed(self._stream.config)
            rolled = await self._checked(subject, asked, len(block))
            self._append(run)
            if rolled is not None:
                self._stream.keeper.drop_soon(*rolled, None)
        except PenstockError as error:
            self._refuse(run.replies, error)

    async def _rolled_up(
        self, subject: bytes, asked: Expectations
    ) -> tuple[Offset, list[Offset]] | None:
        """What a message replaces: everything before an offset, or single ones."""
        if asked.rollup is None:
            return None
        if asked.rollup == b"all":
            return self._stream.log.writer.next_offset(self._stream.partition), []
        await self._settled()
        found = await self._stream.matching(Filter.parse(subject), 0, 1 << 31)
        return Offset(0), found

    def _drop(self, start: Offset, offsets: Sequence[int], subject: bytes) -> None:
        self._stream.keeper.drop_soon(start, offsets, subject)

    async def _make_room(self, messages: int, size_bytes: int) -> None:
        """Wait until the log would take so much."""
        await self._stream.opened.reserve(self._stream.partition, messages)
        await self._stream.log.room(size_bytes)

    async def _settled(self) -> None:
        """Wait until all that was taken, by whatever door, can be found by subject."""
        stream = self._stream
        taken = stream.log.writer.next_offset(stream.partition)
        while stream.next_offset < taken:
            with stream.arrival() as arrival:
                if stream.next_offset < taken <= stream.log.writer.next_offset(stream.partition):
                    await arrival
                else:
                    break


def _quoted(name: str) -> bytes:
    return msgspec.json.encode(name)
