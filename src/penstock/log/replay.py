"""Put the frames of files on the state of a log, and note what is not there any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from penstock.formats.extents import Extent, ends_of, extents
from penstock.formats.frames import FILE_HEADER_BYTES, Buffer, FrameHeader, Kind
from penstock.formats.scan import Damage, Found, Verdict
from penstock.log.doubts import Doubts, ends_told
from penstock.log.scans import Scanned
from penstock.log.state import LogState
from penstock.model.units import Offset, PartitionId

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets that were given out and are not in the files."""

    partition: PartitionId
    first: Offset
    next: Offset


class Replay:
    """Frames one behind the other, from one file to the next."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self.missing: list[Missing] = []
        """Offsets whose messages are lost."""
        self.holes: list[Missing] = []
        """Offsets that may never have been given out; deleted in the state."""
        self._doubts = Doubts(state)

    def frames(self, scanned: Scanned, start: int = 0, stop: int | None = None) -> None:
        """Frames and damage of a file, all or some of its items."""
        items = items_of(scanned)
        for index, item in islice(enumerate(items), start, stop):
            if isinstance(item, Found):
                ends = _begins(item.header, scanned.body(item))
                if item.header.kind == Kind.CHECKPOINT:
                    self._doubts.checkpoint(item.header, ends)
                else:
                    self._doubts.tell(ends)
            else:
                ends = self._judge(item, scanned.data, _frames_lost(item, items[index + 1 :]))
            gaps = [Extent(p, self.state.next(PartitionId(p)), end) for p, end in ends.items()]
            if isinstance(item, Found):
                self.state.apply(item.header, scanned.body(item))
            else:
                for partition, end in ends.items():
                    self.state.reach(partition, end)
            for gap in gaps:
                self.note_missing(gap)

    def note_missing(self, gap: Extent) -> None:
        """These offsets are not there; no news where that is known or on purpose."""
        first = max(gap.first, self.state.start(PartitionId(gap.partition)))
        if first < gap.next and not self.state.gap_is_recorded(gap):
            self._note(gap._replace(first=first), self.missing)

    def settle(self) -> bool:
        """Go on behind all that is in doubt; whether anything is."""
        floor = self.state.floor
        missing, holes = self._doubts.settle()
        for gap in missing:
            self._note(gap, self.missing)
        for gap in holes:
            self._note(gap, self.holes)
        return bool(missing or holes) or self.state.floor > floor

    def _judge(self, damage: Damage, data: bytes, frames: int | None) -> dict[int, int]:
        """Where partitions were behind a frame that was acknowledged, if that can be told."""
        start = damage.position == FILE_HEADER_BYTES and frames == 1
        if start or damage.verdict is Verdict.TORN:
            return {}
        acknowledged = damage.verdict is Verdict.CORRUPT
        told = ends_told(damage, data)
        if told is None:
            self._doubts.spread(damage, frames, acknowledged)
            return {}
        self._doubts.tell(told)
        if acknowledged:
            return told
        self._doubts.expect(told)
        return {}

    def _note(self, gap: Extent, where: list[Missing]) -> None:
        missing = Missing(PartitionId(gap.partition), Offset(gap.first), Offset(gap.next))
        where.append(missing)
        facts = {"partition": gap.partition, "first": gap.first, "next": gap.next}
        _logger.error("offsets_missing", topic=self.state.topic, **facts)


def items_of(scanned: Scanned) -> list[Found | Damage]:
    """Frames and damage of a file in order."""
    items: list[Found | Damage] = [*scanned.found, *scanned.damages]
    return sorted(items, key=lambda item: item.position)


def _frames_lost(damage: Damage, following: Sequence[Found | Damage]) -> int | None:
    """How many frames a damage has hidden; None when no later frame tells."""
    if damage.header is not None:
        return 1
    numbers = (item.header.number for item in following if item.header is not None)
    number = next(numbers, None)
    return None if number is None else number - damage.first_number


def _begins(header: FrameHeader, body: Buffer) -> dict[int, int]:
    """Offsets below which everything had been given out when the frame was written."""
    if header.kind == Kind.DELETE:
        return {header.partition: header.first_offset}
    if header.kind == Kind.CHECKPOINT:
        return ends_of(header, body)
    return {extent.partition: extent.first for extent in extents(header, body)}
