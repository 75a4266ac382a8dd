"""The manifest beside the objects, and the way back from a bucket alone.

A snapshot is the whole manifest as one object, zstd-compressed JSON. Rebuilding takes the newest
one and the objects that were made after it: an object tells which frames it holds, so that the ones
that follow one another without overlap are the manifest, whatever else lies in the bucket (uploads
that were never committed, merged ones that still wait in the trash).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa

from penstock.formats.objects import Range, topic_prefix
from penstock.model.names import TopicName
from penstock.objects.interface import ObjectStore
from penstock.tiers import entries as forms
from penstock.tiers.entries import Head, ObjectEntry, Snapshot

SNAPSHOTS_KEPT: Final = 3
_NAME: Final = "manifest-"


def snapshot_key(topic: TopicName, created_us: int, unique: str) -> str:
    return f"{topic_prefix(topic)}{_NAME}{created_us:017d}-{unique}.json.zst"


async def write(store: ObjectStore, topic: TopicName, snapshot: Snapshot, unique: str) -> str:
    """Put a snapshot and remove all but the newest few; its key."""
    data = forms.encode(snapshot)
    packed = pa.compress(data, codec="zstd", asbytes=True)
    key = snapshot_key(topic, snapshot.created_us, unique)
    await store.put(key, [len(data).to_bytes(8, "little"), packed])
    old = [info.key async for info in store.list(f"{topic_prefix(topic)}{_NAME}")]
    for name in sorted(old)[:-SNAPSHOTS_KEPT]:
        await store.delete(name)
    return key


async def newest(store: ObjectStore, topic: TopicName) -> Snapshot | None:
    """The newest snapshot in the bucket, None if there is none."""
    keys = [info.key async for info in store.list(f"{topic_prefix(topic)}{_NAME}")]
    if not keys:
        return None
    data = await store.get(max(keys))
    size = int.from_bytes(data[:8], "little")
    return forms.decode_snapshot(
        pa.decompress(data[8:], codec="zstd", decompressed_size=size, asbytes=True)
    )


def cover(candidates: Iterable[ObjectEntry], first_frame: int) -> list[ObjectEntry]:
    """Objects that hold the frames from `first_frame` on, each frame once.

    At every frame the one that reaches farthest is taken, of the newest owner that has any: what an
    older owner uploaded behind that point was never committed.
    """
    pool = list(candidates)
    chosen: list[ObjectEntry] = []
    frame, epoch = first_frame, 0
    while True:
        here = [e for e in pool if e.first_frame <= frame < e.next_frame and e.epoch >= epoch]
        if not here:
            return chosen
        best = max(here, key=lambda entry: (entry.epoch, entry.next_frame))
        frame, epoch = best.next_frame, best.epoch
        chosen.append(_trimmed(best, chosen))


def _trimmed(entry: ObjectEntry, before: list[ObjectEntry]) -> ObjectEntry:
    """The entry without the offsets that earlier ones answer for."""
    ends = {span.partition: span.next for e in before for span in e.ranges}
    ranges = [
        Range(s.partition, max(s.first, ends.get(s.partition, 0)), s.next)
        for s in entry.ranges
        if s.next > ends.get(s.partition, 0)
    ]
    return msgspec.structs.replace(entry, ranges=ranges)


def rebuilt(snapshot: Snapshot | None, head: Head, later: Iterable[ObjectEntry]) -> Snapshot:
    """The manifest from a snapshot and the objects made since; `head` is used without one."""
    base = snapshot.head if snapshot is not None else head
    entries = list(snapshot.entries) if snapshot is not None else []
    added = cover(later, base.uploaded_frame)
    everything = [*entries, *added]
    numbered = [
        msgspec.structs.replace(entry, sequence=number) for number, entry in enumerate(everything)
    ]
    frame = numbered[-1].next_frame if added else base.uploaded_frame
    highest = max((s.next for e in numbered for s in e.ranges), default=0)
    return Snapshot(
        msgspec.structs.replace(
            base,
            next_sequence=len(numbered),
            uploaded_frame=frame,
            reserved=max(base.reserved, highest),
        ),
        numbered,
        snapshot.created_us if snapshot is not None else 0,
    )
