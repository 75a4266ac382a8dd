"""Frames of few messages as batches of many.

Python's cost is per object, so a frame of one message costs as much as one of thousands. Small
packed frames of one partition whose offsets follow one another are read into one batch, column by
column; a large frame is a batch by itself, over the bytes that were read. What comes out holds
exactly what the frames hold one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats import batches
from penstock.formats.frames import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Codec,
    Flag,
    FrameHeader,
    Kind,
)
from penstock.formats.stretch import Integers, Stretch, Truths
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Offset, PartitionId

SMALL_BODY_BYTES: Final = 32 << 10
"""Up to this size, copying a body costs less than a batch of its own."""
FEW_FRAMES: Final = 8
"""Up to this many, a batch each costs less than joining them."""
GROWTH_MAX: Final = 2
"""A subject that a frame has once is copied for each of its messages when frames of different
subjects are joined. Frames that would grow by more than this factor are left apart.
"""

_BINARY: Final = pa.binary()


class Group(NamedTuple):
    """Batch frames of one partition whose offsets follow one another; or a link."""

    header: FrameHeader
    """Of the first frame."""
    next_offset: int
    """Of the last frame; a link's offsets are in its body."""
    data: bytes
    position: int
    frames: Stretch | None = None
    """All of them, where they are several."""

    @property
    def body(self) -> memoryview:
        start = self.position + FRAME_HEADER_BYTES
        return memoryview(self.data)[start : start + self.header.body_bytes]

    def batches(self) -> list[Batch]:
        """Raises FormatError."""
        if self.frames is not None:
            return decode(self.frames)
        return [batches.decode(self.header, pa.py_buffer(self.data), self.position)]


def groups(data: bytes, positions: list[int], partition: int) -> Iterator[Group]:
    """The batches of a partition, and all links, among the intact frames at these positions."""
    if len(positions) <= max(FEW_FRAMES, len(data) // SMALL_BODY_BYTES):
        for position in positions:
            header = FrameHeader._make(FRAME_HEADER.unpack_from(data, position))
            its = header.kind == Kind.BATCH and header.partition == partition
            if its or header.kind == Kind.LINK:
                yield Group(header, header.next_offset, data, position)
        return
    frames = Stretch.at(data, positions)
    batch, link = frames.kinds == Kind.BATCH, frames.kinds == Kind.LINK
    wanted = link | (batch & (frames.partitions == partition))
    frames, batch = frames[wanted], batch[wanted]
    for start, stop in _follow_one_another(frames, batch):
        group = frames[start:stop]
        next_offset, position = int(group.next_offsets[-1]), int(group.positions[0])
        yield Group(group.header(0), next_offset, data, position, group)


def decode(frames: Stretch) -> list[Batch]:
    """The batches of these batch frames, each partition's in order; raises FormatError."""
    small = frames.headers["body_bytes"] <= SMALL_BODY_BYTES
    if np.count_nonzero(small) <= FEW_FRAMES:
        return _each(frames)
    order = np.argsort(frames.partitions, kind="stable")
    frames, small = frames[order], small[order]
    small &= frames.headers["codec"] == Codec.PACKED
    found: list[Batch] = []
    for start, stop in _follow_one_another(frames, small):
        group = frames[start:stop]
        joined = _join(group) if len(group) > FEW_FRAMES else None
        found += _each(group) if joined is None else [joined]
    return found


def _each(frames: Stretch) -> list[Batch]:
    data, places = pa.py_buffer(frames.data), enumerate(frames.positions.tolist())
    return [batches.decode(frames.header(row), data, position) for row, position in places]


def _follow_one_another(frames: Stretch, joinable: Truths) -> Iterator[tuple[int, int]]:
    """First and next row of every group; a frame that is not `joinable` is one by itself."""
    if not len(frames):
        return iter(())
    follows = joinable[1:] & joinable[:-1]
    follows &= frames.partitions[1:] == frames.partitions[:-1]
    follows &= frames.first_offsets[1:] == frames.next_offsets[:-1]
    return pairwise([0, *(np.flatnonzero(~follows) + 1).tolist(), len(frames)])


def _join(frames: Stretch) -> Batch | None:
    """None when the frames would grow too much, or one of them is for `packed` to refuse."""
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
    """The bodies of packed frames side by side: where their parts are, a number each."""

    def __init__(self, frames: Stretch) -> None:
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
        """Whether every body is what `packed` describes; to be asked before anything else."""
        if (self._values > self._end).any():
            return False
        columns = (self._subjects, self._headers, self._payloads)
        if any(self._numbers[column // 4].any() for column in columns):
            return False
        # The last offset of a column, which is its size, stands before the next column.
        self._header_values = self._values + self._numbers[self._headers // 4 - 1]
        header_bytes = self._numbers[self._payloads // 4 - 1] * self._headed
        self._payload_values = self._header_values + header_bytes
        payload_bytes = self._numbers[self._values // 4 - 1]
        if (self._payload_values + payload_bytes != self._end).any():
            return False
        # Of every message, its frame and its place there.
        self._frames = np.repeat(np.arange(len(self.counts)), self.counts)
        firsts = np.cumsum(self.counts) - self.counts
        self._places = np.arange(len(self._frames)) - firsts[self._frames]
        return True

    def subject(self) -> bytes | pa.BinaryArray | None:
        """One value if all messages share it; None when a column would grow too much."""
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
        """None when all messages have the first one's."""
        firsts = self._first_timestamps
        if not self._stamped.any():
            if (firsts == firsts[0]).all():
                return None
            return pa.array(firsts[self._frames])
        words = np.frombuffer(self._data, "<i8", len(self._data) // 8)
        stamped = self._stamped[self._frames]
        own = words[self._start[self._frames] // 8 + self._places * stamped]
        return pa.array(np.where(stamped, own, firsts[self._frames]))

    def _lengths(self, column: Integers, steps: Truths) -> npt.NDArray[np.uint32]:
        """Of every message; a frame that takes no steps has one value for all."""
        index = column[self._frames] // 4 + self._places * steps[self._frames]
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
