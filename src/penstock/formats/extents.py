"""Which offsets a frame holds: one stretch for a batch, one for each partition of a link."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from penstock.formats import bodies
from penstock.formats.bodies import Ends, Link
from penstock.formats.frames import Buffer, Flag, FrameHeader, Kind


class Extent(NamedTuple):
    """Offsets `first` up to, not including, `next` of a partition."""

    partition: int
    first: int
    next: int


def extents(header: FrameHeader, body: Buffer) -> list[Extent]:
    """The offsets of an intact frame; none for kinds that carry no messages."""
    if header.kind == Kind.BATCH:
        return [Extent(header.partition, header.first_offset, header.next_offset)]
    if header.kind == Kind.LINK:
        return link_extents(bodies.decode(Link, body))
    return []


def ends_of(header: FrameHeader, body: Buffer) -> dict[int, int]:
    """Next offsets by partition that a checkpoint between the first and last frame tells."""
    if header.kind != Kind.CHECKPOINT or header.flags & (Flag.START | Flag.SEAL) or not body:
        return {}
    ends = bodies.decode(Ends, body)
    return dict(zip(array("I", ends.partitions), array("q", ends.nexts), strict=True))


def link_extents(link: Link) -> list[Extent]:
    """The offsets a link gives."""
    return [Extent(p.partition, p.first_offset, p.first_offset + p.rows) for p in link.parts]
