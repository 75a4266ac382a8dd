"""Verifies the files of a log without opening it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from penstock.formats import bodies
from penstock.formats.bodies import SealBody, StartBody, offset_ranges
from penstock.formats.frames import FILE_HEADER_BYTES, Flag, Kind
from penstock.formats.paths import parse_wal_name
from penstock.formats.scan import Damage
from penstock.host.disk import Disk
from penstock.log.files.scans import Scanned, read_header, scan_file
from penstock.log.files.wal_files import find_wal_files
from penstock.log.recovery.chain import LEAD_BYTES
from penstock.log.state import LogState
from penstock.model.errors import FormatError
from penstock.model.units import PartitionId, PartitionRange


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a file, with the position of the byte if it is known."""

    position: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class FileReport:
    """The content of a file and its defects."""

    path: Path
    frames: int
    messages: int
    sealed: bool
    problems: tuple[Problem, ...]


def wal_files(path: Path) -> list[Path]:
    """The WAL file itself or those of a directory; raises FormatError if there are none."""
    found = find_wal_files(path) if path.is_dir() else [path]
    if not found or not all(parse_wal_name(file.name) for file in found):
        raise FormatError(f"{path} is no WAL file and no directory with WAL files")
    return found


def verify(disk: Disk, path: Path) -> Iterator[FileReport]:
    """Read every byte, verify every checksum, and compare each file with its predecessor."""
    paths = wal_files(path)
    state: LogState | None = None
    for index, file in enumerate(paths):
        following = paths[index + 1] if index + 1 < len(paths) else None
        try:
            end, durable = _durable_end(disk, file, following)
            scanned = scan_file(disk, file, end, durable)
        except FormatError as error:
            yield FileReport(file, 0, 0, False, (Problem(None, str(error)),))
            continue
        problems = list(_problems(scanned))
        if end is not None and file.stat().st_size > end:
            problems.append(Problem(end, "bytes after the durable end, never acknowledged"))
        state = _check_start(scanned, state, problems)
        messages = 0
        for item in scanned.found:
            for extent in offset_ranges(item.header, scanned.body(item)):
                messages += extent.next - extent.first
                _check_order(state, extent.partition, extent.first, extent.next, problems)
            state.apply(item.header, scanned.body(item))
        sealed = bool(scanned.found) and _check_seal(scanned, problems)
        yield FileReport(file, len(scanned.found), messages, sealed, tuple(problems))


def _durable_end(disk: Disk, file: Path, following: Path | None) -> tuple[int | None, int]:
    """Durable bytes and frames of a file, as the next file names them; None if it does not."""
    named, next_named = parse_wal_name(file.name), following and parse_wal_name(following.name)
    if following is None or named is None or not next_named:
        return None, 0
    fd = disk.open_read(following)
    try:
        header, _ = read_header(disk.read(fd, LEAD_BYTES, 0), following)
    except FormatError:
        return None, next_named[1]
    finally:
        disk.close(fd)
    mine = header.sequence - header.previous_back == named[0] and header.previous_end
    return header.previous_end if mine else None, next_named[1]


def _problems(scanned: Scanned) -> Iterator[Problem]:
    if not scanned.header_intact:
        yield Problem(0, "the file header is damaged")
    for damage in scanned.damages:
        yield Problem(damage.position, _sentence(damage))


def _sentence(damage: Damage) -> str:
    size = damage.end - damage.position
    what = f"{damage.verdict.value}: {size} bytes from frame {damage.first_number} on"
    header = damage.header
    if header is not None and header.kind == Kind.BATCH:
        what += (
            f", partition {header.partition}, offsets {header.first_offset} to "
            f"{header.next_offset - 1}"
        )
    return what


def _check_start(scanned: Scanned, state: LogState | None, problems: list[Problem]) -> LogState:
    """The state that the file begins with, compared with the end of its predecessor."""
    first = scanned.found[0] if scanned.found else None
    if first is None or not (
        first.header.kind == Kind.CHECKPOINT and first.header.flags & Flag.START
    ):
        problems.append(
            Problem(FILE_HEADER_BYTES, "the first frame, with the log's state, is missing")
        )
        return state or LogState("")
    begun = LogState.from_start(bodies.decode(StartBody, scanned.body(first)))
    if state is not None and not _follows(state, begun):
        problems.append(Problem(FILE_HEADER_BYTES, "does not begin where the file before it ended"))
    return begun


def _follows(before: LogState, begun: LogState) -> bool:
    """Whether there are only recorded gaps between the two states."""
    gaps = [
        PartitionRange(p, before.next(PartitionId(p)), begun.next(PartitionId(p)))
        for p in {*before.nexts, *begun.nexts}
    ]
    return all(gap.first <= gap.next and begun.gap_is_recorded(gap) for gap in gaps)


def _check_order(
    state: LogState, partition: int, first: int, next_: int, problems: list[Problem]
) -> None:
    expected = state.next(PartitionId(partition))
    if first < expected:
        sentence = f"partition {partition}: offsets {first} to {next_ - 1} are given twice"
        problems.append(Problem(None, sentence))
    elif first > expected:
        sentence = f"partition {partition}: offsets {expected} to {first - 1} are missing"
        problems.append(Problem(None, sentence))


def _check_seal(scanned: Scanned, problems: list[Problem]) -> bool:
    last = scanned.found[-1]
    if not (last.header.kind == Kind.CHECKPOINT and last.header.flags & Flag.SEAL):
        return False
    seal = bodies.decode(SealBody, scanned.body(last))
    if crc32c(memoryview(scanned.data)[: last.position]) != seal.crc32c:
        problems.append(Problem(None, "the checksum over the whole file is wrong"))
    return True
