"""Look at the files of a log without opening it: for the dump and verify tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from penstock.formats import bodies
from penstock.formats.bodies import Seal, Start
from penstock.formats.extents import extents
from penstock.formats.frames import FILE_HEADER_BYTES, Flag, Kind
from penstock.formats.paths import parse_wal_name
from penstock.formats.scan import Damage, Verdict
from penstock.host.disk import Disk
from penstock.log.files import find_wal_files
from penstock.log.scans import Scanned, scan_file
from penstock.log.state import LogState
from penstock.model.errors import FormatError


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a file, at a byte if that can be told."""

    position: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class FileReport:
    """What a file holds and what is wrong with it."""

    path: Path
    frames: int
    messages: int
    sealed: bool
    problems: tuple[Problem, ...]


def wal_files(path: Path) -> list[Path]:
    """The WAL file itself, or those of a directory; raises FormatError when there are none."""
    found = find_wal_files(path) if path.is_dir() else [path]
    if not found or not all(parse_wal_name(file.name) for file in found):
        raise FormatError(f"{path} is no WAL file and no directory with WAL files")
    return found


def verify(disk: Disk, path: Path) -> Iterator[FileReport]:
    """Read every byte, check every checksum, and compare the files with one another."""
    paths = wal_files(path)
    state: LogState | None = None
    for index, file in enumerate(paths):
        following = parse_wal_name(paths[index + 1].name) if index + 1 < len(paths) else None
        try:
            scanned = scan_file(disk, file, None, following[1] if following else 0)
        except FormatError as error:
            yield FileReport(file, 0, 0, False, (Problem(None, str(error)),))
            continue
        problems = list(_problems(scanned, last=following is None))
        state = _check_start(scanned, state, problems)
        messages = 0
        for item in scanned.found:
            for extent in extents(item.header, scanned.body(item)):
                messages += extent.next - extent.first
                _check_order(state, extent.partition, extent.first, extent.next, problems)
            state.apply(item.header, scanned.body(item))
        sealed = bool(scanned.found) and _check_seal(scanned, problems)
        yield FileReport(file, len(scanned.found), messages, sealed, tuple(problems))


def _problems(scanned: Scanned, last: bool) -> Iterator[Problem]:
    if not scanned.header_intact:
        yield Problem(0, "the file header is damaged")
    for damage in scanned.damages:
        if damage.verdict is Verdict.TORN and not last:
            yield Problem(damage.position, "bytes behind the durable end, never acknowledged")
        else:
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
    """The state the file begins with, compared with where the file before it ended."""
    first = scanned.found[0] if scanned.found else None
    if first is None or not (
        first.header.kind == Kind.CHECKPOINT and first.header.flags & Flag.START
    ):
        problems.append(
            Problem(FILE_HEADER_BYTES, "the first frame, with the log's state, is missing")
        )
        return state or LogState("")
    begun = LogState.from_start(bodies.decode(Start, scanned.body(first)))
    if state is not None and state.nexts != begun.nexts:
        problems.append(Problem(FILE_HEADER_BYTES, "does not begin where the file before it ended"))
    return begun


def _check_order(
    state: LogState, partition: int, first: int, next_: int, problems: list[Problem]
) -> None:
    expected = state.nexts.get(partition, 0)
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
    seal = bodies.decode(Seal, scanned.body(last))
    if crc32c(memoryview(scanned.data)[: last.position]) != seal.crc32c:
        problems.append(Problem(None, "the checksum over the whole file is wrong"))
    return True
