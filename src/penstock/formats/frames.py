"""The WAL file header and the frame: layouts, checksums, encoding and decoding.

A file is a header of 64 bytes followed by frames. A frame is a header of 64 bytes, a body, zero
padding to a multiple of 8 and a CRC. There are two checksums: one over the frame header alone, so
that a reader can trust the length and skip a damaged body, and one over header, body and padding.
Every frame starts with the *mark*, a random number of its file. A reader searches for it to find
the next frame after damage; a frame of another file within a payload has another mark.
`docs/formats.md` has these tables, too; a test compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.formats import checksum
from penstock.model.errors import FormatError, VersionUnknown

Buffer = bytes | bytearray | memoryview

FILE_MAGIC: Final = b"\x89PSWAL\r\n"
FILE_VERSION: Final = 1
BODY_BYTES_MAX: Final = 192 << 20
"""More than the largest run with its offsets needs; a larger length in a header is damage."""
ENTRIES_MAX: Final = (1 << 32) - 1
"""Largest count in a frame header."""


class Kind(IntEnum):
    """The kind of a frame."""

    BATCH = 1
    LINK = 2
    DELETE = 3
    SETTLE = 4
    CHECKPOINT = 5


class Codec(IntEnum):
    """The layout of a body."""

    NATIVE = 0
    """The layout of link, delete, settle and checkpoint bodies."""
    PACKED = 1
    ARROW = 2


class Flag:
    """Bits of a frame's flags; plain integers, because an IntFlag costs a microsecond per frame."""

    SAME_SUBJECT: Final = 1
    """batch, packed: one subject for all messages"""
    HEADERS: Final = 2
    """batch, packed: a column of header blocks"""
    TIMESTAMPS: Final = 4
    """batch: each message has its own timestamp"""
    START: Final = 16
    """checkpoint: first frame of a file, with the state of the log"""
    SEAL: Final = 32
    """checkpoint: last frame of a file, with its checksum and frame table"""
    CLOSE: Final = 64
    """checkpoint: written at shutdown"""


class FileHeader(NamedTuple):
    """Fields of a file header in stored order; a CRC over them follows."""

    magic: bytes
    version: int
    flags: int
    mark: int
    sequence: int
    first_frame: int
    created_us: int
    previous_end: int
    """Durable bytes of the previous file; later bytes of it were never acknowledged. 0 if there
    is no previous file.
    """
    previous_seal: int
    """Position of the seal of the previous file; 0 if it is not sealed."""
    previous_back: int
    """Distance of the previous file in sequence numbers; 0 if there is none."""


FILE_HEADER: Final = struct.Struct("<8sHHIQQqQQI")
FILE_HEADER_BYTES: Final = FILE_HEADER.size + 4
assert FILE_HEADER_BYTES == 64, FILE_HEADER_BYTES


class FrameHeader(NamedTuple):
    """Fields of a frame header in stored order; a CRC over them follows."""

    mark: int
    body_bytes: int
    kind: int
    codec: int
    flags: int
    partition: int
    number: int
    durable: int
    """Frames with lower numbers were durable when this frame was written."""
    epoch: int
    first_offset: int
    first_timestamp: int
    entries: int
    """Messages of a batch, rows of a link, settlements of a settle."""

    @property
    def frame_bytes(self) -> int:
        return frame_bytes(self.body_bytes)

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.entries


FRAME_HEADER: Final = struct.Struct("<IIBBHIQQQqqI")
FRAME_HEADER_BYTES: Final = FRAME_HEADER.size + 4
FRAME_TRAILER_BYTES: Final = 4
FRAME_BARE_BYTES: Final = FRAME_HEADER_BYTES + FRAME_TRAILER_BYTES
ALIGNMENT_BYTES: Final = 8
assert FRAME_HEADER_BYTES == 64, FRAME_HEADER_BYTES

JOINED_BYTES_MAX: Final = 2048
"""Largest body that is copied into one piece, which costs less than several pieces."""

JOINED_CHECKSUM_BYTES_MIN: Final = 64 << 10
"""Smallest body whose checksum is combined, which costs less than to read the bytes again."""

_U32: Final = struct.Struct("<I")
_LEAD: Final = struct.Struct(f"<II{FRAME_HEADER.size - 8}xI")
"""Fields of a frame header to check first: mark, length of the body, CRC."""
_RESIDUE: Final = 0x48674BC7
"""The CRC32C of any bytes that end in their own CRC32C."""
_ZEROS: Final = [bytes(n) for n in range(ALIGNMENT_BYTES)]


