"""Publishes into a stream.

A run whose messages need no checks is appended as it is, in one step. All others are checked by a
task in the order of their arrival: single messages, atomic batches and fast batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from itertools import groupby

from penstock.host.tasks import Tasks
from penstock.model.errors import AppendQueueFull, PenstockError, RunInvalid
from penstock.model.units import OffsetRange
from penstock.streams.answers import Answer, Answers
from penstock.streams.appender import Appender
from penstock.streams.batches import BATCH_ID, Batches
from penstock.streams.checks import MessageChecks
from penstock.streams.fast_batches import FastBatches
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.open_batches import OpenBatches
from penstock.streams.publish_fields import RESERVED_PREFIX
from penstock.streams.single_publishes import SinglePublishes
from penstock.streams.stage import Stage
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream.fast_batches import SUFFIX
from penstock.wire.parser import Publishes


class _Kind(Enum):
    """How a message that needs checks is processed."""

    SINGLE = auto()
    IN_BATCH = auto()
    IN_FAST_BATCH = auto()


def _divisible(run: Publishes, error: PenstockError) -> bool:
    """Whether the error may concern one message of several, which alone is to be refused."""
    return isinstance(error, RunInvalid) and len(run.payloads) > 1


def _each(run: Publishes) -> Iterator[Publishes]:
    """Each message as a run of its own."""
    for index, (subject, reply, payload) in enumerate(
        zip(run.subjects, run.replies, run.payloads, strict=True)
    ):
        blocks = None if run.headers is None else [run.headers[index]]
        yield Publishes([subject], [reply], blocks, [payload])


class Publisher:
    """Publishes into one stream, in the order of the calls."""

    def __init__(
        self, stream: Stream, window: DuplicateWindow, answer: Answer, open_batches: OpenBatches
    ) -> None:
        self._stream = stream
        appender = self._appender = Appender(stream, window)
        answers = self._answers = Answers(stream, answer)
        checks = MessageChecks(stream, appender)
        self._single = SinglePublishes(checks, appender, answers)
        self._batches = Batches(stream, checks, appender, answers, open_batches)
        self._fast_batches = FastBatches(stream, checks, appender, answers, open_batches)
        self._queue: deque[tuple[Publishes, int, Callable[[], None]]] = deque()
        self._tasks = Tasks()
        self._working: asyncio.Task[None] | None = None
        self._restoring: asyncio.Task[None] | None = None

    @property
    def stream(self) -> Stream:
        return self._stream

    def publish(self, run: Publishes, on_done: Callable[[], None], owner: int = 0) -> bool:
        """Publish a run. Returns False if it must wait; then `on_done` is called once it was
        appended or refused.

        `owner` is the number of the connection that sent it.
        """
        stream = self._stream
        if stream.mapping is not None:
            map_ = stream.mapping.map
            run = run._replace(subjects=[map_(subject) or subject for subject in run.subjects])
        at_once = stream.partition.takes_at_once(len(run.payloads))
        if not self._queue and at_once and self._is_plain(run):
            try:
                stored = stream.partition.append(
                    self._appender.log_run(run.subjects, run.headers, run.payloads)
                )
            except AppendQueueFull:
                pass
            except PenstockError as error:
                if not _divisible(run, error):
                    self._answers.refuse(run.replies, error)
                    return True
            else:
                self._answer(run, stored)
                return True
        self._queue.append((run, owner, on_done))
        if self._working is None:
            self._working = self._tasks.start(self._work())
        return False

    def check_after(self, restoring: asyncio.Task[None]) -> None:
        """Check no message before this task is done, which restores what checks depend on."""
        self._restoring = restoring

    def apply_config(self) -> None:
        """Apply another configuration of the stream, perhaps one without batches."""
        if not self._stream.config.allow_atomic:
            self._batches.discard_all()
        if not self._stream.config.allow_batched:
            self._fast_batches.discard_all()

    def stop(self) -> None:
        """Discard batches that wait for more messages."""
        self._batches.discard_all()
        self._fast_batches.discard_all()

    async def drained(self) -> None:
        """Wait until every run so far is appended or refused."""
        while self._working is not None:
            await asyncio.wait([self._working])

    # -- runs without checks

    def _is_plain(self, run: Publishes) -> bool:
        """Whether neither the run nor the stream requires checks."""
        stream = self._stream
        ruled = (
            not stream.admission.plain
            or stream.config.retention == "interest"
            or stream.topic.spec.schema is not None
        )
        special = run.headers is not None and RESERVED_PREFIX in b"".join(run.headers)
        replies = b"".join(run.replies)
        # Searching for a single character is much faster than for a word.
        special = special or (b"$" in replies and SUFFIX in replies)
        return not ruled and not special and stream.admission.ready(run.subjects)

    def _answer(self, run: Publishes, stored: asyncio.Future[OffsetRange]) -> None:
        """Answer the publishers of a run when it is durable, or has failed."""
        self._answers.when_durable(
            stored,
            lambda offsets: self._answers.stored(run.replies, offsets.first),
            partial(self._answers.refuse, run.replies),
        )

    # -- runs in the queue

    async def _work(self) -> None:
        try:
            while self._queue:
                run, owner, on_done = self._queue[0]
                try:
                    await self._process(run, owner)
                finally:
                    self._queue.popleft()
                    on_done()
        finally:
            self._working = None

    async def _process(self, run: Publishes, owner: int) -> None:
        try:
            if await self._append_if_plain(run):
                return
        except PenstockError as error:
            if not _divisible(run, error):
                self._answers.refuse(run.replies, error)
                return
            for message in _each(run):
                await self._process(message, owner)
            return
        if self._restoring is not None:
            await asyncio.wait([self._restoring])
        for kind, part in self._parts(run):
            if kind is _Kind.IN_BATCH:
                await self._batches.publish(part, owner)
            elif kind is _Kind.IN_FAST_BATCH:
                await self._fast_batches.publish(part)
            else:
                await self._single.publish(part)

    async def _append_if_plain(self, run: Publishes) -> bool:
        """Append the run unless it needs checks; raises what `Appender.append` raises."""
        await self._stream.admission.prepare(run.subjects)
        if not self._is_plain(run):
            return False

        async def stage() -> Stage:
            return Stage(None, run.subjects, run.headers, run.payloads)

        stored = await self._appender.append(stage)
        if stored is not None:
            self._answer(run, stored)
        return True

    def _parts(self, run: Publishes) -> Iterator[tuple[_Kind, Publishes]]:
        """Neighbouring messages of one kind."""
        blocks = run.headers or [b""] * len(run.payloads)
        kinds = list(map(self._kind, run.replies, blocks))
        start = 0
        for kind, neighbours in groupby(kinds):
            part = slice(start, start + len(list(neighbours)))
            start = part.stop
            yield (
                kind,
                Publishes(run.subjects[part], run.replies[part], blocks[part], run.payloads[part]),
            )

    def _kind(self, reply: bytes, block: bytes) -> _Kind:
        if reply.endswith(SUFFIX):
            return _Kind.IN_FAST_BATCH
        if BATCH_ID in block and headers.get(block, BATCH_ID):
            return _Kind.IN_BATCH
        return _Kind.SINGLE
