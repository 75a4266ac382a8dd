"""Applies a durable group of frames to everything that readers look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.formats import bodies
from penstock.formats.bodies import LinkBody, offset_ranges
from penstock.formats.frames import Kind
from penstock.log.append.group import Sealed
from penstock.log.files.wal_files import ActiveFile
from penstock.log.shared.tail_cache import Tail
from penstock.log.state import LogState
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import Batch
from penstock.model.units import Nanoseconds

_STORED: Final = (Kind.BATCH, Kind.LINK, Kind.DELETE)


@dataclass(slots=True)
class CommittedFrames:
    """Summary of a group that was committed."""

    partitions: set[int] = field(default_factory=set)
    """Partitions with new messages."""
    changed: set[int] = field(default_factory=set)
    """Partitions with new messages or with deletions."""
    messages: int = 0
    stored_bytes: int = 0


def apply_frames(
    frames: list[Sealed],
    active: ActiveFile | None,
    state: LogState,
    tail: Tail,
    index: SubjectIndex,
    now_ns: Nanoseconds,
) -> CommittedFrames:
    """Apply the frames of a group, in order; `active` is the file that has them, if any."""
    summary = CommittedFrames()
    for header, _, item in frames:
        body = b"" if isinstance(item, Batch) else item.body
        last = item.last_timestamp if isinstance(item, Batch) else item.timestamp
        state.apply(header, body, last)
        for extent in offset_ranges(header, body):
            summary.partitions.add(extent.partition)
            if active is not None:
                position, length = active.file.end, header.frame_bytes
                active.table.add(extent, position, length, header.first_timestamp)
        if header.kind == Kind.LINK:
            index.note_link(bodies.decode(LinkBody, body))
        if header.kind == Kind.DELETE:
            summary.changed.add(header.partition)
        if isinstance(item, Batch):
            summary.messages += item.count
            tail.add(item, now_ns)
            index.note(item)
        if header.kind in _STORED:
            summary.stored_bytes += header.frame_bytes
        if active is not None:
            active.file.end += header.frame_bytes
    summary.changed |= summary.partitions
    return summary
