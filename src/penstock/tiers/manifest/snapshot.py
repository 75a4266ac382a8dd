"""Snapshots of the manifest in the bucket, and the reconstruction of a manifest from them.

A snapshot is the whole manifest in one object: the size (uint64) and the CRC32C (uint32, both
little-endian) of its JSON, then the JSON, zstd-compressed. Reconstruction takes the newest snapshot
of the latest owner and the objects that were written after it. Each object states which frames it
contains: those that follow one another without overlap are the manifest, whatever else the bucket
contains (uploads that were never committed, merged objects that are still in the trash).
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa
import structlog
from crc32c import crc32c

from penstock.formats.objects import topic_prefix
from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.objects import ObjectStore
from penstock.tiers.manifest.entries import (
    Head,
    ObjectEntry,
    Snapshot,
    decode_snapshot,
    encode_record,
    offset_bounds,
)

SNAPSHOTS_MAX: Final = 3
"""How many snapshots of a topic remain in the bucket."""
SNAPSHOT_BYTES_MAX: Final = 1 << 30
CREATED_DIGITS: Final = 17
_NAME: Final = "manifest-"
_LEAD: Final = struct.Struct("<QI")
_events = structlog.get_logger(__name__)


def snapshot_key(topic: TopicName, created_us: int, unique: str) -> str:
    return f"{topic_prefix(topic)}{_NAME}{created_us:0{CREATED_DIGITS}d}-{unique}.json.zst"


async def write(store: ObjectStore, topic: TopicName, snapshot: Snapshot, unique: str) -> str:
    """Put a snapshot and delete all but the newest few; returns its key.

    Its time is later than that of every other snapshot, even if the clock was set back.
    """
    older = sorted([info.key async for info in store.list(f"{topic_prefix(topic)}{_NAME}")])
    latest_us = max(map(_created_us, older), default=0)
    created_us = max(snapshot.created_us, latest_us + 1)
    data = encode_record(msgspec.structs.replace(snapshot, created_us=created_us))
    packed = pa.compress(data, codec="zstd", asbytes=True)
    key = snapshot_key(topic, created_us, unique)
    await store.put(key, [_LEAD.pack(len(data), crc32c(data)), packed])
    for name in older[: 1 - SNAPSHOTS_MAX]:
        await store.delete(name)
    return key


def _created_us(key: str) -> int:
    """The creation time in the name of a snapshot; 0 if it has none."""
    time = key.rpartition(f"/{_NAME}")[2].partition("-")[0]
    return int(time) if time.isdecimal() and len(time) == CREATED_DIGITS else 0


async def newest(store: ObjectStore, topic: TopicName) -> Snapshot | None:
    """The newest undamaged snapshot of the latest owner; None if there is no snapshot.

    A deposed owner may have written a newer one than its successor. Raises FormatError if all are
    damaged.
    """
    keys = [info.key async for info in store.list(f"{topic_prefix(topic)}{_NAME}")]
    snapshots = []
    for key in keys:
        try:
            snapshots.append(_decode(await store.get(key)))
        except VersionUnknown:
            raise
        except FormatError as error:
            _events.error("snapshot_damaged", object=key, reason=str(error))
    if keys and not snapshots:
        raise FormatError(f"all snapshots of topic {topic} are damaged")
    return max(
        snapshots, key=lambda snapshot: (snapshot.head.epoch, snapshot.created_us), default=None
    )


def _decode(data: bytes) -> Snapshot:
    if len(data) < _LEAD.size:
        raise FormatError("the snapshot is cut short")
    size, crc = _LEAD.unpack_from(data)
    if size > SNAPSHOT_BYTES_MAX:
        raise FormatError(f"the snapshot has {size} bytes, SNAPSHOT_BYTES_MAX is exceeded")
    try:
        body = pa.decompress(data[_LEAD.size :], codec="zstd", decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"the snapshot cannot be decompressed: {error}") from error
    if crc32c(body) != crc:
        raise FormatError("the snapshot's checksum is wrong")
    return decode_snapshot(body)


def cover(candidates: Iterable[ObjectEntry], base: Snapshot) -> list[ObjectEntry]:
    """The objects that continue a manifest, with each offset covered once.

    An older owner's object that a later owner's overlaps was never committed. Of the remaining ones
    that begin at a frame, the one that reaches farthest is chosen. Frames without an object are
    skipped: they are deletions and the like.
    """
    waiting = deque(_committed([e for e in candidates if e.epoch >= base.head.epoch]))
    chosen: list[ObjectEntry] = []
    frame, best = base.head.uploaded_frame, None
    ends = {span.partition: span.next for entry in base.entries for span in entry.ranges}
    while waiting or best is not None:
        while waiting and waiting[0].first_frame <= frame:
            best = _farthest(best, waiting.popleft())
        if best is None or best.next_frame <= frame:
            frame, best = waiting[0].first_frame if waiting else frame, None
            continue
        frame, ranges = best.next_frame, _uncovered(best.ranges, ends)
        if ranges:
            start, end = offset_bounds(ranges)
            chosen.append(
                msgspec.structs.replace(best, ranges=ranges, start_offset=start, end_offset=end)
            )
            ends |= {span.partition: span.next for span in ranges}
    return chosen


def _committed(candidates: list[ObjectEntry]) -> list[ObjectEntry]:
    """The objects that end before any later owner's object begins, ordered by first frame."""
    committed = []
    successor_frame = math.inf
    for epoch in sorted({entry.epoch for entry in candidates}, reverse=True):
        of_epoch = [
            entry
            for entry in candidates
            if entry.epoch == epoch and entry.next_frame <= successor_frame
        ]
        successor_frame = min([successor_frame, *(entry.first_frame for entry in of_epoch)])
        committed += of_epoch
    return sorted(committed, key=lambda entry: entry.first_frame)


def _farthest(best: ObjectEntry | None, other: ObjectEntry) -> ObjectEntry:
    """The entry that reaches farther; of equals the later one, which repeats a failed upload."""
    if best is None:
        return other
    return max(other, best, key=lambda entry: (entry.next_frame, entry.created_at))


def _uncovered(ranges: Iterable[PartitionRange], ends: Mapping[int, int]) -> list[PartitionRange]:
    """The ranges without the offsets that earlier objects cover."""
    return [
        PartitionRange(s.partition, max(s.first, ends.get(s.partition, 0)), s.next)
        for s in ranges
        if s.next > ends.get(s.partition, 0)
    ]


def rebuilt(snapshot: Snapshot | None, head: Head, later: Iterable[ObjectEntry]) -> Snapshot:
    """The manifest from a snapshot, or else from `head`, and the objects written since."""
    base = snapshot or Snapshot(head, [], 0)
    added = cover(later, base)
    # Entries of the snapshot keep their numbers: some numbers between them are reserved for gaps.
    first = max([base.head.next_sequence, *(entry.sequence + 1 for entry in base.entries)])
    numbered = [
        *base.entries,
        *(
            msgspec.structs.replace(entry, sequence=first + number)
            for number, entry in enumerate(added)
        ),
    ]
    highest = max((s.next for e in numbered for s in e.ranges), default=0)
    head = msgspec.structs.replace(
        base.head,
        next_sequence=first + len(added),
        uploaded_frame=max([base.head.uploaded_frame, *(entry.next_frame for entry in added)]),
        reserved=max(base.head.reserved, highest),
    )
    return Snapshot(head, numbered, base.created_us)
