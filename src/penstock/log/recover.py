"""Open a log's files after a stop, clean or not, and say what was found.

Only the last file is scanned whole: its first frame carries the state of the log, and the files
before it were sealed. Three answers are kept apart (formats/scan.py): a *torn* tail is cut and kept
aside, *corrupt* bytes stay where they are and are reported by offset range, an *uncertain* end of
the last group is cut, kept aside, and its offsets become a recorded hole. This module alone cuts
files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from penstock.formats import bodies
from penstock.formats.bodies import Start
from penstock.formats.extents import Extent, extents
from penstock.formats.frames import Flag, Kind
from penstock.formats.paths import BROKEN_SUFFIX, parse_wal_name
from penstock.formats.scan import Damage, Found, Verdict
from penstock.host.disk import Disk
from penstock.log.files import ActiveFile, WalFile, find_wal_files
from penstock.log.scans import Scanned, read_header, scan_file
from penstock.log.state import LogState
from penstock.model.errors import FormatError
from penstock.model.units import Offset, PartitionId


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets that were given out and are not in the files."""

    partition: PartitionId
    first: Offset
    next: Offset


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage of one file, for the report."""

    path: Path
    damage: Damage
    kept_aside: Path | None = None


@dataclass(slots=True)
class Recovered:
    """All that a log needs to go on."""

    state: LogState
    files: list[WalFile]
    """Finished files, oldest first; the active one is not among them."""
    active: ActiveFile | None
    """The file to go on with; None when the last one is sealed."""
    next_number: int
    sequence: int
    findings: list[Finding] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    holes: list[Missing] = field(default_factory=list)
    """Offsets of an uncertain tail that was cut; to be recorded as deleted."""


def recover(disk: Disk, directory: Path, topic: str) -> Recovered:
    """Recover the log in `directory`; raises FormatError when a needed file is beyond reading."""
    paths = {
        path: name for path in find_wal_files(directory) if (name := parse_wal_name(path.name))
    }
    if not paths:
        return Recovered(LogState(topic), [], None, 0, -1)
    chain = _chain(disk, {name[0]: path for path, name in paths.items()})
    base = len(chain) - 1
    scanned = {base: scan_file(disk, chain[base].path, None, 0)}
    while _start_of(scanned[base]) is None and base > 0:
        base -= 1
        durable = chain[base + 1].header.first_frame
        scanned[base] = scan_file(disk, chain[base].path, chain[base].end or None, durable)
    start = _start_of(scanned[base])
    state = LogState(topic) if start is None else LogState.from_start(start)
    result = Recovered(state, chain[:-1], None, 0, max(name[0] for name in paths.values()))
    for index in range(base, len(chain)):
        _replay(scanned[index], state, result)
        if index < len(chain) - 1 and not chain[index].seal_position:
            chain[index].table = scanned[index].table()
    _finish(disk, chain[-1], scanned[len(chain) - 1], result)
    return result


def _chain(disk: Disk, paths: dict[int, Path]) -> list[WalFile]:
    """The files that belong together, oldest first, each ending where its successor says.

    A file that no successor names was begun during a disk error and never acknowledged anything.
    """
    sequence = max(paths)
    chain: list[WalFile] = []
    end = seal = 0
    while sequence in paths:
        path = paths[sequence]
        fd = disk.open_read(path)
        try:
            header, _ = read_header(disk.read(fd, 4096, 0), path)
            size = disk.size(fd)
        finally:
            disk.close(fd)
        chain.append(WalFile(path, header, min(end or size, size), seal))
        if not header.previous_back:
            break
        end, seal = header.previous_end, header.previous_seal
        sequence -= header.previous_back
    return chain[::-1]


def _start_of(scanned: Scanned) -> Start | None:
    first = scanned.found[0] if scanned.found else None
    if first is None or not first.header.flags & Flag.START or first.header.kind != Kind.CHECKPOINT:
        return None
    return bodies.decode(Start, scanned.body(first))


def _replay(scanned: Scanned, state: LogState, result: Recovered) -> None:
    for item in scanned.found:
        for extent in extents(item.header, scanned.body(item)):
            expected = state.nexts.get(extent.partition, 0)
            if extent.first > expected:
                _note_missing(state, result, extent.partition, expected, extent.first)
        state.apply(item.header, scanned.body(item))
    if not scanned.header_intact:
        note = Damage(Verdict.CORRUPT, 0, 64, scanned.header.first_frame, None)
        result.findings.append(Finding(scanned.path, note))
    result.findings += [
        Finding(scanned.path, damage)
        for damage in scanned.damages
        if damage.verdict is Verdict.CORRUPT
    ]


def _note_missing(
    state: LogState, result: Recovered, partition: int, first: int, next_: int
) -> None:
    if not state.gap_is_recorded(Extent(partition, first, next_)):
        missing = Missing(PartitionId(partition), Offset(first), Offset(next_))
        result.missing.append(missing)


def _finish(disk: Disk, file: WalFile, scanned: Scanned, result: Recovered) -> None:
    """Cut what is behind the last frame that counts and make the rest durable."""
    found = scanned.found
    keep = max(
        [item.end for item in found]
        + [damage.end for damage in scanned.damages if damage.verdict is Verdict.CORRUPT],
        default=0,
    )
    cut = [damage for damage in scanned.damages if damage.position >= keep]
    result.findings += _kept_in_place(scanned, keep)
    if not keep:
        raise FormatError(f"{file.path.name}: no frame of it is intact")
    fd = disk.open_append(file.path)
    try:
        if keep < len(scanned.data):
            aside = _keep_aside(disk, file.path, keep, scanned.data[keep:])
            result.findings += [Finding(file.path, damage, aside) for damage in cut]
            _note_holes(cut, result)
            disk.truncate(fd, keep)
        # After a mere crash of the process these bytes may be in the page cache alone.
        disk.sync(fd)
    except BaseException:
        disk.close(fd)
        raise
    file.end = keep
    result.next_number = _next_number(found, scanned.damages, file.header.first_frame)
    if found and found[-1].header.flags & Flag.SEAL and found[-1].end == keep:
        disk.close(fd)
        file.seal_position = found[-1].position
        result.files.append(file)
        return
    table = scanned.table()
    file.table = table
    used = any(item.header.kind != Kind.CHECKPOINT for item in found)
    crc = crc32c(memoryview(scanned.data)[:keep])
    result.active = ActiveFile(file, fd, crc, 0, table, used)


def _kept_in_place(scanned: Scanned, keep: int) -> Iterable[Finding]:
    return [
        Finding(scanned.path, damage)
        for damage in scanned.damages
        if damage.verdict is not Verdict.CORRUPT and damage.position < keep
    ]


def _keep_aside(disk: Disk, path: Path, position: int, data: bytes) -> Path:
    aside = path.with_name(f"{path.name}.{position}{BROKEN_SUFFIX}")
    disk.close(disk.create(aside, [data]))
    return aside


def _note_holes(cut: list[Damage], result: Recovered) -> None:
    """Offsets that may have been acknowledged are never given again."""
    for damage in cut:
        header = damage.header
        if damage.verdict is not Verdict.UNCERTAIN or header is None:
            continue
        if header.kind == Kind.BATCH:
            partition = PartitionId(header.partition)
            first = result.state.next(partition)
            if header.next_offset > first:
                result.holes.append(Missing(partition, first, Offset(header.next_offset)))


def _next_number(found: list[Found], damages: list[Damage], first: int) -> int:
    numbers = [item.header.number + 1 for item in found]
    numbers += [d.first_number + 1 for d in damages if d.verdict is Verdict.CORRUPT]
    return max(numbers, default=first)
