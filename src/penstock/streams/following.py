"""Copies streams: a follower reads an origin, and a mirror stores all that it reads.

Mirrors and sources follow their origins. The follower retries while an origin does not exist. A
mirror has the sequences, timestamps and gaps of its origin. Messages that the origin deletes later
stay in the mirror, as NATS specifies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import LogError, PenstockError
from penstock.model.run import Origin, Run
from penstock.model.subjects import Filter
from penstock.model.times import parse_time
from penstock.streams.rows import Rows
from penstock.streams.stream import Stream
from penstock.wire.jetstream.stream_config import StreamSource

COPIED_AT_ONCE: Final = 10_000
RETRY_SECONDS: Final = 0.25
"""Time between attempts to find an origin that does not exist."""
RETRY_SECONDS_MAX: Final = 2.0
"""Limit of the doubling delay while messages cannot be stored."""

OriginOf = Callable[[str], Stream | None]

_events = structlog.get_logger(__name__)


class Follower:
    """Reads an origin from a start on, and hands its messages to `store` in batches, in order.

    `begin` returns the offset to start from. It is called again for another stream of the same
    name, and after an error. `store` stores a batch, or raises PenstockError.
    """

    def __init__(
        self,
        copied_by: str,
        origin_name: str,
        origin_of: OriginOf,
        clock: Clock,
        begin: Callable[[Stream], Awaitable[int]],
        store: Callable[[Stream, Rows], Awaitable[None]],
    ) -> None:
        self._copied_by, self._origin_name, self._origin_of = copied_by, origin_name, origin_of
        self._clock, self._begin, self._store = clock, begin, store
        self.position: int | None = None
        """The next origin offset to read; None until the start is known."""
        self._active_us: int | None = None
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None
        self._reason = ""
        self._delay = RETRY_SECONDS

    @property
    def origin(self) -> Stream | None:
        return self._origin_of(self._origin_name)

    @property
    def active_ns(self) -> int:
        """Nanoseconds since the origin was last read; -1 if it never was."""
        if self._active_us is None:
            return -1
        return (self._clock.now_us() - self._active_us) * 1000

    def start(self) -> None:
        self._task = self._tasks.start(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            origin = self.origin
            try:
                if origin is not None:
                    await self._follow(origin)
                self._delay = RETRY_SECONDS
            except PenstockError as error:
                self._failed(str(error))
            await asyncio.sleep(self._delay)

    async def _follow(self, origin: Stream) -> None:
        self.position = await self._begin(origin)
        while self.origin is origin:
            with origin.arrival() as arrival:
                # While nothing can be stored, one message is enough to find out when it can.
                rows = await origin.read(self.position, 1 if self._reason else COPIED_AT_ONCE)
                self._active_us = self._clock.now_us()
                if isinstance(rows, AtHead):
                    await asyncio.wait([arrival], timeout=RETRY_SECONDS)
                    continue
            if isinstance(rows, Gone):
                self.position = max(rows.earliest, self.position + 1)
                continue
            await self._store(origin, rows)
            self.position = rows.offsets[-1] + 1
            self._reason = ""

    def _failed(self, reason: str) -> None:
        """Log an error once, and double the delay when it repeats."""
        if reason == self._reason:
            self._delay = min(self._delay * 2, RETRY_SECONDS_MAX)
            return
        self._reason, self._delay = reason, RETRY_SECONDS
        _events.warning(
            "copy_failed", stream=self._copied_by, origin=self._origin_name, reason=reason
        )


GAP_OFFSETS_MAX: Final = 1 << 32
"""Limit of the sequences without a message between two messages of a mirror, which the log records
one by one in a bitmap. There is no limit before the first message.
"""


class Mirror:
    """Copies an origin into one stream, which accepts no other publishes."""

    def __init__(
        self, stream: Stream, source: StreamSource, origin_of: OriginOf, clock: Clock
    ) -> None:
        self._stream, self.source = stream, source
        subject = source.filter_subject.encode()
        self._filter = Filter.parse(subject) if subject else None
        self._follower = Follower(
            stream.name, source.name, origin_of, clock, self._begin, self._copy
        )
        self.start, self.stop = self._follower.start, self._follower.stop

    @property
    def origin(self) -> Stream | None:
        return self._follower.origin

    @property
    def lag(self) -> int:
        """Number of messages that are not copied yet."""
        origin = self.origin
        if origin is None:
            return 0
        return max(0, origin.next_offset - (self._follower.position or 0))

    @property
    def active_ns(self) -> int:
        """Nanoseconds since the origin was last read; -1 if it never was."""
        return self._follower.active_ns

    @property
    def complete(self) -> bool:
        """Whether all messages of the origin are copied: the mirror may answer direct gets."""
        whole = self._filter is None and not self.source.opt_start_seq
        return whole and not self.source.opt_start_time and self.lag == 0

    async def _begin(self, origin: Stream) -> int:
        start = self._follower.position
        if start is None:
            start = await start_offset(self.source, origin)
        return max(self._stream.next_offset, start)

    async def _copy(self, origin: Stream, rows: Rows) -> None:
        if self._filter is not None:
            matches = self._filter.matches
            subjects = enumerate(rows.subjects)
            rows = rows.take([index for index, subject in subjects if matches(subject)])
        start = 0
        while start < rows.count:
            stop = _run_end(rows.offsets, start)
            await self._append(rows.part(start, stop))
            start = stop

    async def _append(self, rows: Rows) -> None:
        """Append messages without gaps between them."""
        stream = self._stream
        gap = rows.offsets[0] - stream.next_offset
        await stream.partition.reserve(gap + rows.count)
        if gap > GAP_OFFSETS_MAX and stream.messages:
            raise LogError(
                str(stream.topic.name),
                f"cannot record a hole of {gap} sequences between its messages; "
                f"at most {GAP_OFFSETS_MAX}",
            )
        if gap > 0:
            await stream.partition.skip(rows.offsets[0], "mirror")
        run = Run(rows.subjects, rows.payloads, rows.headers, stream.partition.id, rows.timestamps)
        await stream.partition.make_room(rows.count, run.measure(), patient=True)
        await stream.partition.append(run, Origin.MIRROR)


async def start_offset(source: StreamSource, origin: Stream) -> int:
    """The offset at which a source's configuration says that copying begins."""
    if source.opt_start_seq or not source.opt_start_time:
        return max(source.opt_start_seq - 1, 0)
    return await origin.offset_at(parse_time(source.opt_start_time) // 1000)


def _run_end(offsets: Sequence[int], start: int) -> int:
    """The index after the first contiguous run of offsets from `start` on."""
    if isinstance(offsets, range):
        return len(offsets)
    stop = start + 1
    while stop < len(offsets) and offsets[stop] == offsets[stop - 1] + 1:
        stop += 1
    return stop
