"""A stream that copies another: the same sequences, times and holes, a moment later.

What is deleted there later stays here, as it does with other brokers of this protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from penstock.host.clock import Clock
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import PenstockError
from penstock.model.run import Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream.stream_config import StreamSource
from penstock.wire.jetstream.times import parse_time

COPIED_AT_ONCE: Final = 10_000
RETRY_SECONDS: Final = 0.25
"""How often an origin that is not there, or fails, is looked for."""

_events = structlog.get_logger(__name__)


class Mirror:
    """Copies into one stream, which takes no other publishes."""

    def __init__(
        self,
        stream: Stream,
        source: StreamSource,
        origin_of: Callable[[str], Stream | None],
        clock: Clock,
    ) -> None:
        self._stream, self.source = stream, source
        self._origin_of, self._clock = origin_of, clock
        subject = source.filter_subject.encode()
        self._filter = Filter.parse(subject) if subject else None
        self._active_us: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._position: int | None = None
        """Of the origin, the offset up to which it was looked at; None before the first look."""

    @property
    def origin(self) -> Stream | None:
        return self._origin_of(self.source.name)

    @property
    def lag(self) -> int:
        """How many messages are not copied yet."""
        origin = self.origin
        if origin is None:
            return 0
        return max(0, origin.next_offset - (self._position or 0))

    @property
    def active_ns(self) -> int:
        """How long ago it last heard of the origin; -1 is never."""
        if self._active_us is None:
            return -1
        return (self._clock.now_us() - self._active_us) * 1000

    @property
    def complete(self) -> bool:
        """Whether all that is in the origin now is here too, so that it may answer for it."""
        whole = self._filter is None and not self.source.opt_start_seq
        return whole and not self.source.opt_start_time and self.lag == 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            origin = self.origin
            try:
                if origin is not None:
                    await self._follow(origin)
            except PenstockError as error:
                _events.warning("mirror_failed", stream=self._stream.name, reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self, origin: Stream) -> None:
        if self._position is None:
            self._position = max(self._stream.next_offset, await self._first(origin))
        while self.origin is origin:
            with origin.arrival() as arrival:
                rows = await origin.read(self._position, COPIED_AT_ONCE)
                self._active_us = self._clock.now_us()
                if isinstance(rows, AtHead):
                    await asyncio.wait([arrival], timeout=RETRY_SECONDS)
                    continue
            if isinstance(rows, Gone):
                self._position = max(rows.earliest, self._position + 1)
                continue
            await self._copy(rows)
            self._position = rows.offsets[-1] + 1

    async def _first(self, origin: Stream) -> int:
        if self.source.opt_start_time:
            return await origin.offset_at(parse_time(self.source.opt_start_time) // 1000)
        return max(self.source.opt_start_seq - 1, 0)

    async def _copy(self, rows: Rows) -> None:
        if self._filter is not None:
            wanted = [self._filter.matches(subject) for subject in rows.subjects]
            rows = rows.take([place for place, chosen in enumerate(wanted) if chosen])
        start = 0
        while start < rows.count:
            stop = _run_end(rows.offsets, start)
            await self._append(rows.part(start, stop))
            start = stop

    async def _append(self, rows: Rows) -> None:
        """Neighbours without a hole between them."""
        stream = self._stream
        hole = rows.offsets[0] - stream.next_offset
        await stream.opened.reserve(stream.partition, hole + rows.count)
        if hole > 0:
            await stream.log.skip(stream.partition, Offset(rows.offsets[0]), "mirror")
        run = Run(rows.subjects, rows.payloads, rows.headers, stream.partition, rows.timestamps)
        await stream.log.room(run.measure())
        with stream.admission.copying():
            stored = stream.log.append(run)
        await stored


def _run_end(offsets: Sequence[int], start: int) -> int:
    """Where the offsets from `start` on have their first hole."""
    if isinstance(offsets, range):
        return len(offsets)
    stop = start + 1
    while stop < len(offsets) and offsets[stop] == offsets[stop - 1] + 1:
        stop += 1
    return stop
