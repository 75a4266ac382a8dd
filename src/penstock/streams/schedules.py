"""Scheduled messages: which schedules a stream has, and what they store when they are due.

A schedule is a message of the stream, so it is as durable as the stream. `Schedules` reads the
stream from its start, over any protocol its messages were published, and finds the schedules there;
the messages that they produced show which times have fired:

    schedule on s.a ──► due ──► produced: Nats-Scheduler: s.a, Nats-Schedule-Next: the next time
                         ▲                                              │         or `purge`
                         └──────────────────────────────────────────────┘

A produced message and the end of a completed schedule are appended together. If a crash leaves only
the first, the next start finds it and ends the schedule, which does not fire again. A missed time
is made up for once; if the produced message is already deleted, a schedule continues after the last
timestamp of the log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import pyarrow.compute as pc
import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import DataDamaged, PenstockError
from penstock.model.times import parse_time
from penstock.model.units import Offset
from penstock.streams.appender import Appender
from penstock.streams.publish_fields import SCHEDULE_PREFIX
from penstock.streams.schedule_firing import ProducedMessage, ScheduleFiring
from penstock.streams.schedule_rules import NEXT, SCHEDULER, ended_by, schedule_of
from penstock.streams.schedule_table import ScheduledFiring, ScheduleTable
from penstock.streams.stream import Stream
from penstock.streams.stream_reader import READ_BYTES
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError

DUE_AT_ONCE: Final = 1000
"""Schedules whose messages are produced together."""
LOOK_SECONDS: Final = 1.0
"""Interval of checks while a schedule is pending, because the time of day may jump."""
RETRY_SECONDS: Final = 1.0

_events = structlog.get_logger(__name__)


class Schedules:
    """Fires the schedules of one stream, in one task."""

    def __init__(self, stream: Stream, appender: Appender, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._firing = ScheduleFiring(stream, appender)
        self._table = ScheduleTable()
        self._position = 0
        """All messages before this offset were examined."""
        self._done_us = 0
        """Schedules due up to this time have fired, unless the stream shows otherwise."""
        self._ended: list[int] = []
        """Ended schedules whose messages may still exist."""
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, if the stream allows schedules."""
        if self._task is None and self._stream.config.allow_msg_schedules:
            self._done_us = self._stream.opened.last_timestamp
            self._task = self._tasks.start(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            with self._stream.arrival() as arrival:
                try:
                    await self._catch_up()
                    await self._end_leftovers()
                    if await self._fire():
                        continue
                    wait = self._until_next_seconds()
                except PenstockError as error:
                    name = self._stream.name
                    _events.warning("schedules_failed", stream=name, reason=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await asyncio.wait([arrival], timeout=wait)

    def _until_next_seconds(self) -> float | None:
        """Time until something must be done; None if nothing will before a message is stored."""
        next_us = self._table.next_us()
        if next_us is None:
            return None
        return min(max(next_us - self._clock.now_us(), 1000) / 1e6, LOOK_SECONDS)

    # -- following the stream

    async def _catch_up(self) -> None:
        """Examine all messages that are not examined yet."""
        stream = self._stream
        while True:
            try:
                index = Offset(self._position)
                answer = await stream.scan.read(index, READ_BYTES)
            except DataDamaged as damage:
                stream.log_skipped(damage)
                self._position = max(damage.next, self._position + 1)
                continue
            if isinstance(answer, AtHead):
                return
            if isinstance(answer, Gone):
                self._position = answer.earliest
                continue
            for batch in answer:
                self._note(batch)
            self._position = answer[-1].next_offset

    def _note(self, batch: Batch) -> None:
        content = batch.content
        if not isinstance(content, Columns) or content.headers is None:
            return
        matches = pc.match_substring(content.headers, SCHEDULE_PREFIX.decode())
        indexes = pc.indices_nonzero(matches).to_pylist()
        if not indexes:
            return
        offsets, times = batch.offsets(), batch.timestamp_column()
        own = content.subject
        for index in indexes:
            subject = own if isinstance(own, bytes) else own[index].as_py()
            offset, block = int(offsets[index]), content.headers[index].as_py()
            self._note_one(subject, offset, block, times[index].as_py())

    def _note_one(self, subject: bytes, offset: int, block: bytes, stored_us: int) -> None:
        known = self._table.get(subject)
        if known is None or known.offset < offset:
            with suppress(ApiError, ValueError):
                schedule = schedule_of(block)
                if schedule is not None:
                    due_us = schedule.times.first(stored_us, self._done_us)
                    self._table.put(ScheduledFiring(due_us, offset, subject))
        fired = self._table.get(headers.get(block, SCHEDULER) or b"")
        if fired is not None and fired.offset < offset:
            self._note_fired(fired, block)

    def _note_fired(self, fired: ScheduledFiring, block: bytes) -> None:
        """Record that a schedule has produced this message, or that a client has ended it."""
        if ended_by(block):
            self._table.forget(fired)
            self._ended.append(fired.offset)
            return
        try:
            next_us = parse_time((headers.get(block, NEXT) or b"").decode("latin-1")) // 1000
        except ValueError:
            return
        if next_us > fired.us:
            self._table.put(fired._replace(us=next_us))

    async def _end_leftovers(self) -> None:
        """Delete ended schedules that a crash left in the stream."""
        ended = sorted(self._stream.counts.alive(self._ended))
        if ended:
            await self._stream.delete(ended, "schedule")
        self._ended.clear()

    # -- firing

    async def _fire(self) -> bool:
        """Store what is due; returns whether more may be."""
        now_us, table = self._clock.now_us(), self._table
        due = table.due(now_us, DUE_AT_ONCE)
        if not due:
            return self._look_beyond(now_us)
        try:
            async for messages in self._firing.fire(due, now_us):
                self._note_stored(messages)
        except PenstockError:
            for firing in due:
                if table.get(firing.subject) == firing:
                    table.put(firing)
            raise
        for firing in due:
            table.forget(firing)
        return True

    def _note_stored(self, messages: list[ProducedMessage]) -> None:
        """Continue or end the schedules whose messages are durable."""
        for firing, next_, *_ in messages:
            if self._table.get(firing.subject) == firing:
                self._table.forget(firing)
                if next_ is not None:
                    self._table.put(firing._replace(us=next_.us))

    def _look_beyond(self, now_us: int) -> bool:
        """Look up the forgotten schedules when the first of them may be due."""
        beyond_us = self._table.beyond_us
        if beyond_us is None or beyond_us > now_us:
            return False
        self._table.beyond_us = None
        self._position, self._done_us = 0, beyond_us - 1
        # Schedules that fired since then are deleted, and must not be found again.
        self._stream.scan.forget()
        return True
