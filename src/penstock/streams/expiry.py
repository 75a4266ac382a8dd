"""Deletes expired messages: those older than the stream's age limit, and those whose TTL has
passed.

If the stream is configured so, a subject whose last message expired gets a delete marker.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.log import LogObserver
from penstock.model.errors import DataDamaged, PenstockError
from penstock.model.run import Origin, Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId
from penstock.streams.message_ttls import MessageTtls
from penstock.streams.rows import Rows
from penstock.streams.stream import Stream
from penstock.wire import headers

DUE_MAX: Final = 10_000
"""Messages with a passed TTL that are deleted together."""
RETRY_SECONDS: Final = 1.0
NANOSECONDS: Final = 1000
"""Nanoseconds per microsecond."""

_events = structlog.get_logger(__name__)


class Expiry(LogObserver):
    """Deletes expired messages of one stream."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._ttls = MessageTtls(stream)
        self._changed = asyncio.Event()
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None
        self._cancelled: asyncio.Task[None] | None = None
        """The task that `stop` cancelled and that may still be running."""
        self._observing = False
        self._save_after_ns = 0
        self._oldest: tuple[int, int] | None = None
        """Offset and timestamp of the first message."""

    def start(self) -> None:
        """Start, if messages of the stream can expire."""
        config = self._stream.config
        if self._task is None and (config.max_age > 0 or config.allow_msg_ttl):
            self._task = self._tasks.start(self._run())
            self._clock.jumps.watch(self._changed.set)
        if config.allow_msg_ttl:
            self._observe()
        self._changed.set()

    def stop(self) -> None:
        self._clock.jumps.unwatch(self._changed.set)
        if self._task is not None:
            self._task.cancel()
            self._cancelled, self._task = self._task, None

    def _observe(self) -> None:
        """Observe the log until it is closed."""
        if not self._observing:
            self._observing = True
            self._stream.opened.observe(self)
            self._stream.opened.side_files.before_close(self._close)

    def restored(self, partition: PartitionId, first_offset: Offset) -> None:
        self._ttls.note_restored(partition, first_offset)
        self._changed.set()

    async def _close(self) -> None:
        """Write the last checkpoint."""
        self.stop()
        if self._cancelled is not None:
            await asyncio.wait([self._cancelled])
        try:
            await self._ttls.close()
        except (PenstockError, OSError) as error:
            _events.warning("expiry_not_saved", stream=self._stream.name, reason=str(error))

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            with self._stream.arrival() as arrival:
                waits: list[asyncio.Future[None]] = []
                try:
                    if await self._step():
                        await asyncio.sleep(0)
                        continue
                    wait_us = await self._until_next_us()
                    if wait_us is None or self._stream.config.allow_msg_ttl:
                        waits.append(arrival)
                except (PenstockError, OSError) as error:
                    _events.warning("expiry_failed", stream=self._stream.name, reason=str(error))
                    wait_us = int(RETRY_SECONDS * 1e6)
                await self._wait(wait_us, waits)

    async def _wait(self, wait_us: int | None, futures: list[asyncio.Future[None]]) -> None:
        """Wait for a time, a change of configuration or clock, or one of the futures."""
        changed = self._tasks.start(self._changed.wait())
        waits: set[asyncio.Future[Any]] = {changed, *futures}
        seconds = None if wait_us is None else max(wait_us, 1000) / 1e6
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _step(self) -> bool:
        """Do a bounded amount of work; returns whether there may be more."""
        config, more = self._stream.config, False
        if config.allow_msg_ttl:
            more = await self._ttls.advance()
            await self._save()
            more |= await self._expire_ttls()
        if config.max_age:
            await self._expire_by_age(config.max_age // NANOSECONDS)
        return more

    async def _save(self) -> None:
        """Write a checkpoint if one is due; a disk error does not stop expiry."""
        if self._clock.monotonic_ns() < self._save_after_ns:
            return
        try:
            await self._ttls.checkpoint_if_needed()
        except OSError as error:
            _events.warning("expiry_not_saved", stream=self._stream.name, reason=str(error))
            self._save_after_ns = self._clock.monotonic_ns() + int(RETRY_SECONDS * 1e9)

    async def _expire_ttls(self) -> bool:
        """Delete messages whose TTL has passed; returns whether there may be more."""
        due = await self._ttls.take_due(self._clock.now_us(), DUE_MAX)
        try:
            if len(due):
                await self._delete(sorted(due.offsets.tolist()))
        except BaseException:
            self._ttls.add(due)
            raise
        return len(due) > 0

    async def _delete(self, offsets: list[int]) -> None:
        stream = self._stream
        if not stream.config.subject_delete_marker_ttl:
            await stream.delete(offsets, "ttl")
            return
        rows = await stream.read_intact(offsets)
        await stream.delete(offsets, "ttl")
        await self._mark(_subjects_to_mark(rows))

    async def _expire_by_age(self, max_age_us: int) -> None:
        """Delete messages that are older than the stream allows."""
        stream, now = self._stream, self._clock.now_us()
        with suppress(DataDamaged):
            oldest_us = await self._oldest_us()
            if oldest_us is None or oldest_us + max_age_us > now:
                return
        if before := await stream.offset_at(now - max_age_us):
            subjects = await self._subjects_before(before)
            await stream.purge(before, "age")
            await self._mark(subjects)

    async def _oldest_us(self) -> int | None:
        """When the first message was stored; None if there is none."""
        first = self._stream.first_offset
        if self._oldest is None or self._oldest[0] != first:
            rows = await self._stream.read(first, 1)
            if not isinstance(rows, Rows):
                return None
            # If the message was deleted during the read, the result is not the first one.
            self._oldest = rows.offsets[0], rows.timestamps[0]
        return self._oldest[1]

    async def _subjects_before(self, before: int) -> set[bytes]:
        """The subjects of messages that expire together, if they need delete markers."""
        found: set[bytes] = set()
        if self._stream.config.subject_delete_marker_ttl:
            async for rows in self._stream.rows_from(0, DUE_MAX):
                stop = bisect_left(rows.offsets, before)
                found |= _subjects_to_mark(rows.part(0, stop))
                if stop < rows.count:
                    break
        return found

    async def _mark(self, subjects: Iterable[bytes]) -> None:
        """Store a delete marker for each of these subjects that has no message any more."""
        ttl_ns = self._stream.config.subject_delete_marker_ttl
        if not ttl_ns:
            return
        seconds = ttl_ns // 1_000_000_000
        fields = [
            (b"Nats-Marker-Reason", b"MaxAge"),
            (b"Nats-TTL", b"%ds" % seconds),
            (b"Nats-Rollup", b"sub"),
        ]
        block = headers.with_fields(b"", fields)
        for subject in sorted(subjects):
            if await self._stream.last(Filter.exactly(subject)) is None:
                run = Run(subject, [b""], [block], self._stream.partition.id)
                await self._stream.partition.publish(run, origin=Origin.BROKER)

    async def _until_next_us(self) -> int | None:
        """Time until the next message expires; None if none will before a publish."""
        times: list[int] = []
        if self._ttls.next_us is not None:
            times.append(self._ttls.next_us)
        max_age_us = self._stream.config.max_age // NANOSECONDS
        if max_age_us and (oldest_us := await self._oldest_us()) is not None:
            times.append(oldest_us + max_age_us)
        if self._ttls.full:
            times.append(self._clock.now_us() + int(RETRY_SECONDS * 1e6))
        return min(times) - self._clock.now_us() if times else None


def _subjects_to_mark(rows: Rows) -> set[bytes]:
    """The subjects that need a marker when these messages are deleted; markers leave none."""
    blocks = rows.headers or [b""] * rows.count
    pairs = zip(rows.subjects, blocks, strict=True)
    return {subject for subject, block in pairs if b"Nats-Marker-Reason" not in block}
