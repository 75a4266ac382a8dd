"""Stores the messages of due schedules, and ends or continues the schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.streams.appender import Appender
from penstock.streams.schedule_rules import SCHEDULER, produced, schedule_of
from penstock.streams.schedule_table import ScheduledFiring
from penstock.streams.stage import Replaced, Stage
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.schedule_times import Next

READ_AT_ONCE: Final = 100
"""Schedules that are read together."""
BYTES_AT_ONCE: Final = 16 << 20
"""Limit of payload bytes that are produced before they are stored."""
LATER_MAX: Final = 100
"""Limit of messages after a schedule on its subject that are examined; beyond it, the schedule
is void.
"""

_events = structlog.get_logger(__name__)


class ProducedMessage(NamedTuple):
    """The message that a schedule produces when it fires."""

    firing: ScheduledFiring
    next: Next | None
    """When the schedule fires again; None if never."""
    subject: bytes
    block: bytes
    payload: bytes
    rollup: bytes


class _ProducedStage(Stage):
    """Messages of schedules that still exist."""

    def __init__(
        self, stream: Stream, messages: list[ProducedMessage], replaced: list[Replaced]
    ) -> None:
        # What a roll-up replaces was looked up for the current end of the stream.
        super().__init__(
            stream.partition.appended_offset if replaced else None,
            [message.subject for message in messages],
            [message.block for message in messages],
            [message.payload for message in messages],
        )
        self._stream, self.messages = stream, messages
        completed = [message.firing.offset for message in messages if message.next is None]
        if completed:
            replaced = [*replaced, (Offset(0), list(map(Offset, completed)), None)]
        self.replaced = replaced

    def is_current(self) -> bool:
        offsets = {message.firing.offset for message in self.messages}
        return self._stream.counts.alive(offsets) == offsets


class ScheduleFiring:
    """Produces and stores the messages of due schedules of one stream."""

    def __init__(self, stream: Stream, appender: Appender) -> None:
        self._stream, self._appender = stream, appender

    async def fire(
        self, due: list[ScheduledFiring], now_us: int
    ) -> AsyncIterator[list[ProducedMessage]]:
        """Store what these schedules produce; yields messages that are durable.

        A schedule that was deleted or replaced produces nothing.
        """
        batch: list[ProducedMessage] = []
        size_bytes = 0
        for start in range(0, len(due), READ_AT_ONCE):
            for message in await self._produce(due[start : start + READ_AT_ONCE], now_us):
                if message.rollup:
                    yield await self._store([message])
                    continue
                batch.append(message)
                size_bytes += len(message.payload)
            if size_bytes > BYTES_AT_ONCE:
                yield await self._store(batch)
                batch, size_bytes = [], 0
        if batch:
            yield await self._store(batch)

    async def _produce(self, due: list[ScheduledFiring], now_us: int) -> list[ProducedMessage]:
        """The messages that the schedules still in force produce."""
        by_offset = {firing.offset: firing for firing in due}
        rows = await self._stream.read_intact(sorted(by_offset))
        blocks = rows.headers or [b""] * rows.count
        messages: list[ProducedMessage] = []
        for offset, block, payload in zip(rows.offsets, blocks, rows.payloads, strict=True):
            with suppress(ApiError, ValueError):
                message = await self._produce_one(by_offset[offset], block, payload, now_us)
                if message is not None:
                    messages.append(message)
        return messages

    async def _produce_one(
        self, firing: ScheduledFiring, block: bytes, payload: bytes, now_us: int
    ) -> ProducedMessage | None:
        schedule = schedule_of(block)
        if schedule is None or not await self._in_force(firing):
            return None
        if schedule.source:
            block, payload = await self._last(schedule.source) or (block, payload)
        next_ = schedule.times.next(firing.us, now_us)
        mapping, target = self._stream.mapping, schedule.target
        subject = target if mapping is None else mapping.map(target) or target
        block = produced(schedule, firing.subject, block, next_)
        return ProducedMessage(firing, next_, subject, block, payload, schedule.rollup)

    async def _in_force(self, firing: ScheduledFiring) -> bool:
        """Whether only other schedules have stored messages on the schedule's subject since."""
        stream, chosen = self._stream, Filter.exactly(firing.subject)
        if stream.partition.subjects.cached_last(firing.subject) == firing.offset:
            return True
        later = await stream.matching(chosen, firing.offset + 1, LATER_MAX)
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

    async def _store(self, messages: list[ProducedMessage]) -> list[ProducedMessage]:
        """Store messages and return them; one that the stream refuses is logged and counts as
        stored.
        """
        stored: list[ProducedMessage] = []

        async def check() -> Stage:
            nonlocal stored
            rollup = messages[0].rollup or None
            replaced = await self._appender.replaced(messages[0].subject, rollup)
            # A schedule that was deleted meanwhile does not fire.
            alive = self._stream.counts.alive(message.firing.offset for message in messages)
            stored = [message for message in messages if message.firing.offset in alive]
            return _ProducedStage(self._stream, stored, replaced)

        try:
            appended = await self._appender.append(check, patient=True)
        except ApiError as error:
            if len(messages) > 1:
                return [done for message in messages for done in await self._store([message])]
            name = self._stream.name
            subject = messages[0].firing.subject.decode(errors="replace")
            _events.warning("schedule_refused", stream=name, subject=subject, reason=str(error))
            return messages
        if appended is not None:
            await appended
        return stored
