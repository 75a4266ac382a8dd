"""The files of one log: what is known of each, how one is made, where an offset lies."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.formats import bodies, table
from penstock.formats.bodies import Seal, Start
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
from penstock.formats.table import Table, TableWriter
from penstock.host.disk import Disk
from penstock.log.scans import read_checkpoint, scan_file
from penstock.model.errors import FormatError

TABLES_KEPT: Final = 16
STARTS_KEPT: Final = 64
"""Frame tables and start states of sealed files a log keeps in memory."""


@dataclass(slots=True)
class WalFile:
    """One file of a log; `table` is there while the file is active or was never sealed."""

    path: Path
    header: FileHeader
    end: int
    """Durable bytes: what lies behind them does not count."""
    seal_position: int = 0
    table: TableWriter | None = None

    @property
    def sequence(self) -> int:
        return self.header.sequence


@dataclass(slots=True)
class ActiveFile:
    """The file that is written; `crc32c` is the checksum over its first `file.end` bytes."""

    file: WalFile
    fd: int
    crc32c: int
    created_ns: int
    table: TableWriter = field(default_factory=TableWriter)
    used: bool = False
    """Whether it holds more than checkpoints."""


def checkpoint(
    header: FileHeader, number: int, durable: int, epoch: int, flags: int, body: bytes
) -> list[Buffer]:
    """A checkpoint frame as pieces."""
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
    """A file that is to be made, with its first frame."""

    path: Path
    header: FileHeader
    pieces: list[Buffer]

    @classmethod
    def of(cls, directory: Path, header: FileHeader, start: Start, epoch: int = 0) -> NewFile:
        number = header.first_frame
        frame = checkpoint(header, number, number, epoch, Flag.START, bodies.encode(start))
        path = directory / wal_name(header.sequence, number)
        return cls(path, header, [encode_file_header(header), *frame])

    def opened(self, fd: int) -> ActiveFile:
        """The file once it is on disk."""
        crc = 0
        for piece in self.pieces:
            crc = crc32c(piece, crc)
        file = WalFile(self.path, self.header, sum(map(len, self.pieces)))
        active = ActiveFile(file, fd, crc, created_ns=0)
        file.table = active.table
        return active


def create(disk: Disk, directory: Path, header: FileHeader, start: Start, epoch: int) -> ActiveFile:
    """Make a file with its first frame; it is durable when this returns."""
    new = NewFile.of(directory, header, start, epoch)
    return new.opened(disk.create(new.path, new.pieces))


def seal(disk: Disk, active: ActiveFile, number: int, epoch: int) -> None:
    """Write the last frame of a file and make it durable."""
    body = bodies.encode(Seal(active.crc32c, active.table.encode()))
    pieces = checkpoint(active.file.header, number, number, epoch, Flag.SEAL, body)
    disk.write(active.fd, pieces)
    disk.sync(active.fd)
    active.file.seal_position = active.file.end
    active.file.end += sum(map(len, pieces))


@dataclass(slots=True)
class Rotation:
    """Seal the active file and begin the next one, in the committer's thread."""

    directory: Path
    old: ActiveFile
    mark: int
    seal_number: int
    epoch: int
    now_us: int
    start: Start

    def carry_out(self, disk: Disk) -> ActiveFile:
        seal(disk, self.old, self.seal_number, self.epoch)
        header = new_header(
            self.old.file, self.old.file.sequence + 1, self.mark, self.seal_number + 1, self.now_us
        )
        return create(disk, self.directory, header, self.start, self.epoch)


def find_wal_files(directory: Path) -> list[Path]:
    """WAL files by sequence."""
    return sorted(path for path in directory.iterdir() if parse_wal_name(path.name))


class FileFinder:
    """Finds the file of an offset. Called from worker threads, so it locks what it remembers."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = Lock()
        self._starts: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._tables: OrderedDict[int, Table | TableWriter] = OrderedDict()

    def file_of(self, files: Sequence[WalFile], partition: int, offset: int) -> int:
        """Index of the last file that starts at or before `offset` in this partition."""
        low, high = 0, len(files) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.nexts_before(files, middle).get(partition, 0) <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def dead_prefix(self, files: Sequence[WalFile], starts: Mapping[int, int]) -> int:
        """How many of the oldest files hold no offset from the starts of their partitions on."""
        for index in range(1, len(files)):
            nexts = self.nexts_before(files, index)
            if any(next_ > starts.get(partition, 0) for partition, next_ in nexts.items()):
                return index - 1
        return max(len(files) - 1, 0)

    def nexts_before(self, files: Sequence[WalFile], index: int) -> dict[int, int]:
        """Next offsets of all partitions when the file was begun."""
        file = files[index]
        with self._lock:
            if file.sequence in self._starts:
                self._starts.move_to_end(file.sequence)
                return self._starts[file.sequence]
        try:
            start = bodies.decode(Start, self._checkpoint(file, FILE_HEADER_BYTES))
            nexts = dict(zip(array("I", start.partitions), array("q", start.nexts), strict=True))
        except (FormatError, FileNotFoundError):
            nexts = self._nexts_after(files, index - 1) if index else {}
        with self._lock:
            self._starts[file.sequence] = nexts
            while len(self._starts) > STARTS_KEPT:
                self._starts.popitem(last=False)
        return nexts

    def _nexts_after(self, files: Sequence[WalFile], index: int) -> dict[int, int]:
        """The same from the file before, for a file whose first frame is damaged."""
        nexts = dict(self.nexts_before(files, index))
        partitions, _, ends, *_ = self.table_of(files[index]).columns()
        nexts.update(zip(partitions, ends, strict=True))
        return nexts

    def table_of(self, file: WalFile) -> Table | TableWriter:
        """Where the messages of the file are."""
        growing = file.table
        if growing is not None:
            return growing
        with self._lock:
            if file.sequence in self._tables:
                self._tables.move_to_end(file.sequence)
                return self._tables[file.sequence]
        loaded: Table | TableWriter
        try:
            seal_body = bodies.decode(Seal, self._checkpoint(file, file.seal_position))
            loaded = table.decode(seal_body.table)
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
