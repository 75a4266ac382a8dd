"""Bodies of link, delete and checkpoint frames, and the offsets that frames hold.

A body is a MessagePack array of the fields below in their order. A later version appends fields: a
reader ignores fields that it does not know and uses the defaults of fields that are missing. The
body of a settle frame is opaque here (`ledger/settlement.py`).
"""

from __future__ import annotations

from array import array
from typing import Any, Final, TypeVar, cast

import msgspec

from penstock.formats.frames import Buffer, Flag, FrameHeader, Kind
from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange


class DeleteBody(msgspec.Struct, array_like=True, frozen=True):
    """Offsets of one partition that were deleted."""

    start: int
    """New log start offset of the partition; 0 when it does not change."""
    offsets: bytes
    """Roaring bitmap (64 bit, portable serialisation) of single offsets."""
    reason: str
    """For display: `message`, `purge`, `limit`, `retention`, `takeover`, `damage`, `returned`."""
    returned: bytes = b""
    """Roaring bitmap of offsets that are no longer deleted: the disk of a former owner returned,
    and its messages are in objects now.
    """


class ObjectRef(msgspec.Struct, array_like=True, frozen=True):
    """A staged object whose rows get offsets by a link."""

    key: str
    rows: int
    size_bytes: int
    crc32c: int
    etag: str | None = None
    """The store's version of the object, if the writer knows it."""


class LinkPart(msgspec.Struct, array_like=True, frozen=True):
    """Offsets of one partition, and the objects whose rows get them in this order."""

    partition: int
    first_offset: int
    objects: list[ObjectRef]

    @property
    def rows(self) -> int:
        return sum(ref.rows for ref in self.objects)


class LinkBody(msgspec.Struct, array_like=True, frozen=True):
    """Offsets of rows that another engine staged in objects.

    `app` and `epoch` identify the link, so that a retry changes nothing.
    """

    app: str
    epoch: int
    parts: list[LinkPart]
    subjects: bytes = b""
    """Subjects of all rows (formats/link_subjects.py); empty if they have the topic's id."""


ONCE: Final = "once-"
"""Prefix of the names of applications that link only once."""
ONCE_SECONDS: Final = 3600
"""How long such links are remembered; no client retries a link for longer."""
LINK_RANGES_MAX: Final = 1 << 16
"""Partitions for which offsets of links are remembered; of older links only the epoch is."""
LINK_APPS_MAX: Final = 50_000
"""Applications whose last link is remembered; links of more applications are refused."""


class Transaction(msgspec.Struct, array_like=True, frozen=True):
    """The last link of an application: first and next offset by partition."""

    epoch: int
    ranges: dict[int, tuple[int, int]]
    """Empty if many links followed."""
    timestamp: int = 0
    """Time of its frame, in microseconds since 1970."""


class StartBody(msgspec.Struct, array_like=True, frozen=True):
    """First frame of every file: the state of the log, so that earlier files are not needed."""

    topic: str
    last_timestamp: int
    partitions: bytes
    """Partition numbers, uint32 each, ascending."""
    starts: bytes
    """Log start offset of each, int64."""
    nexts: bytes
    """Next offset of each, int64."""
    deleted: dict[int, bytes]
    """Roaring bitmap of deleted offsets of each partition that has any."""
    transactions: dict[str, Transaction]
    lineage: str = ""
    """Identifies the WAL of one machine; a takeover by another machine starts a new lineage."""
    durability: str = "fsync"
    """Durability of the topic: `fsync` or `cloud`."""
    settle_floor: int = -1
    """First frame whose settlements may still be needed; -1 if there is none."""
    floor: int = 0
    """First offset of partitions that are not listed: lower ones may have been used before a
    takeover or damage.
    """


class EndsBody(msgspec.Struct, array_like=True, frozen=True):
    """Checkpoint within a file: ends of the partitions that changed since the last checkpoint."""

    partitions: bytes
    """Partition numbers, uint32 each, ascending."""
    nexts: bytes
    """Next offset of each, int64."""


class SealBody(msgspec.Struct, array_like=True, frozen=True):
    """Last frame of a sealed file."""

    crc32c: int
    """Checksum of every byte of the file before this frame."""
    table: bytes
    """Frame table of the file (formats/frame_table.py)."""


Body = DeleteBody | LinkBody | StartBody | EndsBody | SealBody
_T = TypeVar("_T", DeleteBody, LinkBody, StartBody, EndsBody, SealBody)

# Created at import, in one thread: msgspec inspects a type at its first use without a lock, and
# recovery of logs in several threads crashed the process.
_DECODERS: Final[dict[type[Body], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (DeleteBody, LinkBody, StartBody, EndsBody, SealBody)
}


def encode(body: Body) -> bytes:
    return msgspec.msgpack.encode(body)


def decode(kind: type[_T], data: Buffer) -> _T:
    """Decode a body whose checksum was right; raises FormatError."""
    try:
        return cast(_T, _DECODERS[kind].decode(data))
    except msgspec.DecodeError as error:
        raise FormatError(f"the body is no {kind.__name__}: {error}") from error


def offset_ranges(header: FrameHeader, body: Buffer) -> list[PartitionRange]:
    """The offsets that an intact frame holds, by partition; none for kinds without messages."""
    if header.kind == Kind.BATCH:
        return [PartitionRange(header.partition, header.first_offset, header.next_offset)]
    if header.kind == Kind.LINK:
        return link_ranges(decode(LinkBody, body))
    return []


def checkpoint_ends(header: FrameHeader, body: Buffer) -> dict[int, int]:
    """Next offsets by partition in a checkpoint that is not the first or last frame of a file."""
    if header.kind != Kind.CHECKPOINT or header.flags & (Flag.START | Flag.SEAL) or not body:
        return {}
    ends = decode(EndsBody, body)
    return dict(zip(array("I", ends.partitions), array("q", ends.nexts), strict=True))


def link_ranges(link: LinkBody) -> list[PartitionRange]:
    """The offsets of a link, by partition."""
    return [
        PartitionRange(p.partition, p.first_offset, p.first_offset + p.rows) for p in link.parts
    ]
