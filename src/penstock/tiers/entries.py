"""What the manifest holds: one entry an object, one head a topic; JSON, for people too."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
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
"""By application, epoch and offsets of its last link; no offsets where many came after it."""


class ObjectEntry(msgspec.Struct, frozen=True):
    """An object that counts."""

    object_id: str
    """Its key in the bucket."""
    start_offset: int
    end_offset: int
    """Lowest and highest offset it answers for, over all its partitions."""
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
    """Parquet's own checksums are on pages only; a damaged footer must not get as far as Parquet.
    """
    first_timestamp: int
    last_timestamp: int
    epoch: int
    first_frame: int
    next_frame: int
    raw_size: int = 0
    """Bytes of its columns in memory."""
    schema_crc32c: int = 0
    """Of a typed topic's schema, 0 for raw messages: only objects of one schema are merged."""
    linked: bool = False
    """Whether it is another writer's Parquet file: its rows have no offsets, they are counted from
    the first of the range. Without `footer_bytes` it could not be looked at when it was linked.
    """


GAP_SEQUENCES: Final = 1 << 20
"""Sequence numbers set aside at a takeover for the objects that may fill its gap later."""


GAP_STARTS_MAX: Final = 1000
"""Starts that a gap remembers, the lowest."""


GAPS_MAX: Final = 100
"""Gaps that are remembered, the newest: disks of older owners cannot return their messages."""


class Gap(msgspec.Struct, frozen=True):
    """Offsets that only the disk of a former owner may have messages for."""

    lineage: str
    """The WAL of the former owner."""
    frame: int
    """Frames of that WAL from this one on were not uploaded when the topic was taken over."""
    next: int
    """The first offset behind the gap, in every partition."""
    sequence: int = 0
    """The first of the sequence numbers for objects that fill the gap."""
    known: bytes = b""
    """Roaring bitmap of the partitions that the manifest knew at the takeover. The others start at
    the end of the gap, though nothing in them was purged.
    """
    starts: list[int] = []
    """Where partitions may start because of later takeovers whose gaps are closed, not because
    their messages were purged.
    """


class ReturnedObject(msgspec.Struct, frozen=True):
    """An object made of messages in a gap, proposed by the broker that has the former WAL."""

    entry: ObjectEntry
    deleted: dict[int, bytes] = {}
    """Roaring bitmap, by partition, of offsets in its ranges that were deleted before the gap."""


class ReturnedLog(msgspec.Struct, frozen=True):
    """Completes a proposal: all objects of one WAL are on record."""

    topic: str
    objects: int


class Head(msgspec.Struct, frozen=True):
    """The state of a topic's tiers; it changes in the same transaction as the entries."""

    version: int = MANIFEST_VERSION
    topic: str = ""
    next_sequence: int = 0
    uploaded_frame: int = 0
    """Frames below this are in objects, or hold nothing that goes there."""
    starts: dict[int, int] = {}
    """First offset kept of each partition that does not start at 0."""
    deletes: dict[int, bytes] = {}
    """Roaring bitmap of deleted offsets of each partition that has any."""
    deletes_object: str | None = None
    """Where the bitmaps are when they are too large to stand here."""
    transactions: Transactions = {}
    """Links whose objects are in the manifest. In the metadata each has a record of its own."""
    next_link: int = 0
    """Number of the next such record; those from here on do not count."""
    reserved: int = 0
    """No partition has given out an offset at or above this."""
    epoch: int = 0
    lineage: str = ""
    """The WAL that the frames are counted in."""
    durability: str = "fsync"
    gaps: list[Gap] = []
    """Gaps that a returning disk may still fill, oldest first."""
    change: str = ""
    """Names the last change, so that one whose reply was lost is recognised."""


class LinkRecord(msgspec.Struct, frozen=True):
    """The last link of an application."""

    number: int
    app: str
    epoch: int
    ranges: list[PartitionRange]


class Session(msgspec.Struct, frozen=True):
    """An upload under way."""

    object_id: str
    upload_id: str | None
    last_part: int
    last_committed_offset: int
    entry: ObjectEntry


class Trash(msgspec.Struct, frozen=True):
    """An object that no longer counts and may be removed after `until_us`."""

    object_id: str
    until_us: int
    unfinished: bool = False
    """Whether parts of it may lie in the store, of an upload that was aborted."""


