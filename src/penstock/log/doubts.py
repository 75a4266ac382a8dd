"""Offsets that damaged frames may have given out and that must not be given again.

A header that is intact tells them, and a link or checkpoint tells them by its body. A frame that
tells nothing may have been of any partition: for each of them as many offsets are in doubt as its
bytes can hold, since a message takes a bit or more. The next frame of a partition takes it out of
doubt, because it tells where the partition was; a checkpoint does so for all that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from penstock.formats import bodies
from penstock.formats.bodies import Delete, Ends, Link, Seal
from penstock.formats.extents import Extent, link_extents
from penstock.formats.frames import (
    ALIGNMENT_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_TRAILER_BYTES,
    FrameHeader,
    Kind,
)
from penstock.formats.scan import Damage
from penstock.log.state import LogState
from penstock.model.errors import FormatError
from penstock.model.limits import MESSAGES_PER_BYTE_MAX
from penstock.model.units import PartitionId

_MANY: Final = 2
"""Frames in doubt when nobody knows how many."""


def ends_told(damage: Damage, data: bytes) -> dict[int, int] | None:
    """Where partitions were behind a damaged frame; None when what is left does not tell."""
    header = damage.header
    if header is None:
        return _told_by_body(data[damage.position + FRAME_HEADER_BYTES : damage.end])
    if header.kind == Kind.BATCH:
        return {header.partition: header.next_offset}
    if header.kind == Kind.DELETE:
        return {header.partition: header.first_offset}
    return None if header.kind == Kind.LINK else {}


def _told_by_body(rest: bytes) -> dict[int, int] | None:
    """The same from the bytes behind a header that is damaged: the body, zeros, the CRC."""
    end = len(rest) - FRAME_TRAILER_BYTES
    sizes = range(end, max(end - ALIGNMENT_BYTES, 0), -1)
    return next((told for size in sizes if (told := _told_by(rest[:size])) is not None), None)


def _told_by(body: bytes) -> dict[int, int] | None:
    with suppress(FormatError):
        parts = link_extents(bodies.decode(Link, body))
        return {part.partition: part.next for part in parts}
    with suppress(FormatError):
        bodies.decode(Ends, body)
        return {}
    with suppress(FormatError):
        # It would pass for a seal, and may have moved its partition.
        bodies.decode(Delete, body)
        return None
    with suppress(FormatError):
        bodies.decode(Seal, body)
        return {}
    return None


class Doubts:
    """What is in doubt while frames are replayed in order on `state`."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._ends: dict[int, int] = {}
        self._acknowledged: set[int] = set()
        self._floor = 0
        self._frames = 0
        self._last_number = -1

    def expect(self, ends: Mapping[int, int]) -> None:
        """A frame that may have been acknowledged ended these partitions here."""
        self._ends.update(ends)

    def spread(self, damage: Damage, frames: int | None, acknowledged: bool) -> None:
        """A stretch of `frames` frames that tell nothing; None when nobody knows how many."""
        size_bytes = damage.end - damage.position
        count = damage.header.entries if damage.header else MESSAGES_PER_BYTE_MAX * size_bytes
        for partition in self._state.nexts:
            next_ = self._state.next(PartitionId(partition))
            self._ends[partition] = max(next_, self._ends.get(partition, 0)) + count
            if acknowledged:
                self._acknowledged.add(partition)
        self._floor = max(self._state.floor, self._floor) + count
        self._frames += frames or _MANY
        self._last_number = damage.first_number + (frames or 1) - 1

    def tell(self, partitions: Iterable[int]) -> None:
        """A frame told where these partitions were."""
        for partition in partitions:
            self._ends.pop(partition, None)
            self._acknowledged.discard(partition)

    def checkpoint(self, header: FrameHeader, partitions: Iterable[int]) -> None:
        """A checkpoint told where the partitions are that were touched since the one before."""
        if header.durable <= self._last_number:
            return
        self.tell(partitions)
        if self._frames == 1:
            # Either it named the partition of that frame, or the frame gave nothing out.
            self.tell(list(self._ends))
            self._floor = self._frames = 0

    def settle(self) -> tuple[list[Extent], list[Extent]]:
        """Go on behind what is in doubt: offsets that are missing, and those that may never have
        been, which become deleted.
        """
        missing: list[Extent] = []
        holes: list[Extent] = []
        for partition, end in self._ends.items():
            gap = Extent(partition, self._state.next(PartitionId(partition)), end)
            if gap.first >= gap.next:
                continue
            if partition in self._acknowledged:
                missing.append(gap)
                self._state.reach(partition, end)
            else:
                holes.append(gap)
                self._state.skip(partition, end)
        self._state.floor = max(self._state.floor, self._floor)
        return missing, holes
