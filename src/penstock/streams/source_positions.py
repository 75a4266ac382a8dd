"""How far each source of a stream was copied, stored in the stream's log beside the copies.

A checkpoint is a settle frame of kind `sources` with the positions of all sources. It is written in
the same group commit as the copies that it counts, after them. After a crash the last checkpoint
counts; copies after it, whose checkpoint was torn off, are found by their headers. A checkpoint in
an older log file is written again, so that a restart reads one file at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from penstock.host.notifier import Cancel, cancel_all
from penstock.model.errors import AppendQueueFull, FormatError, PenstockError, VersionUnknown
from penstock.streams.rows import Rows
from penstock.streams.stream import Stream
from penstock.wire.jetstream.sourced import origin_of

KIND: Final = "sources"
VERSION: Final = 1
POSITIONS_MAX: Final = 1000
"""Limit of stored positions, those of removed sources included."""
READ_AT_ONCE: Final = 10_000
SEARCHED_MAX: Final = 1_000_000
"""Limit of messages that are searched for headers, from the last one back, if there is no
checkpoint.
"""

_events = structlog.get_logger(__name__)


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far one source was copied."""

    identity: str
    """Identity of the origin; an origin with another identity is copied from its start."""
    sequence: int
    """The last copied sequence; 0 before the first."""
    next_offset: int
    """The origin's messages before this offset were copied, or are not selected."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """The positions of all sources of a stream."""

    offset: int
    """The end of the stream at the checkpoint: later copies are not counted."""
    positions: dict[str, Position]
    """Positions by the keys of the sources."""


def encode(checkpoint: Checkpoint) -> bytes:
    """The body of a settle frame."""
    return msgspec.msgpack.encode([KIND, VERSION, checkpoint])


def decode(version: int, entries: list[Any]) -> Checkpoint:
    """Decode the body of a settle frame; raises FormatError, VersionUnknown."""
    if version != VERSION:
        raise VersionUnknown("checkpoint of sources", version, VERSION)
    try:
        return msgspec.convert(entries[0], Checkpoint)
    except (msgspec.ValidationError, IndexError) as error:
        raise FormatError(f"not a checkpoint of sources: {error}") from error


class SourcePositions:
    """The positions of one stream's sources; `load` must be called first."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._opened = stream, stream.opened
        self._durable: dict[str, Position] = {}
        self._appended: dict[str, Position] = {}
        """Durable positions, and those of copies that are being written."""
        self._losses = stream.losses
        self._frame: int | None = None
        """The last checkpoint is in this frame or a later one."""
        self._writing = False
        self._stop_observing: Cancel = cancel_all()

    async def load(self, keys: Iterable[str]) -> None:
        """Find how far sources were copied before; raises PenstockError, OSError."""
        if not self._opened.durable:
            return
        settled = await self._opened.settlements.read(KIND)
        if settled:
            last = settled[-1]
            checkpoint = decode(last.version, last.entries)
            self._durable, self._frame = dict(checkpoint.positions), last.frame
            self._opened.settlements.keep(KIND, last.frame)
            await self._read_behind(checkpoint.offset)
        else:
            await self._search(set(keys))
        self._appended = dict(self._durable)
        self._stop_observing = self._stream.changed.add(self._renew)

    def close(self) -> None:
        self._stop_observing()

    def forget(self) -> None:
        """Discard all positions, after the stream's sources were removed."""
        self.close()
        if self._opened.durable and not self._opened.closed and self._frame is not None:
            self._opened.settlements.keep(KIND, None)

    def get(self, key: str) -> Position | None:
        """How far a source was copied, copies that are being written included."""
        return self._current().get(key)

    def advance(self, key: str, position: Position, stored: asyncio.Future[Any]) -> None:
        """Record that copies up to this position were just appended, and write a checkpoint after
        them.

        If the log accepts no checkpoint now, the copies are found by their headers.
        """
        current = self._current()
        current.pop(key, None)
        current[key] = position
        while len(current) > POSITIONS_MAX:
            del current[next(iter(current))]
        stored.add_done_callback(partial(self._stored, key, position))
        self.write()

    def write(self) -> asyncio.Future[None] | None:
        """Write a checkpoint in the group that forms now; None if the log accepts none."""
        if not self._opened.durable or self._opened.closed:
            return None
        frame = self._opened.durable_frame
        offset = self._stream.partition.appended_offset
        body = encode(Checkpoint(offset, self._current()))
        try:
            written = self._opened.settle(body, 1)
        except AppendQueueFull:
            return None
        except PenstockError as error:
            _events.warning("sources_not_written", stream=self._stream.name, reason=str(error))
            return None
        written.add_done_callback(partial(self._written, frame))
        return written

    # -- details

    def _current(self) -> dict[str, Position]:
        if self._losses != self._stream.losses:
            # What was being written is lost; it will be copied again.
            self._losses, self._appended = self._stream.losses, dict(self._durable)
        return self._appended

    def _stored(self, key: str, position: Position, stored: asyncio.Future[Any]) -> None:
        if stored.cancelled() or stored.exception() is not None:
            return
        self._durable[key] = position
        current = self._current()
        if current.get(key, position).next_offset < position.next_offset or key not in current:
            current[key] = position
            self.write()

    def _written(self, frame: int, written: asyncio.Future[None]) -> None:
        self._writing = False
        if written.cancelled() or written.exception() is not None or self._opened.closed:
            return
        self._frame = frame
        self._opened.settlements.keep(KIND, frame)

    def _renew(self) -> None:
        """After a commit, write the checkpoint again if it is in an older file."""
        if self._frame is None or self._writing:
            return
        if self._frame < self._opened.active_frame:
            self._writing = self.write() is not None

    async def _read_behind(self, offset: int) -> None:
        """Count copies by their headers that no checkpoint counts."""
        async for rows in self._stream.rows_from(offset, READ_AT_ONCE):
            self._durable |= _positions(rows)

    async def _search(self, keys: set[str]) -> None:
        """Find the last copies of these sources by their headers, from the end back."""
        stop: int = self._stream.next_offset
        lowest = max(self._stream.first_offset, stop - SEARCHED_MAX)
        missing = set(keys)
        while stop > lowest and missing:
            start = max(lowest, stop - READ_AT_ONCE)
            found: dict[str, Position] = {}
            async for rows in self._stream.rows_from(start, stop - start):
                found |= _positions(rows)
                if rows.offsets[-1] >= stop - 1:
                    break
            self._durable = found | self._durable
            missing -= found.keys()
            stop = start


def _positions(rows: Rows) -> dict[str, Position]:
    """The last copy of each source among these messages."""
    found: dict[str, Position] = {}
    for block in rows.headers or ():
        origin = origin_of(block)
        if origin is not None:
            found[origin.key] = Position(origin.identity, origin.sequence, origin.sequence)
    return found
