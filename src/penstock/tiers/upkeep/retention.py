"""Decides what may be deleted: uploaded WAL files, and messages beyond a topic's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from penstock.log import LogState, WalFile
from penstock.model.units import Offset, PartitionId
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.settings import TierSettings


def prunable(
    files: Sequence[WalFile],
    uploaded_frame: int,
    settings: TierSettings,
    now_us: int,
    frame_needed: int | None,
) -> list[WalFile]:
    """The oldest files that may be deleted: uploaded, old enough, and beyond the bytes to retain.

    `frame_needed` is the first frame that a subscription, or the recovery of its settlements, still
    needs; files from that frame on remain unless all files together exceed wal_bytes_max.
    """
    remaining_bytes = sum(file.end for file in files)
    prunable_files = []
    for file, following in pairwise(files):
        next_frame = following.header.first_frame
        if next_frame > uploaded_frame:
            break
        needed = frame_needed is not None and next_frame > frame_needed
        if needed and remaining_bytes <= settings.wal_bytes_max:
            break
        young = now_us - following.header.created_us < settings.wal_seconds_min * 1_000_000
        if young or remaining_bytes - file.end < settings.wal_bytes_min:
            break
        remaining_bytes -= file.end
        prunable_files.append(file)
    return prunable_files


def prunable_at(
    files: Sequence[WalFile], uploaded_frame: int, settings: TierSettings, frame_needed: int | None
) -> int | None:
    """When the oldest file will be old enough to be deleted; None if it is retained otherwise."""
    if len(files) < 2:
        return None
    later = dataclasses.replace(settings, wal_seconds_min=0)
    if not prunable(files, uploaded_frame, later, files[1].header.created_us, frame_needed):
        return None
    return files[1].header.created_us + int(settings.wal_seconds_min * 1_000_000)


def expired_objects(entries: Iterable[ObjectEntry], starts: Mapping[int, int]) -> list[ObjectEntry]:
    """Objects whose offsets are all before the log start offsets of their partitions."""
    return [
        entry
        for entry in entries
        if all(span.next <= starts.get(span.partition, 0) for span in entry.ranges)
    ]


def starts_by_bytes(entries: Iterable[ObjectEntry], bytes_max: int) -> dict[int, int]:
    """The log start offsets with which objects take at most `bytes_max`; whole objects expire."""
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
    """The log start offset with which at most the newest `messages_max` messages remain.

    Offsets that were deleted or never used are not counted.
    """
    bitmap, end = state.bitmap(partition), state.next(partition)
    low, high = state.start(partition), end
    while low < high:
        middle = Offset((low + high) // 2)
        deleted = 0 if bitmap is None else bitmap.range_cardinality(middle, end)
        if end - middle - deleted <= messages_max:
            high = middle
        else:
            low = Offset(middle + 1)
    return low
