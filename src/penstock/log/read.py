"""Read committed messages from WAL files, in a worker thread, by pread.

Never by mmap: a file cut short under a map kills the process, and a cold page stalls the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.formats import batches, bodies
from penstock.formats.bodies import Link, ObjectRef
from penstock.formats.extents import Extent, extents
from penstock.formats.frames import FRAME_HEADER_BYTES, Flag, Kind
from penstock.formats.scan import Found, scan
from penstock.formats.table import Entry, entries_from, entry_at_time
from penstock.host.disk import Disk
from penstock.log.files import FileFinder, WalFile
from penstock.model.batch import Batch
from penstock.model.units import Offset, PartitionId


@dataclass(frozen=True, slots=True)
class InObjects:
    """These offsets are rows of objects in the bucket, in this order."""

    partition: PartitionId
    first_offset: Offset
    next_offset: Offset
    objects: tuple[ObjectRef, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets that were given out and cannot be read here."""

    first_offset: Offset
    next_offset: Offset
    cause: str


class WalReader:
    """Reads one log's files; a call works on the list of files it is given."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._finder = FileFinder(disk)

    def read(
        self, files: Sequence[WalFile], partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | InObjects | Unreadable:
        """Batches from `offset` on without a gap, about `bytes_max`; the first holds `offset`."""
        for file in files[self._finder.file_of(files, partition, offset) :]:
            table = self._finder.table_of(file)
            entries = _upto(entries_from(table, partition, offset), bytes_max)
            if entries:
                return self._read(file, entries, partition, offset)
        return Unreadable(offset, Offset(offset + 1), "no file has it")

    def first_after(
        self, files: Sequence[WalFile], partition: PartitionId, timestamp: int
    ) -> Offset | None:
        """The first offset whose timestamp is not before `timestamp`; None when all are older."""
        # No message before a file is younger than its header says, so the answer is not before the
        # last file that says less than the timestamp. A damaged header says nothing.
        begun = [n for n, f in enumerate(files) if 0 < f.header.created_us < timestamp]
        for file in files[max(begun, default=0) :]:
            table = self._finder.table_of(file)
            entry = entry_at_time(table, partition, timestamp)
            if entry is None:
                continue
            if entry.first_timestamp >= timestamp:
                return Offset(entry.first_offset)
            inside = self._search(file, entry, partition, timestamp)
            if inside is not None:
                return inside
            following = next(entries_from(table, partition, entry.next_offset), None)
            if following is not None:
                return Offset(following.first_offset)
        return None

    def starts(self, files: Sequence[WalFile]) -> Mapping[int, int]:
        """First offsets that the files hold, by partition."""
        return self._finder.nexts_before(files, 0)

    def dead_files(
        self, files: Sequence[WalFile], starts: Mapping[int, int], frame_kept: int | None
    ) -> list[WalFile]:
        """The oldest files that hold nothing anybody can read, nor frames from `frame_kept` on."""
        dead = self._finder.dead_prefix(files, starts)
        if frame_kept is not None:
            while dead and files[dead].header.first_frame > frame_kept:
                dead -= 1
        return list(files[:dead])

    def _search(
        self, file: WalFile, entry: Entry, partition: PartitionId, timestamp: int
    ) -> Offset | None:
        for data, frame in self._frames(file, [entry]):
            extent = _extent_in(frame, data, partition)
            if extent is None or extent.first == extent.next:
                continue
            if frame.header.first_timestamp >= timestamp:
                return Offset(extent.first)
            if frame.header.kind == Kind.BATCH and frame.header.flags & Flag.TIMESTAMPS:
                batch = batches.decode(frame.header, data, frame.position)
                position = int(np.searchsorted(batch.timestamp_column().to_numpy(), timestamp))
                if position < batch.count:
                    return Offset(batch.first_offset + position)
        return None

    def _read(
        self, file: WalFile, entries: list[Entry], partition: PartitionId, offset: Offset
    ) -> list[Batch] | InObjects | Unreadable:
        found: list[Batch] = []
        expected = offset
        for data, frame in self._frames(file, entries):
            extent = _extent_in(frame, data, partition)
            if extent is None or extent.next <= offset:
                continue
            if extent.first > expected:
                return found or Unreadable(expected, Offset(extent.first), _cause(file))
            if frame.header.kind == Kind.LINK:
                return found or _in_objects(frame, data, extent)
            found.append(batches.decode(frame.header, data, frame.position))
            expected = Offset(extent.next)
        return found or Unreadable(offset, Offset(entries[-1].next_offset), _cause(file))

    def _frames(self, file: WalFile, entries: list[Entry]) -> Iterator[tuple[pa.Buffer, Found]]:
        fd = self._disk.open_read(file.path)
        try:
            for position, length in _stretches(entries):
                data = pa.py_buffer(self._disk.read(fd, length, position))
                for item in scan(memoryview(data), file.header.mark, 0):
                    if isinstance(item, Found):
                        yield data, item
        finally:
            self._disk.close(fd)


def _upto(entries: Iterator[Entry], bytes_max: int) -> list[Entry]:
    """At least one entry if there is any, then as many as fit."""
    taken: list[Entry] = []
    size = 0
    for entry in entries:
        size += entry.length
        if taken and size > bytes_max:
            break
        taken.append(entry)
    return taken


def _stretches(entries: list[Entry]) -> Iterator[tuple[int, int]]:
    """Neighbouring entries joined, so that they are read in one go."""
    position, length = entries[0].position, entries[0].length
    for entry in entries[1:]:
        if entry.position == position + length:
            length += entry.length
        else:
            yield position, length
            position, length = entry.position, entry.length
    yield position, length


def _extent_in(frame: Found, data: pa.Buffer, partition: PartitionId) -> Extent | None:
    for extent in extents(frame.header, _body(frame, data)):
        if extent.partition == partition:
            return extent
    return None


def _in_objects(frame: Found, data: pa.Buffer, extent: Extent) -> InObjects:
    link = bodies.decode(Link, _body(frame, data))
    objects = next(part.objects for part in link.parts if part.partition == extent.partition)
    partition = PartitionId(extent.partition)
    return InObjects(partition, Offset(extent.first), Offset(extent.next), tuple(objects))


def _body(frame: Found, data: pa.Buffer) -> memoryview:
    start = frame.position + FRAME_HEADER_BYTES
    return memoryview(data)[start : start + frame.header.body_bytes]


def _cause(file: WalFile) -> str:
    return f"{file.path.name} is damaged there"
