"""What may go: files that the bucket has too, and messages beyond a topic's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from penstock.log import LogState, WalFile
from penstock.model.units import Offset, PartitionId
from penstock.tiers.entries import ObjectEntry
from penstock.tiers.settings import TierSettings


def prunable(
    files: Sequence[WalFile],
    uploaded_frame: int,
    settings: TierSettings,
    now_us: int,
    frame_needed: int | None,
) -> list[WalFile]:
    """The oldest files that may go: uploaded, old enough, beyond the bytes to keep, not needed.

    `frame_needed` is the first frame that a subscription has not passed, or whose settlements are
    needed; files behind it stay unless they are more than wal_bytes_max.
    """
    left = sum(file.end for file in files)
    gone = []
    for file, following in pairwise(files):
        first_kept = following.header.first_frame
        if first_kept > uploaded_frame:
            break
        needed = frame_needed is not None and first_kept > frame_needed
        if needed and left <= settings.wal_bytes_max:
            break
        young = now_us - following.header.created_us < settings.wal_seconds_min * 1_000_000
        if young or left - file.end < settings.wal_bytes_min:
            break
        left -= file.end
        gone.append(file)
    return gone


def prunable_at(
    files: Sequence[WalFile], uploaded_frame: int, settings: TierSettings, frame_needed: int | None
) -> int | None:
    """When the oldest file will be old enough to go; None when something else keeps it."""
    if len(files) < 2:
        return None
    later = dataclasses.replace(settings, wal_seconds_min=0)
    if not prunable(files, uploaded_frame, later, files[1].header.created_us, frame_needed):
        return None
    return files[1].header.created_us + int(settings.wal_seconds_min * 1_000_000)


def dead_objects(entries: Iterable[ObjectEntry], starts: Mapping[int, int]) -> list[ObjectEntry]:
    """Objects that hold nothing from the starts of their partitions on."""
    return [
        entry
        for entry in entries
        if all(span.next <= starts.get(span.partition, 0) for span in entry.ranges)
    ]


def starts_by_bytes(entries: Iterable[ObjectEntry], bytes_max: int) -> dict[int, int]:
    """First offsets to keep so that the objects are at most `bytes_max`; whole objects go."""
    ordered = sorted(entries, key=lambda entry: entry.sequence)
    excess = sum(entry.size for entry in ordered) - bytes_max
    starts: dict[int, int] = {}
    for entry in ordered:
        if excess <= 0:
            break
        excess -= entry.size
        starts.update({span.partition: span.next for span in entry.ranges})
    return starts


def start_by_count(state: LogState, partition: PartitionId, messages_max: int) -> Offset:
    """First offset to keep so that at most `messages_max` messages are left; the newest stay.

    Offsets that were deleted, or never were, do not count.
    """
    deleted, end = state.bitmap(partition), state.next(partition)
    low, high = state.start(partition), end
    while low < high:
        middle = Offset((low + high) // 2)
        held = 0 if deleted is None else deleted.range_cardinality(middle, end)
        if end - middle - held <= messages_max:
            high = middle
        else:
            low = Offset(middle + 1)
    return low
