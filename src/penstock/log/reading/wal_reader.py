"""Read committed messages from WAL files, in a worker thread, by pread.

Never by mmap: a file cut short under a map kills the process, and a cold page stalls the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from penstock.formats import bodies, frame_groups
from penstock.formats.bodies import LinkBody, ObjectRef
from penstock.formats.frame_groups import FrameGroup
from penstock.formats.frame_table import TableEntry, entries_from, entry_at_time
from penstock.formats.frames import Kind
from penstock.formats.scan import BadBytes, walk
from penstock.host.disk import Disk
from penstock.log.files.wal_files import FileFinder, NextOffsets, WalFile
from penstock.model.batch import Batch
from penstock.model.units import Offset, PartitionId

READ_ALONG_BYTES_MAX: Final = 4096
"""Up to this many bytes of other frames are read along with those of a partition: reading a page
costs less than another call.
"""


@dataclass(frozen=True, slots=True)
class InObjects:
    """These offsets are rows of objects in the bucket, in this order."""

    partition: PartitionId
    first_offset: Offset
    next_offset: Offset
    objects: tuple[ObjectRef, ...]
    """Empty if only the manifest knows them."""
    timestamp: int = 0
    """The timestamp of all these rows."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets that were used and cannot be read from the files."""

    first_offset: Offset
    next_offset: Offset
    cause: str


class WalReader:
    """Reads the files of one log; every call receives the list of files to read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._finder = FileFinder(disk)

    def read(
        self, files: Sequence[WalFile], partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch] | InObjects | Unreadable:
        """Batches without a gap from the one with `offset` on, up to about `bytes_max`."""
        for file in files[self._finder.file_of(files, partition, offset) :]:
            table = self._finder.table_of(file)
            entries = _upto(entries_from(table, partition, offset), bytes_max)
            if entries:
                return self._read(file, entries, partition, offset)
        return Unreadable(offset, Offset(offset + 1), "no file has it")

    def stored(
        self, files: Sequence[WalFile], partition: PartitionId, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        """The next batches from `offset` on that are in the files, up to about `bytes_max`.

        Gaps between them are skipped; the list is empty if there are no more.
        """
        for file in files[self._finder.file_of(files, partition, offset) :]:
            table = self._finder.table_of(file)
            while entries := _upto(entries_from(table, partition, offset), bytes_max):
                found = [
                    batch
                    for group in self._groups(file, entries, partition)
                    if group.header.kind != Kind.LINK
                    for batch in group.batches()
                    if batch.next_offset > offset
                ]
                if found:
                    return found
                offset = Offset(entries[-1].next_offset)
        return []

    def first_after(
        self, files: Sequence[WalFile], partition: PartitionId, timestamp: int
    ) -> Offset | None:
        """The first offset that is not older than `timestamp`, or None if all are older."""
        # No message of an earlier file is newer than the header of a file says, so the offset is
        # not before the last file whose header is older than the timestamp. A damaged header has 0.
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

    def starts(self, files: Sequence[WalFile]) -> NextOffsets:
        """The first offsets in the files, by partition."""
        return self._finder.nexts_before(files, 0)

    def dead_files(
        self, files: Sequence[WalFile], starts: Mapping[int, int], first_needed_frame: int | None
    ) -> list[WalFile]:
        """The oldest files that have no readable message and no needed frame."""
        dead = self._finder.dead_prefix(files, starts)
        if first_needed_frame is not None:
            while dead and files[dead].header.first_frame > first_needed_frame:
                dead -= 1
        return list(files[:dead])

    def _search(
        self, file: WalFile, entry: TableEntry, partition: PartitionId, timestamp: int
    ) -> Offset | None:
        for group in self._groups(file, [entry], partition):
            if group.header.kind == Kind.LINK:
                where = _in_objects(group, partition)
                if where is not None and where.timestamp >= timestamp:
                    return where.first_offset
                continue
            for batch in group.batches():
                stamps = batch.timestamp_column().to_numpy()
                position = int(np.searchsorted(stamps, timestamp))
                if position < batch.count:
                    return Offset(batch.first_offset + position)
        return None

    def _read(
        self, file: WalFile, entries: list[TableEntry], partition: PartitionId, offset: Offset
    ) -> list[Batch] | InObjects | Unreadable:
        found: list[Batch] = []
        expected = offset
        for group in self._groups(file, entries, partition):
            where, first, next_ = None, group.header.first_offset, group.next_offset
            if group.header.kind == Kind.LINK:
                where = _in_objects(group, partition)
                if where is None:
                    continue
                first, next_ = where.first_offset, where.next_offset
            if next_ <= offset:
                continue
            if first > expected:
                return found or Unreadable(expected, Offset(first), _cause(file))
            if where is not None:
                return found or where
            found += [batch for batch in group.batches() if batch.next_offset > offset]
            expected = Offset(next_)
        return found or Unreadable(offset, Offset(entries[-1].next_offset), _cause(file))

    def _groups(
        self, file: WalFile, entries: list[TableEntry], partition: PartitionId
    ) -> Iterator[FrameGroup]:
        """Read the intact batches of a partition, and all links, in order."""
        fd = self._disk.open_read(file.path)
        try:
            for position, length in _stretches(entries):
                data = self._disk.read(fd, length, position)
                for item in walk(data, file.header.mark, 0):
                    if not isinstance(item, BadBytes):
                        yield from frame_groups.groups(data, item, partition)
        finally:
            self._disk.close(fd)


def _upto(entries: Iterator[TableEntry], bytes_max: int) -> list[TableEntry]:
    """At least one entry if there is any, then as many as fit with the bytes between them."""
    selected: list[TableEntry] = []
    size = 0
    for entry in entries:
        size += entry.length + (_bytes_between(selected[-1], entry) or 0 if selected else 0)
        if selected and size > bytes_max:
            break
        selected.append(entry)
    return selected


def _stretches(entries: list[TableEntry]) -> Iterator[tuple[int, int]]:
    """Positions and lengths of the stretches that are read by one call each."""
    start, end = entries[0].position, entries[0].position + entries[0].length
    for before, entry in pairwise(entries):
        if _bytes_between(before, entry) is None:
            yield start, end - start
            start = entry.position
        end = entry.position + entry.length
    yield start, end - start


def _bytes_between(entry: TableEntry, following: TableEntry) -> int | None:
    """Bytes of other frames between two entries; None if they are too many to be read along."""
    between = following.position - entry.position - entry.length
    return between if between <= READ_ALONG_BYTES_MAX else None


def _in_objects(group: FrameGroup, partition: PartitionId) -> InObjects | None:
    """The rows of a link in this partition, if it has any."""
    for part in bodies.decode(LinkBody, group.body).parts:
        if part.partition == partition and part.rows:
            first, next_ = Offset(part.first_offset), Offset(part.first_offset + part.rows)
            timestamp = group.header.first_timestamp
            return InObjects(partition, first, next_, tuple(part.objects), timestamp)
    return None


def _cause(file: WalFile) -> str:
    return f"{file.path.name} is damaged there"
