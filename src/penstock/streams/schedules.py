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
from collections.abc import AsyncIterator
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import pyarrow.compute as pc
import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import AppendQueueFull, DataDamaged, PenstockError
from penstock.model.subjects import Filter
from penstock.model.times import parse_time
from penstock.model.units import Offset
from penstock.streams.schedule_rules import (
    NEXT,
    SCHEDULER,
    ended_by,
    produced,
    schedule_of,
)
from penstock.streams.storing import MARK, Storing
from penstock.streams.stream import READ_BYTES, Stream
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.schedule_times import Next
from penstock.wire.parser import Publishes

SCHEDULES_MAX: Final = 100_000


class Due(NamedTuple):
    """A schedule and when it fires; sorted by time."""

    us: int
    offset: int
    subject: bytes


class ScheduleTable:
    """The schedules of one stream by time and by subject: those that fire first, up to a limit.

    Only the last schedule of a subject counts. Beyond the limit those that fire last are forgotten,
    and the time from which on they must be looked up again is remembered.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Due] = {}
        self._heap: list[Due] = []
        self.beyond_us: int | None = None
        """Forgotten schedules may fire from this time on; None if none was forgotten."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, subject: bytes) -> Due | None:
        return self._known.get(subject)

    def put(self, due: Due) -> None:
        """Set when a schedule fires; it replaces the one before of its subject."""
        self._known[due.subject] = due
        heappush(self._heap, due)
        if len(self._known) > SCHEDULES_MAX:
            self._forget_last()
        elif len(self._heap) > 2 * len(self._known) + SCHEDULES_MAX // 100:
            self._tidy()

    def forget(self, due: Due) -> None:
        """Remove a schedule, unless its subject has another one by now."""
        if self._known.get(due.subject) == due:
            del self._known[due.subject]

    def next_us(self) -> int | None:
        """When something must be done next; None if never."""
        self._drop_outdated()
        times = [self._heap[0].us] if self._heap else []
        if self.beyond_us is not None:
            times.append(self.beyond_us)
        return min(times, default=None)

    def due(self, now_us: int, most: int) -> list[Due]:
        """Remove and return due schedules, earliest first; the caller puts each again or forgets
        it.
        """
        found: list[Due] = []
        self._drop_outdated()
        while self._heap and self._heap[0].us <= now_us and len(found) < most:
            found.append(heappop(self._heap))
            self._drop_outdated()
        return found

    def _drop_outdated(self) -> None:
        heap, known = self._heap, self._known
        while heap and known.get(heap[0].subject) != heap[0]:
            heappop(heap)

    def _forget_last(self) -> None:
        ordered = sorted(self._known.values())
        half = len(ordered) // 2
        beyond_us = ordered[half].us
        self.beyond_us = beyond_us if self.beyond_us is None else min(self.beyond_us, beyond_us)
        self._known = {due.subject: due for due in ordered[:half]}
        self._tidy()

    def _tidy(self) -> None:
        self._heap = list(self._known.values())
        heapify(self._heap)


READ_AT_ONCE: Final = 100
"""Schedules that are read together."""
BYTES_AT_ONCE: Final = 16 << 20
"""Limit of payload bytes that are produced before they are stored."""
LATER_MAX: Final = 100
"""Limit of messages after a schedule on its subject that are examined; beyond it, the schedule
is void.
"""

_events = structlog.get_logger(__name__)


class Tick(NamedTuple):
    """The result of firing one schedule."""

    due: Due
    next: Next | None
    """When the schedule fires again; None if never."""
    subject: bytes
    block: bytes
    payload: bytes
    rollup: bytes


