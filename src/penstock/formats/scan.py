"""Scans a WAL file for intact frames and damage.

A scan never stops at damage: it skips a damaged body by the length in its intact header, and finds
the frame after a damaged header by the file's mark. Whether damaged bytes are torn, corrupt or
uncertain depends on what had been acknowledged; `judge` decides that once the whole file is
scanned.
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
"""A disk writes a whole sector or nothing of it."""
RUN_FRAMES_MAX: Final = 4096
"""Intact frames that `walk` returns at a time."""


class IntactFrame(NamedTuple):
    """An intact frame."""

    position: int
    header: FrameHeader

    @property
    def end(self) -> int:
        return self.position + self.header.frame_bytes


class BadBytes(NamedTuple):
    """Bytes that are not an intact frame."""

    position: int
    end: int
    header: FrameHeader | None
    """The frame header, if it is intact."""
    incomplete: bool
    """The file ends before the frame does, or a sector of its header was never written."""


class Verdict(Enum):
    """The meaning of damaged bytes."""

    TORN = "torn"
    """An incomplete write that was never acknowledged: recovery cuts it."""
    CORRUPT = "corrupt"
    """Acknowledged data: recovery reports it, keeps it and never drops it silently."""
    UNCERTAIN = "uncertain"
    """The last group, complete in length, which may have been acknowledged: recovery sets it aside
    and reports it.
    """


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of damaged bytes with its verdict."""

    verdict: Verdict
    position: int
    end: int
    first_number: int
    header: FrameHeader | None


def scan(data: Buffer, mark: int, position: int) -> Iterator[IntactFrame | BadBytes]:
    """Every intact frame and every damaged range from `position` to the end of `data`, in order."""
    for item in walk(data, mark, position):
        if isinstance(item, BadBytes):
            yield item
        else:
            for at in item:
                yield IntactFrame(at, FrameHeader._make(FRAME_HEADER.unpack_from(data, at)))


def walk(data: Buffer, mark: int, position: int) -> Iterator[list[int] | BadBytes]:
    """Scan as `scan` does, but return consecutive intact frames together, by their positions."""
    while position < len(data):
        positions, position = intact_frames(data, mark, position, RUN_FRAMES_MAX)
        if positions:
            yield positions
        else:
            bad = _bad(data, mark, position)
            yield bad
            position = bad.end


def judge(
    items: Iterable[IntactFrame | BadBytes], first_number: int, durable: int
) -> tuple[list[IntactFrame], list[Damage]]:
    """Divide the items of a scan into intact frames and damage with verdicts.

    `first_number` is the number of the first frame in the scan. Frames below `durable` were
    acknowledged, as the caller knows (0 if it knows nothing); frame headers may say more.
    """
    scanned = list(items)
    durable = max([durable, *(item.header.durable for item in scanned if item.header)])
    found: list[IntactFrame] = []
    damages: list[Damage] = []
    number, unsynced = first_number, False
    for item in scanned:
        if isinstance(item, IntactFrame):
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
    found: list[IntactFrame], damages: list[Damage]
) -> tuple[list[IntactFrame], list[Damage]]:
    """Drop what follows the first damage in a group that was never written completely."""
    corrupt = [damage for damage in damages if damage.verdict is Verdict.CORRUPT]
    first = damages[len(corrupt)]
    end = max(damages[-1].end, found[-1].end if found else 0)
    intact = [item for item in found if item.position < first.position]
    return intact, [*corrupt, replace(first, verdict=Verdict.TORN, end=end)]


def _bad(data: Buffer, mark: int, position: int) -> BadBytes:
    """The damaged bytes at `position`, where there is no intact frame."""
    size = len(data)
    header = decode_frame_header(data, position, mark)
    if header is None:
        end = _next_frame(data, mark, position + ALIGNMENT_BYTES)
        short = end - position < FRAME_HEADER_BYTES and end == size
        return BadBytes(position, end, None, short or _never_written(data, position, end))
    end = position + header.frame_bytes
    return BadBytes(position, min(end, size), header, incomplete=end > size)


def _next_frame(data: Buffer, mark: int, position: int) -> int:
    """Position of the next intact header, or the end of `data`."""
    needle = mark.to_bytes(4, "little")
    view = data if isinstance(data, bytes | bytearray) else bytes(data)
    while (position := view.find(needle, position)) >= 0:
        if position % ALIGNMENT_BYTES == 0 and decode_frame_header(view, position, mark):
            return position
        position += 1
    return len(data)


def _never_written(data: Buffer, position: int, end: int) -> bool:
    """Whether the header at `position` lies in part in a sector that was never written, which is
    zero from there on. The mark and the CRC at the ends of a header are not zero.
    """
    header_end = position + FRAME_HEADER_BYTES
    while position < header_end and position < len(data):
        border = min(position - position % SECTOR_BYTES + SECTOR_BYTES, len(data))
        if border <= end and not any(data[position:border]):
            return True
        position = border
    return False
