"""A group that is durable becomes visible: everything that readers look at takes it in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.formats import bodies
from penstock.formats.bodies import Link
from penstock.formats.extents import extents
from penstock.formats.frames import Kind
from penstock.log.cache import Tail
from penstock.log.files import ActiveFile
from penstock.log.group import Sealed
from penstock.log.indexing import index_link
from penstock.log.state import LogState
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import Batch
from penstock.model.units import Nanoseconds

_STORED: Final = (Kind.BATCH, Kind.LINK, Kind.DELETE)


@dataclass(slots=True)
class Arrived:
    """What a group has brought."""

    partitions: set[int] = field(default_factory=set)
    """Those that have new messages."""
    changed: set[int] = field(default_factory=set)
    """Those that have new messages, or fewer."""
    messages: int = 0
    stored_bytes: int = 0


def take_in(
    frames: list[Sealed],
    active: ActiveFile | None,
    state: LogState,
    tail: Tail,
    index: SubjectIndex,
    now_ns: Nanoseconds,
) -> Arrived:
    """Take in the frames of a group, in order; `active` is the file they are in."""
    arrived = Arrived()
    for header, _, item in frames:
        body = b"" if isinstance(item, Batch) else item.body
        last = item.last_timestamp if isinstance(item, Batch) else item.timestamp
        state.apply(header, body, last)
        for extent in extents(header, body):
            arrived.partitions.add(extent.partition)
            if active is not None:
                position, length = active.file.end, header.frame_bytes
                active.table.add(extent, position, length, header.first_timestamp)
        if header.kind == Kind.LINK:
            index_link(index, bodies.decode(Link, body))
        if header.kind == Kind.DELETE:
            arrived.changed.add(header.partition)
        if isinstance(item, Batch):
            arrived.messages += item.count
            tail.add(item, now_ns)
            index.note(item)
        if header.kind in _STORED:
            arrived.stored_bytes += header.frame_bytes
        if active is not None:
            active.file.end += header.frame_bytes
    arrived.changed |= arrived.partitions
    return arrived