class Snapshot(msgspec.Struct, frozen=True):
    """The whole manifest, as it lies beside the objects."""

    head: Head
    entries: list[ObjectEntry]
    created_us: int


def with_gap(head: Head, gap: Gap) -> Head:
    """The head with a gap that a takeover left, and sequence numbers for what may fill it."""
    if any(known.lineage == gap.lineage for known in head.gaps):
        return head
    gap = msgspec.structs.replace(gap, sequence=head.next_sequence)
    return msgspec.structs.replace(
        head,
        gaps=[*head.gaps, gap][-GAPS_MAX:],
        next_sequence=head.next_sequence + GAP_SEQUENCES,
    )


def separated(entries: Sequence[ObjectEntry], gaps: Iterable[Gap]) -> bool:
    """Whether an open gap lies between any two of these entries."""
    first = min(entry.sequence for entry in entries)
    last = max(entry.sequence for entry in entries)
    return any(first < gap.sequence <= last for gap in gaps)


def encode(
    value: ObjectEntry
    | Head
    | LinkRecord
    | Session
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


def decode_session(data: bytes) -> Session:
    return _decode(data, Session)


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


class EntryIndex:
    """Finds the entry of an offset."""

    def __init__(self, entries: Iterable[ObjectEntry] = ()) -> None:
        self._by_sequence: dict[int, ObjectEntry] = {}
        self._firsts: dict[int, list[int]] = {}
        self._entries: dict[int, list[ObjectEntry]] = {}
        for entry in entries:
            self.add(entry)

    def __iter__(self) -> Iterator[ObjectEntry]:
        return iter(self._by_sequence.values())

    def __len__(self) -> int:
        return len(self._by_sequence)

    def add(self, entry: ObjectEntry) -> None:
        """An entry behind all others of its partitions."""
        self._by_sequence[entry.sequence] = entry
        for span in entry.ranges:
            self._firsts.setdefault(span.partition, []).append(span.first)
            self._entries.setdefault(span.partition, []).append(entry)

    def find(self, partition: int, offset: int) -> tuple[ObjectEntry, PartitionRange] | None:
        """The entry that answers for the offset; None if there is none."""
        firsts = self._firsts.get(partition, [])
        index = bisect_right(firsts, offset) - 1
        if index < 0:
            return None
        entry = self._entries[partition][index]
        span = next(r for r in entry.ranges if r.partition == partition)
        return (entry, span) if offset < span.next else None

    def end(self, partition: int) -> int:
        """The offset behind the last one of the partition that an entry answers for, else 0."""
        entries = self._entries.get(partition)
        return (
            next(r.next for r in entries[-1].ranges if r.partition == partition) if entries else 0
        )

    def next_first(self, partition: int, offset: int) -> int | None:
        """The first offset above `offset` that some entry starts at."""
        firsts = self._firsts.get(partition, [])
        index = bisect_right(firsts, offset)
        return firsts[index] if index < len(firsts) else None


def entry_of(
    key: str,
    facts: ObjectFacts,
    data: Buffer,
    created_us: int,
    backend: str,
    sequence: int,
    raw_size: int,
) -> ObjectEntry:
    """The manifest's entry of an object that is not uploaded yet."""
    start, end = offsets_of(facts.ranges)
    footer = int.from_bytes(data[-8:-4], "little") + 8
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
        footer_bytes=footer,
        footer_crc32c=crc32c(data[-footer:]),
        first_timestamp=facts.first_timestamp,
        last_timestamp=facts.last_timestamp,
        epoch=facts.epoch,
        first_frame=facts.first_frame,
        next_frame=facts.next_frame,
        raw_size=raw_size,
        schema_crc32c=crc32c(facts.schema) if facts.typed else 0,
    )


def offsets_of(ranges: Sequence[PartitionRange]) -> tuple[int, int]:
    """Lowest and highest offset."""
    return min(r.first for r in ranges), max(r.next for r in ranges) - 1


def joined(ranges: Iterable[PartitionRange]) -> list[PartitionRange]:
    """What ranges cover together, one for each partition."""
    spans: dict[int, PartitionRange] = {}
    for span in ranges:
        held = spans.get(span.partition, span)
        first, next_ = min(held.first, span.first), max(held.next, span.next)
        spans[span.partition] = PartitionRange(span.partition, first, next_)
    return [spans[partition] for partition in sorted(spans)]
