"""Read committed messages from WAL files, in a worker thread, by pread.

Never by mmap: a file cut short under a map kills the process, and a cold page stalls the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from penstock.formats import bodies, joined
from penstock.formats.bodies import Link, ObjectRef
from penstock.formats.frames import Kind
from penstock.formats.joined import Group
from penstock.formats.scan import Bad, walk
from penstock.formats.table import Entry, entries_from, entry_at_time
from penstock.host.disk import Disk
from penstock.log.files import FileFinder, WalFile
from penstock.model.batch import Batch
from penstock.model.units import Offset, PartitionId

READ_ALONG_BYTES_MAX: Final = 4096
"""Other frames between those of a partition are read along up to this: a page costs less than
another read.
"""


@dataclass(frozen=True, slots=True)
class InObjects:
    """These offsets are rows of objects in the bucket, in this order."""

    partition: PartitionId
    first_offset: Offset
    next_offset: Offset
    objects: tuple[ObjectRef, ...]
    """Empty when only the manifest knows them."""
    timestamp: int = 0
    """That all these rows carry."""


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
        self, file: WalFile, entries: list[Entry], partition: PartitionId, offset: Offset
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
        self, file: WalFile, entries: list[Entry], partition: PartitionId
    ) -> Iterator[Group]:
        """The intact batches of a partition, and all links, in order."""
        fd = self._disk.open_read(file.path)
        try:
            for position, length in _stretches(entries):
                data = self._disk.read(fd, length, position)
                for item in walk(data, file.header.mark, 0):
                    if not isinstance(item, Bad):
                        yield from joined.groups(data, item, partition)
        finally:
            self._disk.close(fd)


def _upto(entries: Iterator[Entry], bytes_max: int) -> list[Entry]:
    """At least one entry if there is any, then as many as fit with what is read along."""
    taken: list[Entry] = []
    size = 0
    for entry in entries:
        size += entry.length + (_read_along(taken[-1], entry) or 0 if taken else 0)
        if taken and size > bytes_max:
            break
        taken.append(entry)
    return taken


def _stretches(entries: list[Entry]) -> Iterator[tuple[int, int]]:
    """Position and length of what is read in one go."""
    start, end = entries[0].position, entries[0].position + entries[0].length
    for before, entry in pairwise(entries):
        if _read_along(before, entry) is None:
            yield start, end - start
            start = entry.position
        end = entry.position + entry.length
    yield start, end - start


def _read_along(entry: Entry, following: Entry) -> int | None:
    """Bytes of other frames between these two; None when they are too many to be read along."""
    between = following.position - entry.position - entry.length
    return between if between <= READ_ALONG_BYTES_MAX else None


def _in_objects(group: Group, partition: PartitionId) -> InObjects | None:
    """Where the rows are that a link gives the partition, if it gives any."""
    for part in bodies.decode(Link, group.body).parts:
        if part.partition == partition and part.rows:
            first, next_ = Offset(part.first_offset), Offset(part.first_offset + part.rows)
            timestamp = group.header.first_timestamp
            return InObjects(partition, first, next_, tuple(part.objects), timestamp)
    return None


def _cause(file: WalFile) -> str:
    return f"{file.path.name} is damaged there"
