"""Reads whole WAL files and finds their intact frames and their damage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.formats.bodies import offset_ranges
from penstock.formats.frame_table import FrameTableWriter
from penstock.formats.frames import (
    ALIGNMENT_BYTES,
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FILE_VERSION,
    FRAME_HEADER_BYTES,
    FileHeader,
    Kind,
    body_intact,
    decode_file_header,
    decode_frame_header,
    frame_bytes,
)
from penstock.formats.paths import parse_wal_name
from penstock.formats.scan import Damage, IntactFrame, judge, scan
from penstock.host.disk import Disk
from penstock.model.errors import FormatError, VersionUnknown

FILE_BYTES_MAX: Final = 32 << 30
"""No broker writes a larger WAL file, whatever its settings."""
FRAMES_IN_SECTOR: Final = 4096 // frame_bytes(0)
"""A mark beyond this number of frames belongs to another file, inside a payload."""


@dataclass(slots=True)
class Scanned:
    """A file's bytes, intact frames and damage."""

    path: Path
    header: FileHeader
    header_intact: bool
    data: bytes
    found: list[IntactFrame]
    damages: list[Damage]

    def body(self, item: IntactFrame) -> memoryview:
        start = item.position + FRAME_HEADER_BYTES
        return memoryview(self.data)[start : start + item.header.body_bytes]

    def table(self) -> FrameTableWriter:
        """The frame table, from the intact frames."""
        table = FrameTableWriter()
        for item in self.found:
            for extent in offset_ranges(item.header, self.body(item)):
                table.add(
                    extent, item.position, item.header.frame_bytes, item.header.first_timestamp
                )
        return table


def scan_file(disk: Disk, path: Path, end: int | None, durable: int) -> Scanned:
    """Scan the first `end` bytes, or all if it is None.

    Frames below `durable` are known to be durable from elsewhere. Raises FormatError if no frame
    can be recognised.
    """
    fd = disk.open_read(path)
    try:
        size = disk.size(fd) if end is None else end
        if size > FILE_BYTES_MAX:
            raise FormatError(f"{path.name}: {size} bytes exceed FILE_BYTES_MAX, {FILE_BYTES_MAX}")
        data = disk.read(fd, size, 0)
    finally:
        disk.close(fd)
    header, intact = read_header(data, path)
    items = scan(data, header.mark, FILE_HEADER_BYTES)
    found, damages = judge(items, header.first_frame, durable)
    return Scanned(path, header, intact, data, found, damages)


def read_header(data: bytes, path: Path) -> tuple[FileHeader, bool]:
    """The file header, and whether its bytes are intact.

    A damaged header is rebuilt from the file's name and one of its first frames; raises FormatError
    if that is impossible.
    """
    try:
        return decode_file_header(data), True
    except VersionUnknown:
        raise
    except FormatError as error:
        named = parse_wal_name(path.name)
        mark = None if named is None else _find_mark(data, named[1])
        if named is None or mark is None:
            raise FormatError(f"{path.name}: {error}") from error
        return FileHeader(FILE_MAGIC, FILE_VERSION, 0, mark, *named, 0, 0, 0, 1), False


def _find_mark(data: bytes, first_frame: int) -> int | None:
    """The mark of the first intact frame, which follows within a sector."""
    for position in range(FILE_HEADER_BYTES, len(data), ALIGNMENT_BYTES):
        mark = int.from_bytes(data[position : position + 4], "little")
        header = decode_frame_header(data, position, mark)
        if header is not None:
            return mark if 0 <= header.number - first_frame <= FRAMES_IN_SECTOR else None
    return None


def read_checkpoint(disk: Disk, fd: int, mark: int, position: int) -> bytes:
    """The body of the checkpoint frame at `position`; raises FormatError if it is not intact."""
    lead = disk.read(fd, FRAME_HEADER_BYTES, position)
    header = decode_frame_header(lead, 0, mark)
    if header is None or header.kind != Kind.CHECKPOINT:
        raise FormatError(f"no checkpoint at byte {position}")
    frame = disk.read(fd, header.frame_bytes, position)
    if not body_intact(frame, 0, header):
        raise FormatError(f"the checkpoint at byte {position} is damaged")
    return frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.body_bytes]
