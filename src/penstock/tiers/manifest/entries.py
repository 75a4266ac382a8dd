"""The records of a manifest: one entry for each object, one head for each topic. Stored as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from penstock.formats.objects import ObjectFacts
from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.units import PartitionRange
from penstock.objects import Buffer

MANIFEST_VERSION: Final = 2
_T = TypeVar("_T")

Transactions = dict[str, tuple[int, dict[int, tuple[int, int]]]]
"""The last link of each application: its epoch, and its offsets by partition.

The offsets are missing if many links followed it.
"""


class ObjectEntry(msgspec.Struct, frozen=True):
    """An object in the manifest."""

    object_id: str
    """Its key in the bucket."""
    start_offset: int
    end_offset: int
    """The lowest and the highest offset that it covers, over all its partitions."""
    size: int
    etag: str | None
    created_at: int
    """Microseconds since 1970."""
    completed: bool
    upload_id: str | None
    backend: str
    sequence: int
    ranges: list[PartitionRange]
    rows: int
    crc32c: int
    footer_bytes: int
    footer_crc32c: int
    """The checksums of Parquet cover pages only; a damaged footer must not reach its parser."""
    first_timestamp: int
    last_timestamp: int
    epoch: int
    first_frame: int
    next_frame: int
    raw_size: int = 0
    """The size of its columns in memory."""
    schema_crc32c: int = 0
    """The checksum of a typed topic's schema, 0 for raw messages; a merge needs equal schemas."""
    linked: bool = False
    """Whether another engine wrote it: its rows have no offsets and are counted from the start of
    the range. `footer_bytes` is 0 if it could not be read when it was linked.
    """


GAP_SEQUENCES: Final = 1 << 20
"""Sequence numbers that a takeover reserves for the objects that may fill its gap later."""


GAP_STARTS_MAX: Final = 1000
"""How many starts a gap records: the lowest ones."""


GAPS_MAX: Final = 100
"""How many gaps a head records: the newest ones. Older disks cannot return their messages."""


class Gap(msgspec.Struct, frozen=True):
    """Offsets whose messages are on the disk of a former owner only, if anywhere."""

    lineage: str
    """The WAL of the former owner."""
    frame: int
    """The first frame of that WAL that was not uploaded at the takeover."""
    next: int
    """The first offset after the gap, in every partition."""
    sequence: int = 0
    """The first of the sequence numbers for objects that fill the gap."""
    known: bytes = b""
    """Roaring bitmap of the partitions that the manifest had at the takeover. All others start at
    the end of the gap, although nothing in them was purged.
    """
    starts: list[int] = []
    """Offsets where partitions may start because of later takeovers whose gaps are closed, and not
    because of a purge.
    """


class ReturnedObject(msgspec.Struct, frozen=True):
    """An object made from messages in a gap, proposed by the broker that has the former WAL."""

    entry: ObjectEntry
    deleted: dict[int, bytes] = {}
    """Roaring bitmap, by partition, of offsets in its ranges that the former owner deleted."""


class ReturnedLog(msgspec.Struct, frozen=True):
    """Completes a proposal: all objects of one WAL are recorded."""

    topic: str
    objects: int


class Head(msgspec.Struct, frozen=True):
    """The state of a topic's manifest; it changes in the same transaction as the entries."""

    version: int = MANIFEST_VERSION
    topic: str = ""
    next_sequence: int = 0
    uploaded_frame: int = 0
    """Frames below this one are in objects, or contain nothing to upload."""
    starts: dict[int, int] = {}
    """The log start offset of each partition that does not start at 0."""
    deletes: dict[int, bytes] = {}
    """Delete vectors: a roaring bitmap of deleted offsets for each partition that has any."""
    deletes_object: str | None = None
    """The object with the delete vectors if they are too large for the head."""
    transactions: Transactions = {}
    """Links whose objects are in the manifest. In the metadata each has a record of its own."""
    next_link: int = 0
    """The number of the next link record; records from this number on are ignored."""
    reserved: int = 0
    """No partition has assigned an offset at or above this one."""
    epoch: int = 0
    lineage: str = ""
    """The WAL that the frame numbers refer to."""
    durability: str = "fsync"
    gaps: list[Gap] = []
    """Gaps that a returning disk may still fill, oldest first."""
    change: str = ""
    """The unique name of the last change, which identifies a change whose reply was lost."""


class LinkRecord(msgspec.Struct, frozen=True):
    """The last link of an application."""

    number: int
    app: str
    epoch: int
    ranges: list[PartitionRange]


