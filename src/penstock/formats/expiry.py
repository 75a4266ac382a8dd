"""The expiry table of a stream: a checkpoint file, and run files of messages by due time.

A run file has a header and blocks of `BLOCK_ENTRIES` entries, sorted by due time; only the last
block may be shorter. A block is a CRC32C over its remaining bytes, the due times and the offsets.
The checkpoint is a MessagePack array of its fields, followed by a CRC32C over it (4 bytes, little
endian). A later version appends fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.formats.postings import Int64s
from penstock.model.errors import FormatError, VersionUnknown

VERSION: Final = 1
RUN_MAGIC: Final = b"\x89PSEXP\r\n"
RUN_HEADER: Final = Struct("<8sHHIQ")
BLOCK_ENTRIES: Final = 1024
CRC_BYTES: Final = 4
ENTRY_BYTES: Final = 16
RUN_HEADER_BYTES: Final = RUN_HEADER.size + CRC_BYTES
BLOCK_BYTES: Final = CRC_BYTES + BLOCK_ENTRIES * ENTRY_BYTES
assert RUN_HEADER_BYTES == 28


class RunHeader(NamedTuple):
    """The first bytes of a run file, in stored order."""

    magic: bytes
    version: int
    flags: int
    block_entries: int
    entries: int


class RunInfo(msgspec.Struct, array_like=True, frozen=True):
    """A run file in the checkpoint."""

    number: int
    entries: int
    expired: int
    """The number of its first entries that have expired."""
    next_us: int


class ExpiryCheckpoint(msgspec.Struct, array_like=True, frozen=True):
    """The state of the expiry table at one moment."""

    version: int
    lineage: str
    next_offset: int
    runs: list[RunInfo]


@dataclass(frozen=True, slots=True, eq=False)
class ExpiryEntries:
    """Due times in microseconds since 1970, and the offsets of the messages."""

    dues: Int64s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.dues)

    def part(self, start: int, stop: int) -> ExpiryEntries:
        """Entries `start` up to, not including, `stop`."""
        return ExpiryEntries(self.dues[start:stop], self.offsets[start:stop])

    def chosen(self, mask: npt.NDArray[np.bool_]) -> ExpiryEntries:
        """The entries for which the mask is true."""
        return ExpiryEntries(self.dues[mask], self.offsets[mask])

    def by_due_time(self) -> ExpiryEntries:
        """These entries sorted by due time."""
        order = np.argsort(self.dues, kind="stable")
        return ExpiryEntries(self.dues[order], self.offsets[order])


NO_ENTRIES: Final = ExpiryEntries(np.empty(0, np.int64), np.empty(0, np.int64))


def concatenate(parts: list[ExpiryEntries]) -> ExpiryEntries:
    """All entries of the parts, in the order of the parts."""
    if not parts:
        return NO_ENTRIES
    return ExpiryEntries(
        np.concatenate([part.dues for part in parts]),
        np.concatenate([part.offsets for part in parts]),
    )


def encode_run(entries: ExpiryEntries) -> bytes:
    """The bytes of a run file; the entries are in the order of their due times."""
    header = RUN_HEADER.pack(RUN_MAGIC, VERSION, 0, BLOCK_ENTRIES, len(entries))
    pieces = [_with_crc(header, after=True)]
    for start in range(0, len(entries), BLOCK_ENTRIES):
        block = entries.part(start, start + BLOCK_ENTRIES)
        dues, offsets = block.dues.astype("<i8"), block.offsets.astype("<i8")
        pieces.append(_with_crc(dues.tobytes() + offsets.tobytes(), after=False))
    return b"".join(pieces)


def run_bytes(entries: int) -> int:
    """The size of a run file with this number of entries."""
    blocks = -(-entries // BLOCK_ENTRIES)
    return RUN_HEADER_BYTES + blocks * CRC_BYTES + entries * ENTRY_BYTES


def block_range(entries: int, block: int) -> tuple[int, int]:
    """Position and size of a block in a run file with this number of entries."""
    position = RUN_HEADER_BYTES + block * BLOCK_BYTES
    held = min(BLOCK_ENTRIES, entries - block * BLOCK_ENTRIES)
    return position, CRC_BYTES + held * ENTRY_BYTES


def check_run_header(data: bytes, entries: int) -> None:
    """Raise FormatError unless these bytes start a run file with this number of entries."""
    fields, checksum = data[: RUN_HEADER.size], data[RUN_HEADER.size : RUN_HEADER_BYTES]
    if len(data) < RUN_HEADER_BYTES or _crc(fields) != checksum:
        raise FormatError("the header of an expiry run is damaged")
    header = RunHeader._make(RUN_HEADER.unpack(fields))
    if header.magic != RUN_MAGIC or header.version != VERSION:
        raise VersionUnknown("an expiry run", header.version, VERSION)
    if header.entries != entries or header.block_entries != BLOCK_ENTRIES:
        raise FormatError("an expiry run is not the one that the checkpoint names")


def decode_block(data: bytes, size: int) -> ExpiryEntries:
    """The entries of a block of `size` bytes; raises FormatError."""
    body = memoryview(data)[CRC_BYTES:]
    if len(data) != size or _crc(body) != data[:CRC_BYTES]:
        raise FormatError("a block of an expiry run is damaged")
    values = np.frombuffer(body, "<i8").astype(np.int64)
    return ExpiryEntries(*np.split(values, 2))


def encode_checkpoint(checkpoint: ExpiryCheckpoint) -> bytes:
    """The bytes of the checkpoint file."""
    return _with_crc(msgspec.msgpack.encode(checkpoint), after=True)


def decode_checkpoint(data: bytes) -> ExpiryCheckpoint:
    """The checkpoint in the bytes of its file; raises FormatError."""
    body, checksum = data[:-CRC_BYTES], data[-CRC_BYTES:]
    if len(data) <= CRC_BYTES or _crc(body) != checksum:
        raise FormatError("the expiry checkpoint is damaged")
    try:
        checkpoint = msgspec.msgpack.decode(body, type=ExpiryCheckpoint)
    except msgspec.DecodeError as error:
        raise FormatError(f"the expiry checkpoint is damaged: {error}") from error
    if checkpoint.version > VERSION:
        raise VersionUnknown("the expiry checkpoint", checkpoint.version, VERSION)
    return checkpoint


def _with_crc(data: bytes, *, after: bool) -> bytes:
    return data + _crc(data) if after else _crc(data) + data


def _crc(data: bytes | memoryview) -> bytes:
    return crc32c(data).to_bytes(CRC_BYTES, "little")