def frame_bytes(body_bytes: int) -> int:
    """Size of a frame with a body of this size."""
    bare = body_bytes + FRAME_BARE_BYTES
    return bare + -bare % ALIGNMENT_BYTES


FRAME_BYTES_MIN: Final = frame_bytes(0)


def encode_file_header(header: FileHeader) -> bytes:
    fields = FILE_HEADER.pack(*header)
    return fields + _U32.pack(crc32c(fields))


def decode_file_header(data: Buffer) -> FileHeader:
    """The header at the start of a WAL file; raises FormatError, or VersionUnknown."""
    if len(data) < FILE_HEADER_BYTES:
        raise FormatError(f"a WAL file header has {FILE_HEADER_BYTES} bytes, found {len(data)}")
    fields = bytes(data[: FILE_HEADER.size])
    if fields[:8] != FILE_MAGIC:
        raise FormatError("not a WAL file: the magic bytes are wrong")
    if crc32c(fields) != _U32.unpack_from(data, FILE_HEADER.size)[0]:
        raise FormatError("the checksum of the WAL file header is wrong")
    header = FileHeader(*FILE_HEADER.unpack(fields))
    if header.version > FILE_VERSION:
        raise VersionUnknown("the WAL file", header.version, FILE_VERSION)
    return header


def encode_frame(
    header: FrameHeader, body: Sequence[Buffer], body_crc: int | None = None
) -> list[Buffer]:
    """The frame as pieces to write in order. `body_bytes` of the header must be set.

    `body_crc` is the checksum of the body, if the caller knows it.
    """
    fields = FRAME_HEADER.pack(*header)
    header_crc = crc = crc32c(fields)
    bare = header.body_bytes + FRAME_BARE_BYTES
    padding = _ZEROS[-bare % ALIGNMENT_BYTES]
    if header.body_bytes <= JOINED_BYTES_MAX:
        content = b"".join((*body, padding))
        return [fields + _U32.pack(header_crc) + content + _U32.pack(crc32c(content, header_crc))]
    if body_crc is not None:
        crc = checksum.joined(crc, body_crc, header.body_bytes)
    else:
        for piece in body:
            crc = crc32c(piece, crc)
    trailer = padding + _U32.pack(crc32c(padding, crc))
    return [fields + _U32.pack(header_crc), *body, trailer]


def file_checksum(
    crc: int, header: FrameHeader, pieces: Sequence[Buffer], body_crc: int | None
) -> int:
    """The checksum of a file after a frame is appended; `crc` is the checksum before.

    `pieces` and `body_crc` are those of `encode_frame`.
    """
    if body_crc is not None:
        crc = checksum.joined(crc32c(pieces[0], crc), body_crc, header.body_bytes)
        pieces = pieces[-1:]
    for piece in pieces:
        crc = crc32c(piece, crc)
    return crc


def decode_frame_header(data: Buffer, position: int, mark: int) -> FrameHeader | None:
    """The frame header at `position`, or None if there is no intact one with this mark."""
    stop = position + FRAME_HEADER.size
    if stop + 4 > len(data):
        return None
    header = FrameHeader._make(FRAME_HEADER.unpack_from(data, position))
    if header.mark != mark or header.body_bytes > BODY_BYTES_MAX:
        return None
    if crc32c(data[position:stop]) != _U32.unpack_from(data, stop)[0]:
        return None
    return header


def body_intact(data: Buffer, position: int, header: FrameHeader) -> bool:
    """Whether the whole frame at `position` is in `data` and its CRC is right."""
    end = position + header.frame_bytes
    if end > len(data):
        return False
    body = position + FRAME_HEADER_BYTES
    crc = crc32c(data[body : end - 4], _U32.unpack_from(data, body - 4)[0])
    return bool(crc == _U32.unpack_from(data, end - 4)[0])


def intact_frames(data: Buffer, mark: int, position: int, count_max: int) -> tuple[list[int], int]:
    """Positions of consecutive intact frames from `position` on, and the end of the last one."""
    view, size, lead_of = memoryview(data), len(data), _LEAD.unpack_from
    positions: list[int] = []
    while position + FRAME_BYTES_MIN <= size and len(positions) < count_max:
        frame_mark, body_bytes, header_crc = lead_of(data, position)
        if frame_mark != mark or body_bytes > BODY_BYTES_MAX:
            break
        body, bare = position + FRAME_HEADER_BYTES, body_bytes + FRAME_BARE_BYTES
        end = position + bare + -bare % ALIGNMENT_BYTES
        if end > size or crc32c(view[position : body - 4]) != header_crc:
            break
        if crc32c(view[body:end], header_crc) != _RESIDUE:
            break
        positions.append(position)
        position = end
    return positions, position
