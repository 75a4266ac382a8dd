"""The manifest beside the objects, and the way back from a bucket alone.

A snapshot is the whole manifest as one object: size (uint64) and CRC32C (uint32, little-endian) of
its JSON, then that, zstd-compressed. Rebuilding takes the newest one of the latest owner and the
objects that were made after it: an object tells which frames it holds, so that the ones that follow
one another without overlap are the manifest, whatever else lies in the bucket (uploads that were
never committed, merged ones that still wait in the trash).
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
from penstock.tiers import entries as forms
from penstock.tiers.entries import Head, ObjectEntry, Snapshot

SNAPSHOTS_KEPT: Final = 3
SNAPSHOT_BYTES_MAX: Final = 1 << 30
CREATED_DIGITS: Final = 17
_NAME: Final = "manifest-"
_LEAD: Final = struct.Struct("<QI")
_events = structlog.get_logger(__name__)


def snapshot_key(topic: TopicName, created_us: int, unique: str) -> str:
    return f"{topic_prefix(topic)}{_NAME}{created_us:0{CREATED_DIGITS}d}-{unique}.json.zst"


async def write(store: ObjectStore, topic: TopicName, snapshot: Snapshot, unique: str) -> str:
    """Put a snapshot and remove all but the newest few; its key.

    It is newer than those that are there, also where the clock was set back since.
    """
    old = sorted([info.key async for info in store.list(f"{topic_prefix(topic)}{_NAME}")])
    latest_us = max(map(_created_us, old), default=0)
    created_us = max(snapshot.created_us, latest_us + 1)
    data = forms.encode(msgspec.structs.replace(snapshot, created_us=created_us))
    packed = pa.compress(data, codec="zstd", asbytes=True)
    key = snapshot_key(topic, created_us, unique)
    await store.put(key, [_LEAD.pack(len(data), crc32c(data)), packed])
    for name in old[: 1 - SNAPSHOTS_KEPT]:
        await store.delete(name)
    return key


def _created_us(key: str) -> int:
    """As the name tells."""
    time = key.rpartition(f"/{_NAME}")[2].partition("-")[0]
    return int(time) if time.isdecimal() and len(time) == CREATED_DIGITS else 0


async def newest(store: ObjectStore, topic: TopicName) -> Snapshot | None:
    """The newest snapshot of the latest owner, None if there is none; damaged ones do not count.

    A deposed owner may have written one after its successor did. Raises FormatError when all are
    damaged.
    """
    keys = [info.key async for info in store.list(f"{topic_prefix(topic)}{_NAME}")]
    found = []
    for key in keys:
        try:
            found.append(_decode(await store.get(key)))
        except VersionUnknown:
            raise
        except FormatError as error:
            _events.error("snapshot_damaged", object=key, reason=str(error))
    if keys and not found:
        raise FormatError(f"all snapshots of topic {topic} are damaged")
    return max(found, key=lambda content: (content.head.epoch, content.created_us), default=None)


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
    return forms.decode_snapshot(body)


def cover(candidates: Iterable[ObjectEntry], base: Snapshot) -> list[ObjectEntry]:
    """Objects that go on where a manifest ends, each offset once.

    What an older owner uploaded and a later one overlaps was never committed. Of the rest, at every
    frame the one that reaches farthest is taken. Frames that no object has are passed over: they
    are deletions and the like.
    """
    waiting = deque(_committed([e for e in candidates if e.epoch >= base.head.epoch]))
    chosen: list[ObjectEntry] = []
    frame, best = base.head.uploaded_frame, None
    ends = {span.partition: span.next for entry in base.entries for span in entry.ranges}
    while waiting or best is not None:
        while waiting and waiting[0].first_frame <= frame:
            best = _farther(best, waiting.popleft())
        if best is None or best.next_frame <= frame:
            frame, best = waiting[0].first_frame if waiting else frame, None
            continue
        frame, ranges = best.next_frame, _behind(best.ranges, ends)
        if ranges:
            start, end = forms.offsets_of(ranges)
            chosen.append(
                msgspec.structs.replace(best, ranges=ranges, start_offset=start, end_offset=end)
            )
            ends |= {span.partition: span.next for span in ranges}
    return chosen


def _committed(candidates: list[ObjectEntry]) -> list[ObjectEntry]:
    """Those that end before any later owner's object begins, by the frames they begin with."""
    kept = []
    begun = math.inf
    for epoch in sorted({entry.epoch for entry in candidates}, reverse=True):
        mine = [entry for entry in candidates if entry.epoch == epoch and entry.next_frame <= begun]
        begun = min([begun, *(entry.first_frame for entry in mine)])
        kept += mine
    return sorted(kept, key=lambda entry: entry.first_frame)


def _farther(one: ObjectEntry | None, other: ObjectEntry) -> ObjectEntry:
    """The one that reaches farther; of equals the younger, since a failed upload is redone."""
    if one is None:
        return other
    return max(other, one, key=lambda entry: (entry.next_frame, entry.created_at))


def _behind(ranges: Iterable[PartitionRange], ends: Mapping[int, int]) -> list[PartitionRange]:
    """The ranges without the offsets that earlier objects answer for."""
    return [
        PartitionRange(s.partition, max(s.first, ends.get(s.partition, 0)), s.next)
        for s in ranges
        if s.next > ends.get(s.partition, 0)
    ]


def rebuilt(snapshot: Snapshot | None, head: Head, later: Iterable[ObjectEntry]) -> Snapshot:
    """The manifest from a snapshot and the objects made since; `head` is used without one."""
    base = snapshot or Snapshot(head, [], 0)
    added = cover(later, base)
    # Entries of the snapshot keep their numbers: gaps have some set aside between them.
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
