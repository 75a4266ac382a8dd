"""Collects the frames of a log in order from a cursor on, for the uploader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from penstock.formats import bodies, frame_groups
from penstock.formats.bodies import LinkBody
from penstock.formats.frame_groups import Frames, Truths
from penstock.formats.frames import FILE_HEADER_BYTES, Codec, Kind
from penstock.formats.scan import BadBytes, walk
from penstock.host.disk import Disk
from penstock.log.files.wal_files import WalFile
from penstock.model.batch import Batch, alike
from penstock.model.units import PartitionRange

CHUNK_BYTES: Final = 4 << 20


class Cursor(NamedTuple):
    """Where collecting continues: the next frame, its file and its position there."""

    frame: int
    sequence: int
    position: int


class LinkFrame(NamedTuple):
    """A link and the timestamp of its rows."""

    timestamp: int
    link: LinkBody


@dataclass(slots=True)
class Collected:
    """Batches that are alike, or links, and the cursor after them; in order within a partition."""

    cursor: Cursor
    batches: list[Batch] = field(default_factory=list)
    links: list[LinkFrame] = field(default_factory=list)
    size_bytes: int = 0
    _nexts: dict[int, int] = field(default_factory=dict)

    def add(self, frames: Frames, gap_is_recorded: Callable[[PartitionRange], bool]) -> int:
        """Add frames and return how many fit: they are alike, and no damage lies between.

        `frames` are packed batches, or one frame that is a link or a batch of another codec.
        """
        if not len(frames):
            return 0
        if frames.kinds[0] == Kind.LINK:
            if self.batches:
                return 0
            link = bodies.decode(LinkBody, frames.body(0))
            self.links.append(LinkFrame(frames.header(0).first_timestamp, link))
            self.size_bytes += frames.header(0).frame_bytes
            return 1
        count = 0 if self.links else self._undamaged(frames, gap_is_recorded)
        found = frame_groups.decode(frames[:count])
        if self.batches and found and not alike(self.batches[0], found[0]):
            return 0
        self.batches += found
        self.size_bytes += int(frames[:count].frame_bytes.sum())
        self._nexts.update((batch.partition, batch.next_offset) for batch in found)
        return count

    def _undamaged(self, frames: Frames, gap_is_recorded: Callable[[PartitionRange], bool]) -> int:
        """The number of frames before a gap that is not recorded."""
        order = np.argsort(frames.partitions, kind="stable")
        ranked = frames[order]
        firsts = ranked.first_offsets
        befores = np.append(0, ranked.next_offsets[:-1])
        partitions, rows = np.unique(ranked.partitions, return_index=True)
        for partition, row in zip(partitions.tolist(), rows.tolist(), strict=True):
            befores[row] = self._nexts.get(partition, firsts[row])
        gaps = np.flatnonzero(firsts != befores)
        for row in gaps[np.argsort(order[gaps])].tolist():
            gap = PartitionRange(int(ranked.partitions[row]), int(befores[row]), int(firsts[row]))
            if not gap_is_recorded(gap):
                return int(order[row])
        return len(frames)


def collect(
    disk: Disk,
    files: Sequence[WalFile],
    cursor: Cursor,
    bytes_max: int,
    gap_is_recorded: Callable[[PartitionRange], bool],
) -> Collected:
    """Collect frames from `cursor` on, up to about `bytes_max`; runs in a worker thread."""
    result = Collected(cursor)
    for file in files:
        if file.sequence < result.cursor.sequence:
            continue
        if file.sequence > result.cursor.sequence:
            result.cursor = Cursor(file.header.first_frame, file.sequence, FILE_HEADER_BYTES)
        if not _collect_file(disk, file, bytes_max, result, gap_is_recorded):
            break
    return result


def _collect_file(
    disk: Disk,
    file: WalFile,
    bytes_max: int,
    result: Collected,
    gap_is_recorded: Callable[[PartitionRange], bool],
) -> bool:
    """Collect from one file; return whether it was read to its end."""
    end = file.end
    chunk = CHUNK_BYTES
    fd = disk.open_read(file.path)
    try:
        while result.cursor.position < end:
            start = result.cursor.position
            room = bytes_max - result.size_bytes if result.size_bytes else chunk
            if room <= 0:
                return False
            size = min(chunk, room, end - start)
            data = disk.read(fd, size, start)
            last = start + len(data) >= end or len(data) < size
            if not data:
                break
            read = _Chunk(data, file.header.mark, start, last)
            if not _take_chunk(result, read, bytes_max, gap_is_recorded):
                return False
            if result.cursor.position > start:
                chunk = CHUNK_BYTES
            elif room < chunk:
                return False
            else:
                chunk *= 2
    finally:
        disk.close(fd)
    return True


class _Chunk(NamedTuple):
    """Bytes of a file."""

    data: bytes
    mark: int
    start: int
    last: bool
    """Whether these are the last bytes, so that a partial frame at their end is damage."""


def _take_chunk(
    result: Collected,
    chunk: _Chunk,
    bytes_max: int,
    gap_is_recorded: Callable[[PartitionRange], bool],
) -> bool:
    """Add the complete frames; return whether there is room for more."""
    for item in walk(chunk.data, chunk.mark, 0):
        if isinstance(item, BadBytes):
            if not chunk.last and item.end == len(chunk.data):
                break
            result.cursor = result.cursor._replace(position=chunk.start + item.end)
            continue
        frames = Frames.at(chunk.data, item)
        for part in frames.apart(_added_singly(frames)):
            if not _take(result, part, chunk.start, bytes_max, gap_is_recorded):
                return False
    return True


def _added_singly(frames: Frames) -> Truths:
    """Which frames are added one by one: links, and batches that are not packed."""
    batch, packed = frames.kinds == Kind.BATCH, frames.headers["codec"] == Codec.PACKED
    singly: Truths = (frames.kinds == Kind.LINK) | (batch & ~packed)
    return singly


def _take(
    result: Collected,
    frames: Frames,
    start: int,
    bytes_max: int,
    gap_is_recorded: Callable[[PartitionRange], bool],
) -> bool:
    """Add frames until the collection is full or a frame does not fit; return whether all did."""
    numbers = frames.headers["number"].astype(np.int64)
    reached = np.maximum.accumulate(np.append(result.cursor.frame, numbers + 1))
    fresh = numbers >= reached[:-1]
    carries = fresh & ((frames.kinds == Kind.BATCH) | (frames.kinds == Kind.LINK))
    sizes = np.where(carries, frames.frame_bytes, 0)
    before = result.size_bytes + np.cumsum(sizes) - sizes
    full = np.flatnonzero(fresh & (before > 0) & (before + frames.frame_bytes > bytes_max))
    stop = int(full[0]) if len(full) else len(frames)
    rows = np.flatnonzero(carries[:stop])
    added = result.add(frames[rows], gap_is_recorded)
    if added < len(rows):
        stop = int(rows[added])
    if stop:
        position = start + int(frames.ends[stop - 1])
        result.cursor = Cursor(int(reached[stop]), result.cursor.sequence, position)
    return stop == len(frames)
