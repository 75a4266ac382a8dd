"""Read WAL files whole and judge them; shared by recovery, the reader's fallbacks and the tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.formats.extents import extents
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
from penstock.formats.scan import Damage, Found, judge, scan
from penstock.formats.table import TableWriter
from penstock.host.disk import Disk
from penstock.model.errors import FormatError, VersionUnknown

FRAMES_IN_SECTOR: Final = 4096 // frame_bytes(0)
"""A mark found further on is that of another file, inside a payload."""


@dataclass(slots=True)
class Scanned:
    """A whole file: its bytes, its intact frames and its damage."""

    path: Path
    header: FileHeader
    header_intact: bool
    data: bytes
    found: list[Found]
    damages: list[Damage]

    def body(self, item: Found) -> memoryview:
        start = item.position + FRAME_HEADER_BYTES
        return memoryview(self.data)[start : start + item.header.body_bytes]

    def table(self) -> TableWriter:
        """Where the messages are, from the intact frames."""
        table = TableWriter()
        for item in self.found:
            for extent in extents(item.header, self.body(item)):
                table.add(
                    extent, item.position, item.header.frame_bytes, item.header.first_timestamp
                )
        return table


def scan_file(disk: Disk, path: Path, end: int | None, durable: int) -> Scanned:
    """Scan the first `end` bytes (all without it); raises FormatError when no frame can be told.

    `durable` is the number of frames known from elsewhere to have been acknowledged.
    """
    fd = disk.open_read(path)
    try:
        data = disk.read(fd, disk.size(fd) if end is None else end, 0)
    finally:
        disk.close(fd)
    header, intact = read_header(data, path)
    items = scan(data, header.mark, FILE_HEADER_BYTES)
    found, damages = judge(items, header.first_frame, durable)
    return Scanned(path, header, intact, data, found, damages)


def read_header(data: bytes, path: Path) -> tuple[FileHeader, bool]:
    """The header, and whether its bytes are intact.

    Damaged bytes are replaced by what the name and one of the first frames tell; raises FormatError
    when they do not tell enough.
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
    """The mark of the first intact frame, which a bad sector leaves among the first few."""
    for position in range(FILE_HEADER_BYTES, len(data), ALIGNMENT_BYTES):
        mark = int.from_bytes(data[position : position + 4], "little")
        header = decode_frame_header(data, position, mark)
        if header is not None:
            return mark if 0 <= header.number - first_frame <= FRAMES_IN_SECTOR else None
    return None


def read_checkpoint(disk: Disk, fd: int, mark: int, position: int) -> bytes:
    """Body of the intact checkpoint frame at `position`; raises FormatError."""
    lead = disk.read(fd, FRAME_HEADER_BYTES, position)
    header = decode_frame_header(lead, 0, mark)
    if header is None or header.kind != Kind.CHECKPOINT:
        raise FormatError(f"no checkpoint at byte {position}")
    frame = disk.read(fd, header.frame_bytes, position)
    if not body_intact(frame, 0, header):
        raise FormatError(f"the checkpoint at byte {position} is damaged")
    return frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.body_bytes]