class UploadSession(msgspec.Struct, frozen=True):
    """An upload that has begun and is not in the manifest yet."""

    object_id: str
    upload_id: str | None
    last_part: int
    last_committed_offset: int
    entry: ObjectEntry


class Trash(msgspec.Struct, frozen=True):
    """An object that is no longer in the manifest and may be deleted after `until_us`."""

    object_id: str
    until_us: int
    unfinished: bool = False
    """Whether the store may hold parts of it, from an upload that was aborted."""


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of the whole manifest, stored in the bucket beside the objects."""

    head: Head
    entries: list[ObjectEntry]
    created_us: int


def with_gap(head: Head, gap: Gap) -> Head:
    """The head with the gap of a takeover, and sequence numbers reserved for filling it."""
    if any(known.lineage == gap.lineage for known in head.gaps):
        return head
    gap = msgspec.structs.replace(gap, sequence=head.next_sequence)
    return msgspec.structs.replace(
        head,
        gaps=[*head.gaps, gap][-GAPS_MAX:],
        next_sequence=head.next_sequence + GAP_SEQUENCES,
    )


def are_separated(entries: Sequence[ObjectEntry], gaps: Iterable[Gap]) -> bool:
    """Whether an open gap lies between any two of these entries."""
    first = min(entry.sequence for entry in entries)
    last = max(entry.sequence for entry in entries)
    return any(first < gap.sequence <= last for gap in gaps)


def encode_record(
    value: ObjectEntry
    | Head
    | LinkRecord
    | UploadSession
    | Trash
    | Snapshot
    | ReturnedObject
    | ReturnedLog,
) -> bytes:
    return msgspec.json.encode(value)


def decode_head(data: bytes) -> Head:
    head = _decode(data, Head)
    if head.version > MANIFEST_VERSION:
        raise VersionUnknown("the manifest", head.version, MANIFEST_VERSION)
    return head


def decode_entry(data: bytes) -> ObjectEntry:
    return _decode(data, ObjectEntry)


def decode_link(data: bytes) -> LinkRecord:
    return _decode(data, LinkRecord)


def decode_session(data: bytes) -> UploadSession:
    return _decode(data, UploadSession)


def decode_trash(data: bytes) -> Trash:
    return _decode(data, Trash)


def decode_returned_object(data: bytes) -> ReturnedObject:
    return _decode(data, ReturnedObject)


def decode_returned_log(data: bytes) -> ReturnedLog:
    return _decode(data, ReturnedLog)


def decode_snapshot(data: bytes) -> Snapshot:
    snapshot = _decode(data, Snapshot)
    if snapshot.head.version > MANIFEST_VERSION:
        raise VersionUnknown("the manifest", snapshot.head.version, MANIFEST_VERSION)
    return snapshot


def _decode(data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise FormatError(f"the manifest is damaged: no {kind.__name__}: {error}") from error


def new_entry(
    key: str,
    facts: ObjectFacts,
    data: Buffer,
    created_us: int,
    backend: str,
    sequence: int,
    raw_size: int,
) -> ObjectEntry:
    """The manifest entry of an object that is encoded but not uploaded yet."""
    start, end = offset_bounds(facts.ranges)
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    return ObjectEntry(
        object_id=key,
        start_offset=start,
        end_offset=end,
        size=len(data),
        etag=None,
        created_at=created_us,
        completed=True,
        upload_id=None,
        backend=backend,
        sequence=sequence,
        ranges=facts.ranges,
        rows=facts.rows,
        crc32c=crc32c(data),
        footer_bytes=footer_bytes,
        footer_crc32c=crc32c(data[-footer_bytes:]),
        first_timestamp=facts.first_timestamp,
        last_timestamp=facts.last_timestamp,
        epoch=facts.epoch,
        first_frame=facts.first_frame,
        next_frame=facts.next_frame,
        raw_size=raw_size,
        schema_crc32c=crc32c(facts.schema) if facts.typed else 0,
    )


def offset_bounds(ranges: Sequence[PartitionRange]) -> tuple[int, int]:
    """The lowest and the highest offset of these ranges."""
    return min(r.first for r in ranges), max(r.next for r in ranges) - 1


def joined_ranges(ranges: Iterable[PartitionRange]) -> list[PartitionRange]:
    """One range for each partition, from its lowest to its highest offset."""
    by_partition: dict[int, PartitionRange] = {}
    for span in ranges:
        known = by_partition.get(span.partition, span)
        first, next_ = min(known.first, span.first), max(known.next, span.next)
        by_partition[span.partition] = PartitionRange(span.partition, first, next_)
    return [by_partition[partition] for partition in sorted(by_partition)]
