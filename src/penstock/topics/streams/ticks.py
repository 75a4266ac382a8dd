"""What schedules produce: made from the messages that tell of them, and stored as any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from penstock.model.batch import OffsetRange
from penstock.model.errors import AppendQueueFull
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.topics.streams.schedule_rules import SCHEDULER, produced, schedule_of
from penstock.topics.streams.schedule_table import Due
from penstock.topics.streams.storing import Storing
from penstock.topics.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.schedule_times import Next
from penstock.wire.parser import Publishes

READ_AT_ONCE: Final = 100
"""Schedules that are read together."""
BYTES_AT_ONCE: Final = 16 << 20
"""Of payloads, with which what was made is stored before more is."""
LATER_MAX: Final = 100
"""Messages behind a schedule on its subject that are looked at; with more it counts no more."""

_events = structlog.get_logger(__name__)


class Tick(NamedTuple):
    """What a schedule has stored now."""

    due: Due
    next: Next | None
    """When it fires again; None is never."""
    subject: bytes
    block: bytes
    payload: bytes
    ttl_ns: int | None
    rollup: bytes


class Ticks:
    """Of one stream."""

    def __init__(self, stream: Stream, storing: Storing) -> None:
        self._stream, self._storing = stream, storing

    async def fire(self, due: list[Due], now_us: int) -> AsyncIterator[list[Tick]]:
        """Have stored what these are due to produce; yields what is durable.

        One that is gone, or not in force any more, produces nothing.
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
        """What those of these produce that are there and in force."""
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
        return Tick(due, next_, subject, made, payload, schedule.ttl_ns, schedule.rollup)

    async def _in_force(self, due: Due) -> bool:
        """Whether nothing was stored on its subject since but what other schedules produced."""
        stream, chosen = self._stream, Filter.parse(due.subject)
        if stream.log.index.peek_last(stream.partition, due.subject) == due.offset:
            return True
        later = await stream.matching(chosen, due.offset + 1, LATER_MAX)
        rows = await stream.read_intact(later)
        blocks = rows.headers or [b""] * rows.count
        return len(later) < LATER_MAX and all(headers.get(block, SCHEDULER) for block in blocks)

    async def _last(self, subject: bytes) -> tuple[bytes, bytes] | None:
        """Headers and payload of the last message of a subject."""
        last = await self._stream.last(Filter.parse(subject))
        rows = None if last is None else await self._stream.get(last)
        if rows is None or not rows.count:
            return None
        return (rows.headers or [b""])[0], rows.payloads[0]

    async def _store(self, ticks: list[Tick]) -> list[Tick]:
        """A message that the stream refuses is left out, and counts as stored."""
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
        """Those that are stored; None when it has to be tried again at once."""
        stream, storing, taken = self._stream, self._storing, self._storing.taken
        rolled = await storing.replaced(ticks[0].subject, ticks[0].rollup or None)
        run = _run(ticks)
        await stream.admission.prepare(set(run.subjects))
        await storing.make_room(len(ticks), storing.log_run(run).measure())
        if rolled and storing.taken != taken:
            return None
        # What was deleted meanwhile does not fire: from here to the append nobody else has a turn.
        alive = stream.keeper.alive(tick.due.offset for tick in ticks)
        ticks = [tick for tick in ticks if tick.due.offset in alive]
        if not ticks:
            return []
        try:
            stored = stream.log.append(storing.log_run(_run(ticks)))
        except AppendQueueFull:
            return None
        for replaced in rolled:
            storing.drop(*replaced)
        self._see_to(ticks, storing.taken - len(ticks), stored)
        await stored
        return ticks

    def _see_to(self, ticks: list[Tick], first: int, stored: asyncio.Future[OffsetRange]) -> None:
        """What is to happen with messages that were appended, and with their schedules."""
        storing, interested = self._storing, self._stream.interested
        dropped = [tick.due.offset for tick in ticks if tick.next is None]
        for offset, tick in enumerate(ticks, first):
            if tick.ttl_ns is not None:
                storing.expire(offset, tick.ttl_ns, stored)
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