class Ticks:
    """Produces and stores the messages of due schedules of one stream."""

    def __init__(self, stream: Stream, storing: Storing) -> None:
        self._stream, self._storing = stream, storing

    async def fire(self, due: list[Due], now_us: int) -> AsyncIterator[list[Tick]]:
        """Store what these schedules produce; yields results that are durable.

        A schedule that was deleted or replaced produces nothing.
        """
        plain: list[Tick] = []
        size_bytes = 0
        for start in range(0, len(due), READ_AT_ONCE):
            for tick in await self._made(due[start : start + READ_AT_ONCE], now_us):
                if tick.rollup:
                    yield await self._store([tick])
                    continue
                plain.append(tick)
                size_bytes += len(tick.payload)
            if size_bytes > BYTES_AT_ONCE:
                yield await self._store(plain)
                plain, size_bytes = [], 0
        if plain:
            yield await self._store(plain)

    async def _made(self, due: list[Due], now_us: int) -> list[Tick]:
        """The messages that the schedules still in force produce."""
        by_offset = {one.offset: one for one in due}
        rows = await self._stream.read_intact(sorted(by_offset))
        blocks = rows.headers or [b""] * rows.count
        ticks: list[Tick] = []
        for offset, block, payload in zip(rows.offsets, blocks, rows.payloads, strict=True):
            with suppress(ApiError, ValueError):
                tick = await self._tick(by_offset[offset], block, payload, now_us)
                if tick is not None:
                    ticks.append(tick)
        return ticks

    async def _tick(self, due: Due, block: bytes, payload: bytes, now_us: int) -> Tick | None:
        schedule = schedule_of(block)
        if schedule is None or not await self._in_force(due):
            return None
        if schedule.source:
            block, payload = await self._last(schedule.source) or (block, payload)
        next_ = schedule.times.next(due.us, now_us)
        mapping, target = self._stream.mapping, schedule.target
        subject = target if mapping is None else mapping.map(target) or target
        made = produced(schedule, due.subject, block, next_)
        return Tick(due, next_, subject, made, payload, schedule.rollup)

    async def _in_force(self, due: Due) -> bool:
        """Whether only other schedules have stored messages on the schedule's subject since."""
        stream, chosen = self._stream, Filter.exactly(due.subject)
        if stream.partition.subjects.cached_last(due.subject) == due.offset:
            return True
        later = await stream.matching(chosen, due.offset + 1, LATER_MAX)
        rows = await stream.read_intact(later)
        blocks = rows.headers or [b""] * rows.count
        return len(later) < LATER_MAX and all(headers.get(block, SCHEDULER) for block in blocks)

    async def _last(self, subject: bytes) -> tuple[bytes, bytes] | None:
        """Headers and payload of the last message of a subject."""
        last = await self._stream.last(Filter.exactly(subject))
        rows = None if last is None else await self._stream.get(last)
        if rows is None or not rows.count:
            return None
        return (rows.headers or [b""])[0], rows.payloads[0]

    async def _store(self, ticks: list[Tick]) -> list[Tick]:
        """Store messages; one that the stream refuses is left out, and counts as stored."""
        try:
            while (stored := await self._append(ticks)) is None:
                pass
        except ApiError as error:
            if len(ticks) > 1:
                return [done for tick in ticks for done in await self._store([tick])]
            name, subject = self._stream.name, ticks[0].due.subject.decode(errors="replace")
            _events.warning("schedule_refused", stream=name, subject=subject, reason=str(error))
            return ticks
        return stored

    async def _append(self, ticks: list[Tick]) -> list[Tick] | None:
        """Append messages and return those that were; None if the caller must try again."""
        stream, storing, taken = self._stream, self._storing, self._storing.taken
        rolled = await storing.replaced(ticks[0].subject, ticks[0].rollup or None)
        run = _run(ticks)
        await stream.admission.prepare(set(run.subjects))
        await storing.make_room(len(ticks), storing.log_run(run).measure(), patient=True)
        if rolled and storing.taken != taken:
            return None
        # What was deleted meanwhile does not fire: nothing else runs from here to the append.
        alive = stream.keeper.alive(tick.due.offset for tick in ticks)
        ticks = [tick for tick in ticks if tick.due.offset in alive]
        if not ticks:
            return []
        try:
            stored = stream.partition.append(storing.log_run(_run(ticks)))
        except AppendQueueFull:
            return None
        for replaced in rolled:
            storing.drop(*replaced)
        self._see_to(ticks, storing.taken - len(ticks))
        await stored
        return ticks

    def _see_to(self, ticks: list[Tick], first: int) -> None:
        """Apply roll-ups and end or continue schedules, after their messages were appended."""
        storing, interested = self._storing, self._stream.interested
        dropped = [tick.due.offset for tick in ticks if tick.next is None]
        for offset, tick in enumerate(ticks, first):
            if interested is not None and not interested(tick.subject):
                dropped.append(offset)
        if dropped:
            storing.drop(Offset(0), dropped, None)


def _run(ticks: list[Tick]) -> Publishes:
    return Publishes(
        [tick.subject for tick in ticks],
        [b""] * len(ticks),
        [tick.block for tick in ticks],
        [tick.payload for tick in ticks],
    )


DUE_AT_ONCE: Final = 1000
"""Schedules whose messages are produced together."""
LOOK_SECONDS: Final = 1.0
"""Interval of checks while a schedule is pending, because the time of day may jump."""
RETRY_SECONDS: Final = 1.0


class Schedules:
    """Fires the schedules of one stream, in one task."""

    def __init__(self, stream: Stream, storing: Storing, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._ticks = Ticks(stream, storing)
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
                place = Offset(self._position)
                answer = await stream.partition.read(place, READ_BYTES)
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
        ended = sorted(self._stream.keeper.alive(self._ended))
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
        """Look up the forgotten schedules when the first of them may be due."""
        beyond_us = self._table.beyond_us
        if beyond_us is None or beyond_us > now_us:
            return False
        self._table.beyond_us = None
        self._position, self._done_us = 0, beyond_us - 1
        return True
