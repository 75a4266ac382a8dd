"""WAL files: their headers and first frames, sealing and rotation, and the file of an offset."""

from __future__ import annotations

import errno
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.formats import bodies, frame_table
from penstock.formats.bodies import SealBody, StartBody
from penstock.formats.frame_table import FrameTable, FrameTableWriter
from penstock.formats.frames import (
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FILE_VERSION,
    Buffer,
    Codec,
    FileHeader,
    Flag,
    FrameHeader,
    Kind,
    encode_file_header,
    encode_frame,
)
from penstock.formats.paths import parse_wal_name, wal_name
from penstock.host.disk import Disk
from penstock.log.files.scans import read_checkpoint, scan_file
from penstock.model.errors import FormatError

TABLES_KEPT: Final = 16
STARTS_KEPT: Final = 64
"""Frame tables and start states of sealed files that a log caches."""


@dataclass(slots=True)
class WalFile:
    """One file of a log; it has a `table` while it is active or if it was never sealed."""

    path: Path
    header: FileHeader
    end: int
    """Durable bytes: bytes after them are never read."""
    seal_position: int = 0
    table: FrameTableWriter | None = None

    @property
    def sequence(self) -> int:
        return self.header.sequence


@dataclass(slots=True, eq=False)
class ActiveFile:
    """The file that is written to; `crc32c` is the checksum of its first `file.end` bytes."""

    file: WalFile
    fd: int | None
    """None while the file is closed because other files were used more recently."""
    crc32c: int
    created_ns: int
    table: FrameTableWriter = field(default_factory=FrameTableWriter)
    used: bool = False
    """Whether it has more than checkpoints."""

    def open(self, disk: Disk) -> int:
        """Return the descriptor to write to; open the file if it is closed. Raises OSError."""
        if self.fd is None:
            fd = disk.open_append(self.file.path)
            if disk.size(fd) != self.file.end:
                disk.close(fd)
                raise OSError(errno.EIO, "the file changed while it was closed")
            self.fd = fd
        return self.fd


def checkpoint(
    header: FileHeader, number: int, durable: int, epoch: int, flags: int, body: bytes
) -> list[Buffer]:
    """Encode a checkpoint frame, as pieces."""
    fields = FrameHeader(
        header.mark,
        len(body),
        Kind.CHECKPOINT,
        Codec.NATIVE,
        flags,
        0,
        number,
        durable,
        epoch,
        0,
        0,
        0,
    )
    return encode_frame(fields, [body] if body else [])


def new_header(
    previous: WalFile | None, sequence: int, mark: int, first_frame: int, now_us: int
) -> FileHeader:
    """The header of a file after `previous`."""
    return FileHeader(
        magic=FILE_MAGIC,
        version=FILE_VERSION,
        flags=0,
        mark=mark,
        sequence=sequence,
        first_frame=first_frame,
        created_us=now_us,
        previous_end=previous.end if previous else 0,
        previous_seal=previous.seal_position if previous else 0,
        previous_back=sequence - previous.sequence if previous else 0,
    )


class NewFile(NamedTuple):
    """A file that is to be created, with its first frame."""

    path: Path
    header: FileHeader
    pieces: list[Buffer]

    @classmethod
    def of(cls, directory: Path, header: FileHeader, start: StartBody, epoch: int = 0) -> NewFile:
        number = header.first_frame
        frame = checkpoint(header, number, number, epoch, Flag.START, bodies.encode(start))
        path = directory / wal_name(header.sequence, number)
        return cls(path, header, [encode_file_header(header), *frame])

    def opened(self, fd: int) -> ActiveFile:
        """The active file, once it is created; `fd` is its descriptor."""
        crc = 0
        for piece in self.pieces:
            crc = crc32c(piece, crc)
        file = WalFile(self.path, self.header, sum(map(len, self.pieces)))
        active = ActiveFile(file, fd, crc, created_ns=0)
        file.table = active.table
        return active


def create(
    disk: Disk, directory: Path, header: FileHeader, start: StartBody, epoch: int
) -> ActiveFile:
    """Create a file with its first frame; durable on return."""
    new = NewFile.of(directory, header, start, epoch)
    return new.opened(disk.create(new.path, new.pieces))


