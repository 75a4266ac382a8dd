"""Decodes many small frames together.

Python's cost is per object: a frame of one message costs as much as one of thousands. `Frames`
holds the headers of intact frames as columns. Small packed frames of one partition with consecutive
offsets are decoded into one batch, column by column; a large frame is a batch without a copy. The
messages are the same as when each frame is decoded by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats import batches
from penstock.formats.frames import (
    ALIGNMENT_BYTES,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_TRAILER_BYTES,
    Codec,
    Flag,
    FrameHeader,
    Kind,
)
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Offset, PartitionId

SMALL_BODY_BYTES: Final = 32 << 10
"""Largest body that is copied into a joint batch, which costs less than a batch of its own."""
FEW_FRAMES: Final = 8
"""Largest number of frames that are decoded one by one, which costs less than to join them."""
GROWTH_MAX: Final = 2
"""Frames of different subjects are joined only if the bytes grow by at most this factor: the
subject that a frame stores once is copied for each of its messages.
"""

_BINARY: Final = pa.binary()


class FrameGroup(NamedTuple):
    """Batch frames of one partition with consecutive offsets, or one link frame."""

    header: FrameHeader
    """The header of the first frame."""
    next_offset: int
    """The next offset of the last frame; the offsets of a link are in its body."""
    data: bytes
    position: int
    frames: Frames | None = None
    """The frames, if there are several."""

    @property
    def body(self) -> memoryview:
        start = self.position + FRAME_HEADER_BYTES
        return memoryview(self.data)[start : start + self.header.body_bytes]

    def batches(self) -> list[Batch]:
        """The batches of the frames; raises FormatError."""
        if self.frames is not None:
            return decode(self.frames)
        return [batches.decode(self.header, pa.py_buffer(self.data), self.position)]


def groups(data: bytes, positions: list[int], partition: int) -> Iterator[FrameGroup]:
    """Group the batch frames of a partition among these intact frames; links are included."""
    if len(positions) <= max(FEW_FRAMES, len(data) // SMALL_BODY_BYTES):
        for position in positions:
            header = FrameHeader._make(FRAME_HEADER.unpack_from(data, position))
            own_batch = header.kind == Kind.BATCH and header.partition == partition
            if own_batch or header.kind == Kind.LINK:
                yield FrameGroup(header, header.next_offset, data, position)
        return
    frames = Frames.at(data, positions)
    batch, link = frames.kinds == Kind.BATCH, frames.kinds == Kind.LINK
    relevant = link | (batch & (frames.partitions == partition))
    frames, batch = frames[relevant], batch[relevant]
    for start, stop in _follow_one_another(frames, batch):
        group = frames[start:stop]
        next_offset, position = int(group.next_offsets[-1]), int(group.positions[0])
        yield FrameGroup(group.header(0), next_offset, data, position, group)


def decode(frames: Frames) -> list[Batch]:
    """The batches of these batch frames, in order within a partition; raises FormatError."""
    small = frames.headers["body_bytes"] <= SMALL_BODY_BYTES
    if np.count_nonzero(small) <= FEW_FRAMES:
        return _each(frames)
    order = np.argsort(frames.partitions, kind="stable")
    frames, small = frames[order], small[order]
    small &= frames.headers["codec"] == Codec.PACKED
    decoded: list[Batch] = []
    for start, stop in _follow_one_another(frames, small):
        group = frames[start:stop]
        joined = _join(group) if len(group) > FEW_FRAMES else None
        decoded += _each(group) if joined is None else [joined]
    return decoded


def _each(frames: Frames) -> list[Batch]:
    data, positions = pa.py_buffer(frames.data), enumerate(frames.positions.tolist())
    return [batches.decode(frames.header(row), data, position) for row, position in positions]


def _follow_one_another(frames: Frames, joinable: Truths) -> Iterator[tuple[int, int]]:
    """First and next row of every group; a frame that is not `joinable` is its own group."""
    if not len(frames):
        return iter(())
    follows = joinable[1:] & joinable[:-1]
    follows &= frames.partitions[1:] == frames.partitions[:-1]
    follows &= frames.first_offsets[1:] == frames.next_offsets[:-1]
    return pairwise([0, *(np.flatnonzero(~follows) + 1).tolist(), len(frames)])


def _join(frames: Frames) -> Batch | None:
    """One batch of these frames; None if they would grow too much or one of them is invalid."""
    bodies = _Bodies(frames)
    if not bodies.add_up():
        return None
    subject = bodies.subject()
    if subject is None:
        return None
    header = frames.header(0)
    return Batch(
        PartitionId(header.partition),
        Offset(header.first_offset),
        int(bodies.counts.sum()),
        Microseconds(header.first_timestamp),
        Columns(subject, bodies.payload(), bodies.headers()),
        bodies.timestamps(),
    )


class _Bodies:
    """The positions of the parts of packed bodies, one array for each part."""

    def __init__(self, frames: Frames) -> None:
        fields, self._data = frames.headers, frames.data
        self._numbers = np.frombuffer(self._data, "<u4", len(self._data) // 4)
        self.counts = fields["entries"].astype(np.int64)
        self._same = fields["flags"] & Flag.SAME_SUBJECT != 0
        self._headed = fields["flags"] & Flag.HEADERS != 0
        self._stamped = fields["flags"] & Flag.TIMESTAMPS != 0
        self._first_timestamps = fields["first_timestamp"]
        self._start = frames.positions + FRAME_HEADER_BYTES
        self._end = self._start + fields["body_bytes"]
        self._subjects = self._start + 8 * self.counts * self._stamped
        self._headers = self._subjects + 4 * (np.where(self._same, 1, self.counts) + 1)
        self._payloads = self._headers + 4 * (self.counts + 1) * self._headed
        self._values = self._payloads + 4 * (self.counts + 1)

    def add_up(self) -> bool:
        """Whether every body is valid; must be called before the other methods."""
        if (self._values > self._end).any():
            return False
        columns = (self._subjects, self._headers, self._payloads)
        if any(self._numbers[column // 4].any() for column in columns):
            return False
        # The last offset of a column is its size; it is stored before the next column.
        self._header_values = self._values + self._numbers[self._headers // 4 - 1]
        header_bytes = self._numbers[self._payloads // 4 - 1] * self._headed
        self._payload_values = self._header_values + header_bytes
        payload_bytes = self._numbers[self._values // 4 - 1]
        if (self._payload_values + payload_bytes != self._end).any():
            return False
        # The frame of every message, and its index in that frame.
        self._frames = np.repeat(np.arange(len(self.counts)), self.counts)
        firsts = np.cumsum(self.counts) - self.counts
        self._indexes = np.arange(len(self._frames)) - firsts[self._frames]
        return True

    def subject(self) -> bytes | pa.BinaryArray | None:
        """One value if all messages share it; None if a column would grow too much."""
        pieces = self._pieces(self._values, self._header_values)
        if self._same.all() and pieces.count(pieces[0]) == len(pieces):
            return pieces[0]
        copies = np.where(self._same, self.counts, 1)
        size = ((self._header_values - self._values) * copies).sum()
        if size > GROWTH_MAX * (self._end - self._start).sum():
            return None
        pieces = [piece * times for piece, times in zip(pieces, copies.tolist(), strict=True)]
        return _column(self._lengths(self._subjects, ~self._same), pieces)

    def headers(self) -> pa.BinaryArray | None:
        if not self._headed.any():
            return None
        lengths = self._lengths(self._headers, self._headed) * self._headed[self._frames]
        return _column(lengths, self._pieces(self._header_values, self._payload_values))

    def payload(self) -> pa.BinaryArray:
        lengths = self._lengths(self._payloads, np.ones_like(self._headed))
        return _column(lengths, self._pieces(self._payload_values, self._end))

    def timestamps(self) -> pa.Int64Array | None:
        """The timestamps of all messages; None if they are equal."""
        firsts = self._first_timestamps
        if not self._stamped.any():
            if (firsts == firsts[0]).all():
                return None
            return pa.array(firsts[self._frames])
        words = np.frombuffer(self._data, "<i8", len(self._data) // 8)
        stamped = self._stamped[self._frames]
        own = words[self._start[self._frames] // 8 + self._indexes * stamped]
        return pa.array(np.where(stamped, own, firsts[self._frames]))

    def _lengths(self, column: Integers, steps: Truths) -> npt.NDArray[np.uint32]:
        """Length of the value of every message; without `steps` a frame has one value for all."""
        index = column[self._frames] // 4 + self._indexes * steps[self._frames]
        lengths: npt.NDArray[np.uint32] = self._numbers[index + 1] - self._numbers[index]
        return lengths

    def _pieces(self, starts: Integers, stops: Integers) -> list[bytes]:
        data = self._data
        return [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _column(lengths: npt.NDArray[np.uint32], pieces: list[bytes]) -> pa.BinaryArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))]
    return pa.Array.from_buffers(_BINARY, len(lengths), buffers)


Integers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

HEADER: Final = np.dtype(
    [
        *zip(FrameHeader._fields, map("<{}".format, FRAME_HEADER.format[1:]), strict=True),
        ("crc32c", "<u4"),
    ]
)
"""The layout of a frame header with its CRC, as in `FRAME_HEADER`."""
assert HEADER.itemsize == FRAME_HEADER_BYTES, HEADER

_WORDS: Final = np.arange(FRAME_HEADER_BYTES // ALIGNMENT_BYTES)


@dataclass(frozen=True, slots=True)
class Frames:
    """Intact frames of `data` with their headers as columns; positions are multiples of 8."""

    data: bytes
    positions: Integers
    headers: npt.NDArray[np.void]

    @classmethod
    def at(cls, data: bytes, positions: list[int]) -> Frames:
        """The intact frames at these positions."""
        column = np.array(positions, np.int64)
        words = np.frombuffer(data, np.uint64, len(data) // ALIGNMENT_BYTES)
        headers = words[column[:, None] // ALIGNMENT_BYTES + _WORDS].view(HEADER)
        return cls(data, column, headers[:, 0])

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | Truths | Integers) -> Frames:
        return Frames(self.data, self.positions[rows], self.headers[rows])

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

    def apart(self, alone: Truths) -> Iterator[Frames]:
        """Split the frames in order, so that each frame in `alone` is by itself."""
        start = 0
        for row in np.flatnonzero(alone).tolist():
            if start < row:
                yield self[start:row]
            yield self[row : row + 1]
            start = row + 1
        if start < len(self):
            yield self[start:]
