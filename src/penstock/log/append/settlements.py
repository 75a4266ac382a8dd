"""Reads settle frames back after a restart, and retains the WAL files with frames still needed.

The body of a settle frame is a MessagePack array that begins with its kind and a version; the code
that settles things of that kind defines the rest. For each kind there is the first frame that is
still needed; WAL files are retained from the lowest of these on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from penstock.formats.frame_groups import Frames
from penstock.formats.frames import FILE_HEADER_BYTES, Kind
from penstock.formats.scan import BadBytes, walk
from penstock.host.disk import Disk
from penstock.log.files.wal_files import WalFile
from penstock.log.reading.local_files import LocalFiles
from penstock.log.shared.engine import Engine
from penstock.log.state import LogState

CHUNK_BYTES: Final = 4 << 20
_SHORT_TEXT: Final = 0xA0
_SHORT_TEXT_MAX: Final = 32
"""MessagePack: a text shorter than this has its length in its first byte."""


class Settled(NamedTuple):
    """The body of one settle frame, decoded, without its kind."""

    frame: int
    version: int
    entries: list[Any]


class Settlements:
    """The settle frames of one log, by kind."""

    def __init__(self, engine: Engine, state: LogState, files: LocalFiles) -> None:
        self._engine, self._state, self._files = engine, state, files
        self._floors: dict[str, int | None] = {}
        self._loaded = False
        self.unused: set[str] = set()
        """Kinds that this broker never reads: their frames are not retained."""

    async def read(self, kind: str) -> list[Settled]:
        """The frames of this kind that are still needed, in order; called after opening."""
        found = await self._scan()
        if not self._loaded:
            self._loaded = True
            self._floors |= {
                other: settled.frame
                for other, settled in reversed(found)
                if other not in self.unused
            }
        return [settled for other, settled in found if other == kind]

    def note(self, body: bytes, frame: int) -> None:
        """Note that a settle frame with number `frame` or later is about to be written."""
        kind = kind_of(body)
        if self._floors.get(kind) is None:
            self._floors[kind] = frame
        if self._state.settle_floor is None:
            self._state.settle_floor = frame

    def keep(self, kind: str, frame: int | None) -> None:
        """Retain frames of this kind from `frame` on only; none at all if it is None."""
        assert self._loaded, "read() comes first"
        self._floors[kind] = frame
        floors = [floor for floor in self._floors.values() if floor is not None]
        self._state.settle_floor = min(floors, default=None)

    async def _scan(self) -> list[tuple[str, Settled]]:
        floor = self._state.settle_floor
        if floor is None:
            return []
        files = self._files.all()
        unneeded = [file for file in files[1:] if file.header.first_frame <= floor]
        needed = files[len(unneeded) :]
        return await self._engine.readers.run(_settled, self._engine.disk, needed, floor)


def _settled(disk: Disk, files: Sequence[WalFile], floor: int) -> list[tuple[str, Settled]]:
    """Read the settle frames from `floor` on, with their kinds; runs in a worker thread."""
    found = []
    for file in files:
        for number, body in _bodies(disk, file):
            if number >= floor and (kind := kind_of(body)):
                _, version, *entries = msgspec.msgpack.decode(body)
                found.append((kind, Settled(number, version, entries)))
    return found


def kind_of(body: bytes) -> str:
    """The first text of a body; empty if the body is no array that begins with a text."""
    lead = body[:1]
    start = {b"\xdc": 3, b"\xdd": 5}.get(lead, 1)
    if lead not in (b"\xdc", b"\xdd") and not b"\x90" <= lead <= b"\x9f":
        return ""
    size = body[start] - _SHORT_TEXT if len(body) > start else -1
    return body[start + 1 : start + 1 + size].decode() if 0 < size < _SHORT_TEXT_MAX else ""


def _bodies(disk: Disk, file: WalFile) -> Iterator[tuple[int, bytes]]:
    """Frame number and body of every intact settle frame of a file."""
    fd, position, chunk = disk.open_read(file.path), FILE_HEADER_BYTES, CHUNK_BYTES
    try:
        while position < file.end:
            data = disk.read(fd, min(chunk, file.end - position), position)
            last, reached = position + len(data) >= file.end, 0
            for item in walk(data, file.header.mark, 0):
                if isinstance(item, BadBytes):
                    if not last and item.end == len(data):
                        break
                    reached = item.end
                    continue
                frames = Frames.at(data, item)
                for row in np.flatnonzero(frames.kinds == Kind.SETTLE).tolist():
                    yield int(frames.headers["number"][row]), bytes(frames.body(row))
                reached = int(frames.ends[-1])
            # A frame longer than a chunk is not intact until more of the file is read.
            chunk = CHUNK_BYTES if reached else chunk * 2
            position += reached
    finally:
        disk.close(fd)