def seal(disk: Disk, active: ActiveFile, number: int, epoch: int) -> None:
    """Write the last frame of a file; durable on return."""
    body = bodies.encode(SealBody(active.crc32c, active.table.encode()))
    pieces = checkpoint(active.file.header, number, number, epoch, Flag.SEAL, body)
    fd = active.open(disk)
    disk.write(fd, pieces)
    disk.sync(fd)
    active.file.seal_position = active.file.end
    active.file.end += sum(map(len, pieces))


@dataclass(slots=True)
class Rotation:
    """Seals the active file and creates the next one, in a thread of the committer."""

    directory: Path
    old: ActiveFile
    mark: int
    seal_number: int
    epoch: int
    now_us: int
    start: StartBody

    def carry_out(self, disk: Disk) -> ActiveFile:
        seal(disk, self.old, self.seal_number, self.epoch)
        header = new_header(
            self.old.file, self.old.file.sequence + 1, self.mark, self.seal_number + 1, self.now_us
        )
        return create(disk, self.directory, header, self.start, self.epoch)


def find_wal_files(directory: Path) -> list[Path]:
    """The WAL files of a directory, by sequence."""
    return sorted(path for path in directory.iterdir() if parse_wal_name(path.name))


class NextOffsets(dict[int, int]):
    """Next offsets by partition when a file was begun; `floor` for partitions not listed."""

    floor = 0

    def of(self, partition: int) -> int:
        return self.get(partition, self.floor)


class FileFinder:
    """Finds the file of an offset; its cache may be used by any number of worker threads."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = Lock()
        self._starts: OrderedDict[int, NextOffsets] = OrderedDict()
        self._tables: OrderedDict[int, FrameTable | FrameTableWriter] = OrderedDict()

    def file_of(self, files: Sequence[WalFile], partition: int, offset: int) -> int:
        """The index of the last file that starts at or before `offset` in this partition."""
        low, high = 0, len(files) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.nexts_before(files, middle).of(partition) <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def dead_prefix(self, files: Sequence[WalFile], starts: Mapping[int, int]) -> int:
        """The number of oldest files whose offsets are all before the starts of partitions."""
        for index in range(1, len(files)):
            nexts = self.nexts_before(files, index)
            if any(next_ > starts.get(partition, 0) for partition, next_ in nexts.items()):
                return index - 1
        return max(len(files) - 1, 0)

    def nexts_before(self, files: Sequence[WalFile], index: int) -> NextOffsets:
        """Next offsets when the file at `index` was begun."""
        file = files[index]
        with self._lock:
            if file.sequence in self._starts:
                self._starts.move_to_end(file.sequence)
                return self._starts[file.sequence]
        try:
            start = bodies.decode(StartBody, self._checkpoint(file, FILE_HEADER_BYTES))
            ends = zip(array("I", start.partitions), array("q", start.nexts), strict=True)
            nexts = NextOffsets(ends)
            nexts.floor = start.floor
        except (FormatError, FileNotFoundError):
            nexts = self._nexts_after(files, index - 1) if index else NextOffsets()
        with self._lock:
            self._starts[file.sequence] = nexts
            while len(self._starts) > STARTS_KEPT:
                self._starts.popitem(last=False)
        return nexts

    def _nexts_after(self, files: Sequence[WalFile], index: int) -> NextOffsets:
        """Next offsets after a file, for a successor whose first frame is damaged."""
        before = self.nexts_before(files, index)
        nexts = NextOffsets(before)
        nexts.floor = before.floor
        partitions, _, ends, *_ = self.table_of(files[index]).columns()
        nexts.update(zip(partitions, ends, strict=True))
        return nexts

    def table_of(self, file: WalFile) -> FrameTable | FrameTableWriter:
        """The frame table of a file: where its messages are."""
        growing = file.table
        if growing is not None:
            return growing
        with self._lock:
            if file.sequence in self._tables:
                self._tables.move_to_end(file.sequence)
                return self._tables[file.sequence]
        loaded: FrameTable | FrameTableWriter
        try:
            seal_body = bodies.decode(SealBody, self._checkpoint(file, file.seal_position))
            loaded = frame_table.decode(seal_body.table)
        except FormatError:
            loaded = scan_file(self._disk, file.path, file.end, 0).table()
        with self._lock:
            self._tables[file.sequence] = loaded
            while len(self._tables) > TABLES_KEPT:
                self._tables.popitem(last=False)
        return loaded

    def _checkpoint(self, file: WalFile, position: int) -> bytes:
        fd = self._disk.open_read(file.path)
        try:
            return read_checkpoint(self._disk, fd, file.header.mark, position)
        finally:
            self._disk.close(fd)
