"""Messages that go when their time has come: by the stream's age limit, or by their own.

Where the stream wants it, a subject whose last message expired gets a marker that tells so.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Final

import structlog

from penstock.host.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.run import Run
from penstock.model.subjects import Filter
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.times import parse_ttl

DUE_MAX: Final = 10_000
"""Messages that are taken together when they expire."""
RETRY_SECONDS: Final = 1.0
NANOSECONDS: Final = 1000
"""In a microsecond."""

_events = structlog.get_logger(__name__)


class Expiry:
    """Watches the ages of one stream's messages."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._own: list[tuple[int, int]] = []
        """When a message ends that said so, and its offset: a heap."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        stream.expires = self.note

    def start(self) -> None:
        """Watch from now on, if there is anything to watch for."""
        config = self._stream.config
        if self._task is None and (config.max_age > 0 or config.allow_msg_ttl):
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._changed.set()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def note(self, offset: int, ttl_ns: int) -> None:
        """A message was published that lives for so long."""
        heappush(self._own, (self._clock.now_us() + ttl_ns // NANOSECONDS, offset))
        self._changed.set()

    async def _run(self) -> None:
        recalled = not self._stream.config.allow_msg_ttl
        while True:
            self._changed.clear()
            try:
                if not recalled:
                    await self._recall()
                    recalled = True
                await self._expire()
                wait_us = await self._until_next_us()
            except PenstockError as error:
                _events.warning("expiry_failed", stream=self._stream.name, reason=str(error))
                wait_us = int(RETRY_SECONDS * 1e6)
            with_timeout = None if wait_us is None else max(wait_us, 1000) / 1e6
            await self._pause(with_timeout)

    async def _pause(self, seconds: float | None) -> None:
        """Until then, or until something is published that may end sooner."""
        with self._stream.arrival() as arrival:
            changed = asyncio.ensure_future(self._changed.wait())
            waits: set[asyncio.Future[Any]] = {changed} if seconds else {changed, arrival}
            try:
                await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()

    async def _recall(self) -> None:
        """Find the messages with a time of their own that are there already."""
        found: list[tuple[int, int]] = []
        async for rows in self._stream.rows_from(0, DUE_MAX):
            for place, block in enumerate(rows.headers or ()):
                if ttl_ns := _ttl_ns(block):
                    ends_us = rows.timestamps[place] + ttl_ns // NANOSECONDS
                    found.append((ends_us, rows.offsets[place]))
        self._own += found
        heapify(self._own)

    async def _expire(self) -> None:
        now, stream = self._clock.now_us(), self._stream
        due: list[tuple[int, int]] = []
        while self._own and self._own[0][0] <= now and len(due) < DUE_MAX:
            due.append(heappop(self._own))
        try:
            await self._expire_own(sorted(offset for _, offset in due))
        except PenstockError:
            self._own += due
            heapify(self._own)
            raise
        max_age_us = stream.config.max_age // NANOSECONDS
        if max_age_us and (before := await stream.offset_at(now - max_age_us)):
            subjects = await self._subjects_before(before)
            await stream.purge(before, "age")
            await self._mark(subjects)

    async def _expire_own(self, due: list[int]) -> None:
        rows = await self._stream.read_offsets(due)
        if rows.count:
            await self._stream.delete(rows.offsets, "ttl")
            await self._mark(_marked(rows))

    async def _subjects_before(self, before: int) -> set[bytes]:
        """Of messages that expire together; only of interest where they leave markers."""
        found: set[bytes] = set()
        if self._stream.config.subject_delete_marker_ttl:
            async for rows in self._stream.rows_from(0, DUE_MAX):
                stop = bisect_left(rows.offsets, before)
                found |= _marked(rows.part(0, stop))
                if stop < rows.count:
                    break
        return found

    async def _mark(self, subjects: Iterable[bytes]) -> None:
        """Leave a marker for each of these subjects that has no message any more."""
        lives_ns = self._stream.config.subject_delete_marker_ttl
        if not lives_ns:
            return
        seconds = lives_ns // 1_000_000_000
        fields = [
            (b"Nats-Marker-Reason", b"MaxAge"),
            (b"Nats-TTL", b"%ds" % seconds),
            (b"Nats-Rollup", b"sub"),
        ]
        block = headers.with_fields(b"", fields)
        for subject in sorted(subjects):
            if await self._stream.last(Filter.parse(subject)) is None:
                run = Run(subject, [b""], [block], self._stream.partition)
                given = await self._stream.log.publish(run)
                self.note(given.first, lives_ns)

    async def _until_next_us(self) -> int | None:
        """How long nothing has to be done; None is until something is published."""
        ends: list[int] = [self._own[0][0]] if self._own else []
        if self._stream.config.max_age:
            rows = await self._stream.read(self._stream.first_offset, 1)
            if isinstance(rows, Rows):
                ends.append(rows.timestamps[0] + self._stream.config.max_age // NANOSECONDS)
        return min(ends) - self._clock.now_us() if ends else None


def _marked(rows: Rows) -> set[bytes]:
    """Subjects that get a marker when these are gone: what was a marker leaves none."""
    blocks = rows.headers or [b""] * rows.count
    pairs = zip(rows.subjects, blocks, strict=True)
    return {subject for subject, block in pairs if b"Nats-Marker-Reason" not in block}


def _ttl_ns(block: bytes) -> int:
    """How long a message lives; 0 is for ever, or not to be read."""
    told = headers.get(block, b"Nats-TTL") if b"Nats-TTL" in block else None
    try:
        return max(parse_ttl(told), 0) if told else 0
    except ApiError:
        return 0
