"""Take the frames of a log in order from a cursor on, file after file: what the uploader reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.formats import batches, bodies
from penstock.formats.bodies import Link
from penstock.formats.extents import Extent
from penstock.formats.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, Kind
from penstock.formats.scan import Bad, Found, scan
from penstock.host.disk import Disk
from penstock.log.files import WalFile
from penstock.model.batch import Batch, alike

CHUNK_BYTES: Final = 4 << 20


class Cursor(NamedTuple):
    """Where reading goes on: a frame and the place it lies."""

    frame: int
    sequence: int
    position: int


@dataclass(slots=True)
class Collected:
    """Batches of one kind and links, in frame order, and where to go on behind them."""

    cursor: Cursor
    batches: list[Batch] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    size_bytes: int = 0
    _nexts: dict[int, int] = field(default_factory=dict)

    def takes(self, batch: Batch, gap_is_recorded: Callable[[Extent], bool]) -> bool:
        """Whether the batch goes with the others: same kind, and no damage between."""
        if self.batches and not alike(self.batches[0], batch):
            return False
        expected = self._nexts.get(batch.partition, batch.first_offset)
        gap = Extent(batch.partition, expected, batch.first_offset)
        return gap.first == gap.next or gap_is_recorded(gap)

    def add(self, batch: Batch, size_bytes: int) -> None:
        self.batches.append(batch)
        self.size_bytes += size_bytes
        self._nexts[batch.partition] = batch.next_offset


def collect(
    disk: Disk,
    files: Sequence[WalFile],
    cursor: Cursor,
    bytes_max: int,
    gap_is_recorded: Callable[[Extent], bool],
) -> Collected:
    """Frames from `cursor` on, up to about `bytes_max`; in a thread."""
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
    gap_is_recorded: Callable[[Extent], bool],
) -> bool:
    """Whether the file was read to its end and the next one may follow."""
    end = file.end
    chunk = CHUNK_BYTES
    fd = disk.open_read(file.path)
    try:
        while result.cursor.position < end:
            start = result.cursor.position
            data = pa.py_buffer(disk.read(fd, min(chunk, end - start), start))
            last = start + data.size >= end or data.size < min(chunk, end - start)
            if not data.size:
                break
            for item in scan(memoryview(data), file.header.mark, 0):
                if isinstance(item, Bad):
                    if not last and item.end == data.size:
                        break
                    result.cursor = result.cursor._replace(position=start + item.end)
                elif not _take(result, item, data, start, bytes_max, gap_is_recorded):
                    return False
            chunk = CHUNK_BYTES if result.cursor.position > start else chunk * 2
    finally:
        disk.close(fd)
    return True


def _take(
    result: Collected,
    item: Found,
    data: pa.Buffer,
    start: int,
    bytes_max: int,
    gap_is_recorded: Callable[[Extent], bool],
) -> bool:
    """Take one frame unless the collection is full or the frame does not go with it."""
    header = item.header
    if header.number >= result.cursor.frame:
        if result.size_bytes and result.size_bytes + header.frame_bytes > bytes_max:
            return False
        if header.kind == Kind.BATCH:
            batch = batches.decode(header, data, item.position)
            if not result.takes(batch, gap_is_recorded):
                return False
            result.add(batch, header.frame_bytes)
        elif header.kind == Kind.LINK:
            body = item.position + FRAME_HEADER_BYTES
            result.links.append(bodies.decode(Link, data[body : body + header.body_bytes]))
    frame = max(result.cursor.frame, header.number + 1)
    result.cursor = Cursor(frame, result.cursor.sequence, start + item.end)
    return True
