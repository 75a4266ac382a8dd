"""Intact frames taken together, their headers as columns: many cost hardly more than one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.formats.frames import (
    ALIGNMENT_BYTES,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_TRAILER_BYTES,
    FrameHeader,
)

Integers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

HEADER: Final = np.dtype(
    [
        *zip(FrameHeader._fields, map("<{}".format, FRAME_HEADER.format[1:]), strict=True),
        ("crc32c", "<u4"),
    ]
)
"""A frame header as `FRAME_HEADER` and its CRC lay it out."""
assert HEADER.itemsize == FRAME_HEADER_BYTES, HEADER

_WORDS: Final = np.arange(FRAME_HEADER_BYTES // ALIGNMENT_BYTES)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of `data` in file order; positions are multiples of 8."""

    data: bytes
    positions: Integers
    headers: npt.NDArray[np.void]

    @classmethod
    def at(cls, data: bytes, positions: list[int]) -> Stretch:
        """The intact frames at these positions."""
        places = np.array(positions, np.int64)
        words = np.frombuffer(data, np.uint64, len(data) // ALIGNMENT_BYTES)
        headers = words[places[:, None] // ALIGNMENT_BYTES + _WORDS].view(HEADER)
        return cls(data, places, headers[:, 0])

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | Truths | Integers) -> Stretch:
        return Stretch(self.data, self.positions[rows], self.headers[rows])

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        return self.headers["kind"]

    @property
    def partitions(self) -> npt.NDArray[np.uint32]:
        return self.headers["partition"]

    @property
    def first_offsets(self) -> Integers:
        return self.headers["first_offset"]

    @property
    def next_offsets(self) -> Integers:
        nexts: Integers = self.first_offsets + self.headers["entries"]
        return nexts

    @property
    def frame_bytes(self) -> Integers:
        bare: Integers = self.headers["body_bytes"].astype(np.int64)
        bare += FRAME_HEADER_BYTES + FRAME_TRAILER_BYTES
        return bare + -bare % ALIGNMENT_BYTES

    @property
    def ends(self) -> Integers:
        return self.positions + self.frame_bytes

    def header(self, row: int) -> FrameHeader:
        return FrameHeader._make(FRAME_HEADER.unpack_from(self.data, self.positions[row]))

    def body(self, row: int) -> memoryview:
        start = int(self.positions[row]) + FRAME_HEADER_BYTES
        return memoryview(self.data)[start : start + int(self.headers["body_bytes"][row])]

    def apart(self, alone: Truths) -> Iterator[Stretch]:
        """The same frames in order, those that are `alone` each by itself."""
        start = 0
        for row in np.flatnonzero(alone).tolist():
            if start < row:
                yield self[start:row]
            yield self[row : row + 1]
            start = row + 1
        if start < len(self):
            yield self[start:]
