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
from itertools import pairwise
from pathlib import Path

from crc32c import crc32c

from penstock.formats import bodies
from penstock.formats.bodies import Start
from penstock.formats.extents import Extent, ends_of, extents
from penstock.formats.frames import FILE_HEADER_BYTES, Buffer, Flag, FrameHeader, Kind
from penstock.formats.paths import BROKEN_SUFFIX, parse_wal_name
from penstock.formats.scan import Damage, Found, Verdict
from penstock.host.disk import Disk
from penstock.log.chain import Chain, find_chain
from penstock.log.files import ActiveFile, WalFile, find_wal_files
from penstock.log.scans import Scanned, scan_file
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
    paths = find_wal_files(directory)
    if not paths:
        return Recovered(LogState(topic), [], None, 0, -1)
    chain = find_chain(disk, paths)
    files = chain.files
    base = len(files) - 1
    scanned = {base: scan_file(disk, files[base].path, None, 0)}
    while _start_of(scanned[base]) is None and base > 0:
        base -= 1
        durable = files[base + 1].header.first_frame
        scanned[base] = scan_file(disk, files[base].path, files[base].end or None, durable)
    start = _start_of(scanned[base])
    state = LogState(topic) if start is None else LogState.from_start(start)
    sequence = max(name[0] for path in paths if (name := parse_wal_name(path.name)))
    result = Recovered(state, files[:-1], None, 0, sequence)
    for index in range(base, len(files)):
        _replay(scanned[index], state, result)
        if index < len(files) - 1 and not files[index].seal_position:
            files[index].table = scanned[index].table()
    _report_files(disk, chain, base, result)
    _finish(disk, files[-1], scanned[len(files) - 1], result)
    return result


def _report_files(disk: Disk, chain: Chain, base: int, result: Recovered) -> None:
    """What is wrong with files as such; those from `base` on have been replayed frame by frame."""
    for path in chain.damaged + chain.strangers:
        note = Damage(Verdict.CORRUPT, 0, FILE_HEADER_BYTES, 0, None)
        result.findings.append(Finding(path, note))
    for file, following in pairwise(chain.files):
        if file.sequence not in chain.broken:
            continue
        end = following.header.previous_end
        if file.sequence == following.sequence - following.header.previous_back and end:
            note = Damage(Verdict.CORRUPT, file.end, end, following.header.first_frame - 1, None)
            result.findings.append(Finding(file.path, note))
        if following in chain.files[: base + 1]:
            _report_break(disk, file, following, result)


def _report_break(disk: Disk, file: WalFile, following: WalFile, result: Recovered) -> None:
    """The offsets between what a file holds and what its successor begins with."""
    scanned = scan_file(disk, file.path, file.end, following.header.first_frame)
    before, after = (_start_of(s) for s in (scanned, scan_file(disk, following.path, None, 0)))
    state = LogState("") if before is None else LogState.from_start(before)
    for item in scanned.found:
        state.apply(item.header, scanned.body(item))
    if after is not None:
        for partition, next_ in LogState.from_start(after).nexts.items():
            gap = Extent(partition, state.next(PartitionId(partition)), next_)
            _note_missing(result.state, result, gap)


def _start_of(scanned: Scanned) -> Start | None:
    first = scanned.found[0] if scanned.found else None
    if first is None or not first.header.flags & Flag.START or first.header.kind != Kind.CHECKPOINT:
        return None
    return bodies.decode(Start, scanned.body(first))


def _replay(scanned: Scanned, state: LogState, result: Recovered) -> None:
    items: list[Found | Damage] = [*scanned.found, *scanned.damages]
    for item in sorted(items, key=lambda item: item.position):
        header = item.header
        if isinstance(item, Found):
            ends = _begins(item.header, scanned.body(item))
        elif header is not None and _lost_batch(item, header):
            ends = {header.partition: header.next_offset}
        else:
            continue
        gaps = [Extent(p, state.next(PartitionId(p)), end) for p, end in ends.items()]
        if isinstance(item, Found):
            state.apply(item.header, scanned.body(item))
        else:
            state.nexts.update(ends)
        for gap in gaps:
            _note_missing(state, result, gap)
    result.findings += [
        Finding(scanned.path, damage)
        for damage in scanned.damages
        if damage.verdict is Verdict.CORRUPT
    ]


def _begins(header: FrameHeader, body: Buffer) -> dict[int, int]:
    """Offsets below which everything had been given out when the frame was written."""
    if header.kind == Kind.DELETE:
        return {header.partition: header.first_offset}
    if header.kind == Kind.CHECKPOINT:
        return ends_of(header, body)
    return {extent.partition: extent.first for extent in extents(header, body)}


def _lost_batch(damage: Damage, header: FrameHeader) -> bool:
    """Whether these are acknowledged messages whose header still tells their offsets."""
    return damage.verdict is Verdict.CORRUPT and header.kind == Kind.BATCH


def _note_missing(state: LogState, result: Recovered, gap: Extent) -> None:
    first = max(gap.first, state.start(PartitionId(gap.partition)))
    if first < gap.next and not state.gap_is_recorded(gap):
        missing = Missing(PartitionId(gap.partition), Offset(first), Offset(gap.next))
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
            disk.truncate(fd, keep)
        # After a mere crash of the process these bytes may be in the page cache alone.
        disk.sync(fd)
    except BaseException:
        disk.close(fd)
        raise
    _note_holes(scanned.damages, result)
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
    """Never over what an earlier recovery cut at the same place."""
    aside, copy = path.with_name(f"{path.name}.{position}{BROKEN_SUFFIX}"), 0
    while aside.exists():
        copy += 1
        aside = path.with_name(f"{path.name}.{position}.{copy}{BROKEN_SUFFIX}")
    disk.close(disk.create(aside, [data]))
    return aside


def _note_holes(damages: list[Damage], result: Recovered) -> None:
    """Offsets that may have been acknowledged are never given again."""
    for damage in damages:
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
