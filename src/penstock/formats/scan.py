"""Walk the frames of a WAL file and say what is intact and what is not.

The walk never stops at damage: a bad body is stepped over by its trusted length; behind a bad
header the next frame is found by the file's mark. What a region of bad bytes *means* (torn,
corrupt, uncertain) depends on what had been acknowledged and is decided in `judge`, once the whole
file is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from penstock.formats.frames import (
    ALIGNMENT_BYTES,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Buffer,
    FrameHeader,
    decode_frame_header,
    intact_frames,
)

SECTOR_BYTES: Final = 512
"""A disk writes as much or nothing."""
RUN_FRAMES_MAX: Final = 4096
"""Intact frames found at a time."""


class Found(NamedTuple):
    """An intact frame."""

    position: int
    header: FrameHeader

    @property
    def end(self) -> int:
        return self.position + self.header.frame_bytes


class Bad(NamedTuple):
    """Bytes that are no intact frame."""

    position: int
    end: int
    header: FrameHeader | None
    """The frame's header where that part is intact."""
    incomplete: bool
    """The file ends before the frame does, or a sector of its header was never written."""


class Verdict(Enum):
    """What bad bytes mean."""

    TORN = "torn"
    """The end of a write that nobody was told about: cut it."""
    CORRUPT = "corrupt"
    """Acknowledged data: report it, keep it, never drop it silently."""
    UNCERTAIN = "uncertain"
    """In the last group, complete in length: acknowledged or not, nobody can tell. Keep aside,
    report.
    """


@dataclass(frozen=True, slots=True)
class Damage:
    """One stretch of bad bytes and what it means."""

    verdict: Verdict
    position: int
    end: int
    first_number: int
    header: FrameHeader | None


def scan(data: Buffer, mark: int, position: int) -> Iterator[Found | Bad]:
    """Every frame and every bad stretch from `position` to the end of `data`, in order."""
    for item in walk(data, mark, position):
        if isinstance(item, Bad):
            yield item
        else:
            for at in item:
                yield Found(at, FrameHeader._make(FRAME_HEADER.unpack_from(data, at)))


def walk(data: Buffer, mark: int, position: int) -> Iterator[list[int] | Bad]:
    """The same as `scan`, with the positions of neighbouring intact frames told together."""
    while position < len(data):
        positions, position = intact_frames(data, mark, position, RUN_FRAMES_MAX)
        if positions:
            yield positions
        else:
            bad = _bad(data, mark, position)
            yield bad
            position = bad.end


def judge(
    items: Iterable[Found | Bad], first_number: int, durable: int
) -> tuple[list[Found], list[Damage]]:
    """Sort a scan into intact frames and judged damage.

    `first_number` is the number of the first frame scanned, `durable` what is known from elsewhere
    to have been acknowledged (0 when nothing is); the frames themselves tell the rest.
    """
    scanned = list(items)
    durable = max([durable, *(item.header.durable for item in scanned if item.header)])
    found: list[Found] = []
    damages: list[Damage] = []
    number, unsynced = first_number, False
    for item in scanned:
        if isinstance(item, Found):
            number = item.header.number + 1
            found.append(item)
            continue
        if item.header is not None:
            number = item.header.number
        verdict = Verdict.CORRUPT if number < durable else Verdict.UNCERTAIN
        damages.append(Damage(verdict, item.position, item.end, number, item.header))
        unsynced |= item.incomplete and verdict is Verdict.UNCERTAIN
        number += item.header is not None
    return _without_last_group(found, damages) if unsynced else (found, damages)


def _without_last_group(
    found: list[Found], damages: list[Damage]
) -> tuple[list[Found], list[Damage]]:
    """Of a group that was never written to its end, what is in front of the first bad byte."""
    corrupt = [damage for damage in damages if damage.verdict is Verdict.CORRUPT]
    first = damages[len(corrupt)]
    end = max(damages[-1].end, found[-1].end if found else 0)
    kept = [item for item in found if item.position < first.position]
    return kept, [*corrupt, replace(first, verdict=Verdict.TORN, end=end)]


def _bad(data: Buffer, mark: int, position: int) -> Bad:
    """What is at `position`, where no intact frame is."""
    size = len(data)
    header = decode_frame_header(data, position, mark)
    if header is None:
        end = _next_frame(data, mark, position + ALIGNMENT_BYTES)
        short = end - position < FRAME_HEADER_BYTES and end == size
        return Bad(position, end, None, short or _never_written(data, position, end))
    end = position + header.frame_bytes
    return Bad(position, min(end, size), header, incomplete=end > size)


def _next_frame(data: Buffer, mark: int, position: int) -> int:
    """Position of the next intact header, else the end of `data`."""
    needle = mark.to_bytes(4, "little")
    view = data if isinstance(data, bytes | bytearray) else bytes(data)
    while (position := view.find(needle, position)) >= 0:
        if position % ALIGNMENT_BYTES == 0 and decode_frame_header(view, position, mark):
            return position
        position += 1
    return len(data)


def _never_written(data: Buffer, position: int, end: int) -> bool:
    """Whether a sector that has a part of the header at `position` has zeros from there on: the
    mark and the CRC at the ends of a header are none.
    """
    header_end = position + FRAME_HEADER_BYTES
    while position < header_end and position < len(data):
        border = min(position - position % SECTOR_BYTES + SECTOR_BYTES, len(data))
        if border <= end and not any(data[position:border]):
            return True
        position = border
    return False
