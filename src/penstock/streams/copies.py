"""Stores messages copied from other streams, a batch at a time, by the rules of the target stream.

Header fields of a copy take effect in the target if its configuration allows that: a message id is
stored once within the window, a roll-up replaces messages, a TTL expires. Otherwise the fields are
stored and have no effect. Messages that the target refuses stay in the origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.model.errors import AppendQueueFull
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.schedule_rules import ended_by
from penstock.streams.source_positions import Position, SourcePositions
from penstock.streams.storing import RESERVED, Replaced, Storing, expectations_of
from penstock.streams.stream import Stream
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.sourced import FIELD
from penstock.wire.parser import Publishes


@dataclass(frozen=True, slots=True)
class Copied:
    """Messages of one source, with their headers as the target stores them."""

    key: str
    identity: str
    subjects: Sequence[bytes]
    blocks: Sequence[bytes]
    payloads: Sequence[bytes]
    sequences: Sequence[int]
    """The messages' sequences in the origin."""

    @property
    def position(self) -> Position:
        """How far the source is copied once these messages are stored."""
        return Position(self.identity, self.sequences[-1], self.sequences[-1])

    def part(self, start: int, stop: int) -> Copied:
        return Copied(
            self.key,
            self.identity,
            self.subjects[start:stop],
            self.blocks[start:stop],
            self.payloads[start:stop],
            self.sequences[start:stop],
        )

    def take(self, places: Sequence[int]) -> Publishes:
        """The messages at some indices."""
        picked = [
            [column[place] for place in places]
            for column in (self.subjects, self.blocks, self.payloads)
        ]
        return Publishes(picked[0], [b""] * len(places), picked[1], picked[2])


@dataclass(slots=True)
class CopyRequests:
    """What the header fields of a batch of copies request, by index in the batch."""

    ids: dict[int, bytes] = field(default_factory=dict)
    rolls_up: dict[bytes, int] = field(default_factory=dict)
    """By subject, the last message that replaces earlier ones of the subject."""
    rolls_up_all: int | None = None
    """The last message that replaces all earlier ones of the stream."""


class Copies:
    """Stores copies in one stream."""

    def __init__(self, stream: Stream, window: DuplicateWindow, positions: SourcePositions) -> None:
        self._stream, self._window, self._positions = stream, window, positions
        self._storing = Storing(stream, window)

    async def store(self, copied: Copied) -> None:
        """Store copies in order; durable on return.

        Raises PenstockError if the stream refuses a message; those before it are stored then.
        """
        start, stop, count = 0, len(copied.payloads), len(copied.payloads)
        while start < count:
            try:
                await self._store(copied.part(start, stop))
            except ApiError:
                if stop - start == 1:
                    raise
                # As many as the stream accepts: of those that it refuses together, the first half.
                stop = start + (stop - start) // 2
                continue
            start, stop = stop, count

    async def _store(self, copied: Copied) -> None:
        asked = self._asked(copied)
        while True:
            places = await self._without_duplicates(copied, asked)
            if not places:
                self._positions.advance(copied.key, copied.position, _done())
                return
            run = copied.take(places)
            taken = self._storing.taken
            replaced = await self._replaced(asked, places, run.subjects)
            await self._stream.admission.prepare(set(run.subjects))
            log_run = self._storing.log_run(run)
            await self._storing.make_room(len(places), log_run.measure(), patient=True)
            moved = bool(replaced) and self._storing.taken != taken
            if moved or self._duplicates(places, asked):
                continue
            try:
                first, stored = self._storing.taken, self._stream.partition.append(log_run)
            except AppendQueueFull:
                continue
            self._settle(copied, asked, places, first, stored)
            for one in replaced:
                self._storing.drop(*one)
            await stored
            return

    def _settle(
        self,
        copied: Copied,
        asked: CopyRequests,
        places: Sequence[int],
        first: int,
        stored: asyncio.Future[Any],
    ) -> None:
        """Apply roll-ups, remember ids and delete what nobody needs, after copies were appended."""
        offsets = dict(zip(places, range(first, first + len(places)), strict=True))
        ids = {
            asked.ids[place]: offset + 1 for place, offset in offsets.items() if place in asked.ids
        }
        if ids:
            self._storing.remember(ids, stored)
        interested = self._stream.interested
        if interested is not None:
            wanted = {subject: interested(subject) for subject in set(copied.subjects)}
            unwanted = [at for place, at in offsets.items() if not wanted[copied.subjects[place]]]
            if unwanted:
                self._storing.drop(Offset(0), unwanted, None)
        self._positions.advance(copied.key, copied.position, stored)

    # -- header fields

    def _asked(self, copied: Copied) -> CopyRequests:
        asked, config = CopyRequests(), self._stream.config
        rolls_up = config.allow_rollup_hdrs and not config.deny_purge
        for place, block in enumerate(copied.blocks):
            if block.count(RESERVED) == block.count(FIELD):
                continue
            fields = expectations_of(block)
            if fields.message_id:
                asked.ids[place] = fields.message_id
            if fields.rollup == b"sub" and rolls_up:
                asked.rolls_up[copied.subjects[place]] = place
            elif fields.rollup == b"all" and rolls_up:
                asked.rolls_up_all = place
            if rolls_up and (ended := ended_by(fields.schedules)):
                asked.rolls_up[ended] = place
        return asked

    async def _without_duplicates(self, copied: Copied, asked: CopyRequests) -> Sequence[int]:
        """Indices of copies whose ids are not stored yet."""
        everything = range(len(copied.payloads))
        if not asked.ids or not self._window.window_us:
            return everything
        left_out: set[int] = set()
        seen: set[bytes] = set()
        for place, message_id in asked.ids.items():
            if message_id in seen or await self._storing.stored_as(message_id) is not None:
                left_out.add(place)
            seen.add(message_id)
        return [place for place in everything if place not in left_out]

    def _duplicates(self, places: Sequence[int], asked: CopyRequests) -> bool:
        """Whether one of these ids was stored in the meantime."""
        if not asked.ids or not self._window.window_us:
            return False
        ids = (asked.ids.get(place) for place in places)
        return any(one and self._window.find(one) is not None for one in ids)

    async def _replaced(
        self, asked: CopyRequests, places: Sequence[int], subjects: Sequence[bytes]
    ) -> list[Replaced]:
        """What the roll-ups among the copies replace, in the stream and in the batch."""
        found: list[Replaced] = []
        first, at = self._storing.taken, {place: n for n, place in enumerate(places)}
        if asked.rolls_up_all in at:
            everything = Offset(first + at[asked.rolls_up_all])
            found.append((everything, [], subjects[at[asked.rolls_up_all]]))
        for subject, place in asked.rolls_up.items():
            if place not in at:
                continue
            stored = await self._storing.replaced(subject, b"sub")
            matches = Filter.covering(subject).matches
            before = [Offset(first + n) for n in range(at[place]) if matches(subjects[n])]
            found += [(start, [*offsets, *before], of) for start, offsets, of in stored]
        return found


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
