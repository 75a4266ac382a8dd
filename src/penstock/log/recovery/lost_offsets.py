"""Finds offsets that a damaged frame may have used, so that recovery never reuses them.

An intact header names its offsets; a link or a checkpoint names them in its body. A frame of which
neither can be read may have belonged to any partition: it may have used as many offsets in each of
them as its bytes can hold, since a message takes a bit or more. The next frame of a partition
settles the question for it, because that frame has the partition's offset; a checkpoint does so for
all partitions that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from penstock.formats import bodies
from penstock.formats.bodies import DeleteBody, EndsBody, LinkBody, SealBody, link_ranges
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
from penstock.model.units import PartitionId, PartitionRange

_MANY: Final = 2
"""The assumed number of lost frames if it is unknown."""


def end_offsets_from(damage: Damage, data: bytes) -> dict[int, int] | None:
    """The end offset of each partition after a damaged frame, or None if the remaining bytes do not
    reveal it.
    """
    header = damage.header
    if header is None:
        return _ends_from_body(data[damage.position + FRAME_HEADER_BYTES : damage.end])
    if header.kind == Kind.BATCH:
        return {header.partition: header.next_offset}
    if header.kind == Kind.DELETE:
        return {header.partition: header.first_offset}
    return None if header.kind == Kind.LINK else {}


def _ends_from_body(data: bytes) -> dict[int, int] | None:
    """The end offsets from the bytes after a damaged header: the body, zeros, the CRC."""
    end = len(data) - FRAME_TRAILER_BYTES
    sizes = range(end, max(end - ALIGNMENT_BYTES, 0), -1)
    return next((ends for size in sizes if (ends := _ends_in(data[:size])) is not None), None)


def _ends_in(body: bytes) -> dict[int, int] | None:
    with suppress(FormatError):
        parts = link_ranges(bodies.decode(LinkBody, body))
        return {part.partition: part.next for part in parts}
    with suppress(FormatError):
        bodies.decode(EndsBody, body)
        return {}
    with suppress(FormatError):
        # It would also decode as a seal, but may have moved its partition.
        bodies.decode(DeleteBody, body)
        return None
    with suppress(FormatError):
        bodies.decode(SealBody, body)
        return {}
    return None


class LostOffsets:
    """Offsets that may have been used, while frames are replayed in order on `state`."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._ends: dict[int, int] = {}
        self._acknowledged: set[int] = set()
        self._floor = 0
        self._frames = 0
        self._last_number = -1

    def note_ends(self, ends: Mapping[int, int]) -> None:
        """Note the ends of partitions after a damaged frame that may have been acknowledged."""
        self._ends.update(ends)

    def note_unknown(self, damage: Damage, frames: int | None, acknowledged: bool) -> None:
        """Note a stretch of `frames` frames, or an unknown number, that reveal nothing."""
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

    def note_known(self, partitions: Iterable[int]) -> None:
        """Note that an intact frame has named the offsets of these partitions."""
        for partition in partitions:
            self._ends.pop(partition, None)
            self._acknowledged.discard(partition)

    def checkpoint(self, header: FrameHeader, partitions: Iterable[int]) -> None:
        """Note a checkpoint, which names the partitions touched since the previous one."""
        if header.durable <= self._last_number:
            return
        self.note_known(partitions)
        if self._frames == 1:
            # Either it names the partition of that frame, or the frame used no offsets.
            self.note_known(list(self._ends))
            self._floor = self._frames = 0

    def settle(self) -> tuple[list[PartitionRange], list[PartitionRange]]:
        """Advance the partitions beyond all offsets that may have been used.

        Returns those that are missing, and those that may never have been used, which are deleted
        in the state.
        """
        missing: list[PartitionRange] = []
        gaps: list[PartitionRange] = []
        for partition, end in self._ends.items():
            gap = PartitionRange(partition, self._state.next(PartitionId(partition)), end)
            if gap.first >= gap.next:
                continue
            if partition in self._acknowledged:
                missing.append(gap)
                self._state.reach(partition, end)
            else:
                gaps.append(gap)
                self._state.skip(partition, end)
        self._state.floor = max(self._state.floor, self._floor)
        return missing, gaps
