"""Applies the frames of files to the state of a log and notes which offsets are missing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import structlog

from penstock.formats.bodies import checkpoint_ends, offset_ranges
from penstock.formats.frames import FILE_HEADER_BYTES, Buffer, FrameHeader, Kind
from penstock.formats.scan import Damage, IntactFrame, Verdict
from penstock.log.files.scans import Scanned
from penstock.log.recovery.lost_offsets import LostOffsets, end_offsets_from
from penstock.log.state import LogState, Missing
from penstock.model.units import Offset, PartitionId, PartitionRange

_logger = structlog.get_logger(__name__)


class FrameReplay:
    """Applies frames in order, from one file to the next."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self.missing: list[Missing] = []
        """Offsets whose messages are lost."""
        self.gaps: list[Missing] = []
        """Offsets that may never have been used; deleted in the state."""
        self._lost = LostOffsets(state)

    def frames(self, scanned: Scanned, start: int = 0, stop: int | None = None) -> None:
        """Apply frames and damage of a file: its items from `start` up to `stop`."""
        items = items_of(scanned)
        for index, item in islice(enumerate(items), start, stop):
            if isinstance(item, IntactFrame):
                ends = _begins(item.header, scanned.body(item))
                if item.header.kind == Kind.CHECKPOINT:
                    self._lost.checkpoint(item.header, ends)
                else:
                    self._lost.note_known(ends)
            else:
                ends = self._judge(item, scanned.data, _frames_lost(item, items[index + 1 :]))
            gaps = [
                PartitionRange(p, self.state.next(PartitionId(p)), end) for p, end in ends.items()
            ]
            if isinstance(item, IntactFrame):
                self.state.apply(item.header, scanned.body(item))
            else:
                for partition, end in ends.items():
                    self.state.reach(partition, end)
            for gap in gaps:
                self.note_missing(gap)

    def note_missing(self, gap: PartitionRange) -> None:
        """Note that offsets are missing, unless they were deleted or skipped on purpose."""
        first = max(gap.first, self.state.start(PartitionId(gap.partition)))
        if first < gap.next and not self.state.gap_is_recorded(gap):
            self._note(gap._replace(first=first), self.missing)

    def settle(self) -> bool:
        """Advance beyond all offsets that may have been used; return whether there are any."""
        floor = self.state.floor
        missing, gaps = self._lost.settle()
        for gap in missing:
            self._note(gap, self.missing)
        for gap in gaps:
            self._note(gap, self.gaps)
        return bool(missing or gaps) or self.state.floor > floor

    def _judge(self, damage: Damage, data: bytes, frames: int | None) -> dict[int, int]:
        """The ends of partitions after a damaged frame that was acknowledged, if they are known."""
        start = damage.position == FILE_HEADER_BYTES and frames == 1
        if start or damage.verdict is Verdict.TORN:
            return {}
        acknowledged = damage.verdict is Verdict.CORRUPT
        lost_ends = end_offsets_from(damage, data)
        if lost_ends is None:
            self._lost.note_unknown(damage, frames, acknowledged)
            return {}
        self._lost.note_known(lost_ends)
        if acknowledged:
            return lost_ends
        self._lost.note_ends(lost_ends)
        return {}

    def _note(self, gap: PartitionRange, where: list[Missing]) -> None:
        missing = Missing(PartitionId(gap.partition), Offset(gap.first), Offset(gap.next))
        where.append(missing)
        facts = {"partition": gap.partition, "first": gap.first, "next": gap.next}
        _logger.error("offsets_missing", topic=self.state.topic, **facts)


def items_of(scanned: Scanned) -> list[IntactFrame | Damage]:
    """The frames and damage of a file, in order."""
    items: list[IntactFrame | Damage] = [*scanned.found, *scanned.damages]
    return sorted(items, key=lambda item: item.position)


def _frames_lost(damage: Damage, following: Sequence[IntactFrame | Damage]) -> int | None:
    """How many frames are lost in a damage; None if no later frame reveals it."""
    if damage.header is not None:
        return 1
    numbers = (item.header.number for item in following if item.header is not None)
    number = next(numbers, None)
    return None if number is None else number - damage.first_number


def _begins(header: FrameHeader, body: Buffer) -> dict[int, int]:
    """By partition, the next offset when the frame was written."""
    if header.kind == Kind.DELETE:
        return {header.partition: header.first_offset}
    if header.kind == Kind.CHECKPOINT:
        return checkpoint_ends(header, body)
    return {extent.partition: extent.first for extent in offset_ranges(header, body)}
