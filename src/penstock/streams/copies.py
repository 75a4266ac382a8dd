"""Stores messages copied from other streams, a batch at a time, by the rules of the target stream.

Header fields of a copy take effect in the target if its configuration allows that: a message id is
stored once within the window, a roll-up replaces messages, a TTL expires. Otherwise the fields are
stored and have no effect. Messages that the target refuses stay in the origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.model.subjects import Filter
from penstock.model.units import Offset, OffsetRange
from penstock.streams.appender import Appender
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.publish_fields import RESERVED_PREFIX, publish_fields
from penstock.streams.schedule_rules import ended_by
from penstock.streams.source_positions import Position, SourcePositions
from penstock.streams.stage import Replaced, Stage
from penstock.streams.stream import Stream
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.sourced import FIELD


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


class _CopyStage(Stage):
    """Copies whose ids were not stored when they were checked."""

    def __init__(self, first: Offset | None, copied: Copied, indexes: Sequence[int]) -> None:
        super().__init__(
            first,
            [copied.subjects[index] for index in indexes],
            [copied.blocks[index] for index in indexes],
            [copied.payloads[index] for index in indexes],
        )
        self.window: DuplicateWindow | None = None
        """The ids of the stream, if it stores each only once."""

    def is_current(self) -> bool:
        window = self.window
        return window is None or all(window.find(message_id) is None for message_id in self.ids)


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
        self._appender = Appender(stream, window)

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
        requests = self._requests(copied)
        stored = await self._appender.append(partial(self._stage, copied, requests), patient=True)
        # Right after the append, so that the positions are in the same group commit.
        self._positions.advance(copied.key, copied.position, stored or _done())
        if stored is not None:
            await stored

    async def _stage(self, copied: Copied, requests: CopyRequests) -> _CopyStage:
        """The copies that are to be stored, checked at the end of the stream."""
        first = self._appender.appended_offset
        indexes = await self._without_duplicates(copied, requests)
        subjects = [copied.subjects[index] for index in indexes]
        replaced = await self._replaced(first, requests, indexes, subjects)
        stage = _CopyStage(first if replaced else None, copied, indexes)
        stage.window = self._window if self._window.window_us else None
        stage.replaced = replaced
        stage.ids = {
            requests.ids[index]: position
            for position, index in enumerate(indexes)
            if index in requests.ids
        }
        return stage

    # -- header fields

    def _requests(self, copied: Copied) -> CopyRequests:
        requests, config = CopyRequests(), self._stream.config
        may_roll_up = config.allow_rollup_hdrs and not config.deny_purge
        for index, block in enumerate(copied.blocks):
            if block.count(RESERVED_PREFIX) == block.count(FIELD):
                continue
            fields = publish_fields(block)
            if fields.message_id:
                requests.ids[index] = fields.message_id
            if fields.rollup == b"sub" and may_roll_up:
                requests.rolls_up[copied.subjects[index]] = index
            elif fields.rollup == b"all" and may_roll_up:
                requests.rolls_up_all = index
            if may_roll_up and (ended := ended_by(fields.schedule_block)):
                requests.rolls_up[ended] = index
        return requests

    async def _without_duplicates(self, copied: Copied, requests: CopyRequests) -> Sequence[int]:
        """Indices of copies whose ids are not stored yet."""
        everything = range(len(copied.payloads))
        if not requests.ids or not self._appender.deduplicates:
            return everything
        duplicates: set[int] = set()
        seen: set[bytes] = set()
        for index, message_id in requests.ids.items():
            if message_id in seen or await self._appender.stored_as(message_id) is not None:
                duplicates.add(index)
            seen.add(message_id)
        return [index for index in everything if index not in duplicates]

    async def _replaced(
        self,
        first: Offset,
        requests: CopyRequests,
        indexes: Sequence[int],
        subjects: Sequence[bytes],
    ) -> list[Replaced]:
        """What the roll-ups among the copies replace, in the stream and in the stage, whose first
        message gets the offset `first`.
        """
        found: list[Replaced] = []
        positions = {index: position for position, index in enumerate(indexes)}
        if requests.rolls_up_all in positions:
            position = positions[requests.rolls_up_all]
            found.append((Offset(first + position), [], subjects[position]))
        for subject, index in requests.rolls_up.items():
            if index not in positions:
                continue
            stored = await self._appender.replaced(subject, b"sub")
            matches = Filter.covering(subject).matches
            earlier = [
                Offset(first + position)
                for position in range(positions[index])
                if matches(subjects[position])
            ]
            found += [(start, [*offsets, *earlier], of) for start, offsets, of in stored]
        return found


def _done() -> asyncio.Future[OffsetRange]:
    future: asyncio.Future[OffsetRange] = asyncio.get_running_loop().create_future()
    future.set_result(OffsetRange(Offset(0), Offset(0)))
    return future
