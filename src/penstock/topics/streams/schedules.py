"""Schedules at work: messages that have others stored when their time has come.

A schedule is a message of the stream, so it is as durable as that. Whoever works here reads the
stream from its start on, by whatever door messages came, and knows from it which schedules there
are; what they produced tells how far they have come:

    schedule on s.a ──► due ──► produced: Nats-Scheduler: s.a, Nats-Schedule-Next: the next time
                         ▲                                              │         or `purge`
                         └──────────────────────────────────────────────┘

What is produced and the end of a schedule that is done go to the log together. When a crash leaves
only the first, the next start finds it and ends the schedule, which does not fire again. A time
that was missed is made up for once; where what was produced is gone already, a schedule goes on
behind the last thing that the log did before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import pyarrow.compute as pc
import structlog

from penstock.host.clock import Clock
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import DataDamaged, PenstockError
from penstock.model.units import Offset
from penstock.topics.local import read_partition
from penstock.topics.streams.schedule_rules import (
    MARK,
    NEXT,
    SCHEDULER,
    ended_by,
    schedule_of,
)
from penstock.topics.streams.schedule_table import Due, ScheduleTable
from penstock.topics.streams.storing import Storing
from penstock.topics.streams.stream import READ_BYTES, Stream
from penstock.topics.streams.ticks import Tick, Ticks
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.times import parse_time

DUE_AT_ONCE: Final = 1000
"""Schedules whose messages are made together."""
LOOK_SECONDS: Final = 1.0
"""The time of day may jump: so often it is looked at while something is due."""
RETRY_SECONDS: Final = 1.0

_events = structlog.get_logger(__name__)


class Schedules:
    """Of one stream; there is one task, and one timer in it."""

    def __init__(self, stream: Stream, storing: Storing, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._ticks = Ticks(stream, storing)
        self._table = ScheduleTable()
        self._position = 0
        """Everything before was looked at."""
        self._done_us = 0
        """What was due up to here has fired, unless the stream tells otherwise."""
        self._ended: list[int] = []
        """Schedules that are done and may still be there."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Work from now on, if the stream has schedules."""
        if self._task is None and self._stream.config.allow_msg_schedules:
            self._done_us = self._stream.log.state.last_timestamp
            self._task = asyncio.get_running_loop().create_task(self._run())

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
        """How long nothing has to be done; None is until something is stored."""
        next_us = self._table.next_us()
        if next_us is None:
            return None
        return min(max(next_us - self._clock.now_us(), 1000) / 1e6, LOOK_SECONDS)

    # -- what the stream tells

    async def _catch_up(self) -> None:
        """Look at everything that is there."""
        stream = self._stream
        while True:
            try:
                place = Offset(self._position)
                answer = await read_partition(stream.opened, stream.partition, place, READ_BYTES)
            except DataDamaged as damage:
                stream.passed_over(damage)
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
        places = pc.indices_nonzero(pc.match_substring(content.headers, MARK.decode())).to_pylist()
        if not places:
            return
        offsets, times = batch.offsets(), batch.timestamp_column()
        own = content.subject
        for place in places:
            subject = own if isinstance(own, bytes) else own[place].as_py()
            offset, block = int(offsets[place]), content.headers[place].as_py()
            self._note_one(subject, offset, block, times[place].as_py())

    def _note_one(self, subject: bytes, offset: int, block: bytes, stored_us: int) -> None:
        known = self._table.get(subject)
        if known is None or known.offset < offset:
            with suppress(ApiError, ValueError):
                schedule = schedule_of(block)
                if schedule is not None:
                    due_us = schedule.times.first(stored_us, self._done_us)
                    self._table.put(Due(due_us, offset, subject))
        fired = self._table.get(headers.get(block, SCHEDULER) or b"")
        if fired is not None and fired.offset < offset:
            self._note_fired(fired, block)

    def _note_fired(self, fired: Due, block: bytes) -> None:
        """A schedule has produced this, or a client has ended it."""
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
        """Remove schedules that are done, where a crash left them."""
        ended = sorted(self._stream.keeper.alive(self._ended))
        if ended:
            await self._stream.delete(ended, "schedule")
        self._ended.clear()

    # -- firing

    async def _fire(self) -> bool:
        """Have stored what is due; whether there may be more."""
        now_us, table = self._clock.now_us(), self._table
        due = table.due(now_us, DUE_AT_ONCE)
        if not due:
            return self._look_beyond(now_us)
        try:
            async for fired in self._ticks.fire(due, now_us):
                self._note_stored(fired)
        except PenstockError:
            for one in due:
                if table.get(one.subject) == one:
                    table.put(one)
            raise
        for one in due:
            table.forget(one)
        return True

    def _note_stored(self, fired: list[Tick]) -> None:
        for due, next_, *_ in fired:
            if self._table.get(due.subject) == due:
                self._table.forget(due)
                if next_ is not None:
                    self._table.put(due._replace(us=next_.us))

    def _look_beyond(self, now_us: int) -> bool:
        """Find the schedules that were forgotten, when the first of them may be due."""
        beyond_us = self._table.beyond_us
        if beyond_us is None or beyond_us > now_us:
            return False
        self._table.beyond_us = None
        self._position, self._done_us = 0, beyond_us - 1
        return True
