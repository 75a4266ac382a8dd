"""Opens the files of a log after a clean stop or a crash, and reports damage.

Only the last file is scanned as a whole: its first frame has the state of the log, and the files
before it are sealed. There are three verdicts (formats/scan.py): a *torn* tail is cut and set
aside; *corrupt* bytes stay in place and are reported by offset range; an *uncertain* end of the
last group is cut and set aside, and its offsets become a recorded gap (lost_offsets.py).

Reading comes first and changes nothing. If the disk then takes no writes, the last file is finished
where its frames end, and the log continues in a new file once the disk takes writes, as after a
disk error at run time. No other module cuts files.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from crc32c import crc32c

from penstock.formats import bodies
from penstock.formats.bodies import StartBody
from penstock.formats.frame_table import FrameTableWriter
from penstock.formats.frames import FILE_HEADER_BYTES, Flag, Kind
from penstock.formats.paths import BROKEN_SUFFIX, parse_wal_name
from penstock.formats.scan import Damage, IntactFrame, Verdict
from penstock.host.disk import Disk
from penstock.log.files.scans import Scanned, scan_file
from penstock.log.files.wal_files import ActiveFile, WalFile, find_wal_files
from penstock.log.recovery.chain import Chain, find_chain
from penstock.log.recovery.replay import FrameReplay, items_of
from penstock.log.state import LogState, Missing
from penstock.model.errors import FormatError
from penstock.model.units import PartitionId, PartitionRange


@dataclass(frozen=True, slots=True)
class DamageFinding:
    """A damage of a file, for the report."""

    path: Path
    damage: Damage
    kept_aside: Path | None = None


@dataclass(slots=True)
class Recovered:
    """Everything that a log needs to continue."""

    state: LogState
    files: list[WalFile]
    """Finished files, oldest first, without the active one."""
    active: ActiveFile | None
    """The file to continue with; None if the last one is finished."""
    next_number: int
    sequence: int
    findings: list[DamageFinding] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    """Offsets that were used and cannot be read."""
    gaps: list[Missing] = field(default_factory=list)
    """Offsets of an uncertain tail; deleted in the state, which the next file begins with."""
    uncut: bool = False
    """Whether the last file still has bytes after its end, to be cut once its successor exists."""
    failure: OSError | None = None
    """The error if the disk takes no writes."""
    unconfirmed: LastGroup | None = None
    """Frames that are not in the state because no sync has confirmed them."""


class LastGroup:
    """The end of the last file, from the first frame on that is not known to be durable.

    Its frames may have been acknowledged, or may be in the page cache only, where an earlier sync
    may have failed on them. They count once they are written again and synced; until then they are
    neither served nor dropped.
    """

    def __init__(self, scanned: Scanned, replay: FrameReplay) -> None:
        self.scanned = scanned
        self._replay = replay
        items = items_of(scanned)
        durable = max((i.header.durable for i in items if i.header is not None), default=0)
        certain = [
            item.position == FILE_HEADER_BYTES
            or (item.header.number < durable if isinstance(item, IntactFrame) else _corrupt(item))
            for item in items
        ]
        self._first = sum(certain)
        ends = [item.end for item in items if isinstance(item, IntactFrame) or _corrupt(item)]
        self.start = max((item.end for item in items[: self._first]), default=FILE_HEADER_BYTES)
        self.end = max(ends, default=0)
        """The end of the last frame that counts."""

    @property
    def frames(self) -> list[IntactFrame]:
        return [item for item in self.scanned.found if item.position >= self.start]

    def replay_before(self) -> FrameTableWriter:
        """Apply all durable frames to the state; return their frame table."""
        self._replay.frames(self.scanned, 0, self._first)
        before = [item for item in self.scanned.found if item.position < self.start]
        return replace(self.scanned, found=before).table()

    def confirm(self, disk: Disk) -> None:
        """Write the frames again and sync them."""
        disk.rewrite(self.scanned.path, self.scanned.data[self.start : self.end], self.start)

    def replay(self, file: WalFile) -> bool:
        """Apply the frames to the state; return whether offsets are lost, so that a new file must
        record that.
        """
        file.end, file.table = self.end, self.scanned.table()
        self._replay.frames(self.scanned, self._first)
        return self._replay.settle()


def _corrupt(item: IntactFrame | Damage) -> bool:
    return isinstance(item, Damage) and item.verdict is Verdict.CORRUPT


def recover(disk: Disk, directory: Path, topic: str) -> Recovered:
    """Recover the log in `directory`; raises FormatError if a file that is needed is unreadable."""
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
    replay = FrameReplay(state)
    result = Recovered(state, files[:-1], None, 0, sequence)
    result.missing, result.gaps = replay.missing, replay.gaps
    for index in range(base, len(files) - 1):
        replay.frames(scanned[index])
        if not files[index].seal_position:
            files[index].table = scanned[index].table()
    _report_files(disk, chain, base, replay, result)
    for file in scanned.values():
        result.findings += [
            DamageFinding(file.path, damage) for damage in file.damages if _corrupt(damage)
        ]
    _finish(disk, files[-1], LastGroup(scanned[len(files) - 1], replay), result)
    return result


def cut_last(disk: Disk, file: WalFile) -> None:
    """Cut the bytes after the end of a file, which were set aside; its successor exists."""
    fd = disk.open_append(file.path)
    try:
        disk.truncate(fd, file.end)
    finally:
        disk.close(fd)


def _report_files(
    disk: Disk, chain: Chain, base: int, replay: FrameReplay, result: Recovered
) -> None:
    """Report damaged, foreign and broken files; those from `base` on have been replayed."""
    for path in chain.damaged + chain.strangers:
        note = Damage(Verdict.CORRUPT, 0, FILE_HEADER_BYTES, 0, None)
        result.findings.append(DamageFinding(path, note))
    for index, (file, following) in enumerate(pairwise(chain.files)):
        if file.sequence not in chain.broken:
            continue
        end = following.header.previous_end
        if file.sequence == following.sequence - following.header.previous_back and end:
            note = Damage(Verdict.CORRUPT, file.end, end, following.header.first_frame - 1, None)
            result.findings.append(DamageFinding(file.path, note))
        if index < base:
            _report_break(disk, file, following, replay)


def _report_break(disk: Disk, file: WalFile, following: WalFile, replay: FrameReplay) -> None:
    """Report the offsets between the end of a file and the start of its successor."""
    scanned = scan_file(disk, file.path, file.end, following.header.first_frame)
    before = _start_of(scanned)
    after = _start_of(scan_file(disk, following.path, None, 0))
    state = LogState("") if before is None else LogState.from_start(before)
    for item in scanned.found:
        state.apply(item.header, scanned.body(item))
    if after is not None:
        for partition, next_ in LogState.from_start(after).nexts.items():
            gap = PartitionRange(partition, state.next(PartitionId(partition)), next_)
            replay.note_missing(gap)


def _start_of(scanned: Scanned) -> StartBody | None:
    first = scanned.found[0] if scanned.found else None
    if first is None or not first.header.flags & Flag.START or first.header.kind != Kind.CHECKPOINT:
        return None
    return bodies.decode(StartBody, scanned.body(first))


def _finish(disk: Disk, file: WalFile, group: LastGroup, result: Recovered) -> None:
    """End the last file where its frames end, and continue with it if possible."""
    scanned, found = group.scanned, group.scanned.found
    if not group.end:
        raise FormatError(f"{file.path.name}: no frame of it is intact")
    result.next_number = _next_number(found, scanned.damages, file.header.first_frame)
    result.findings += _kept_in_place(scanned, group.end)
    file.table = group.replay_before()
    fd = _make_durable(disk, file, group, result)
    if found and found[-1].header.flags & Flag.SEAL and found[-1].end == file.end:
        file.seal_position, file.table = found[-1].position, None
    if fd is None or file.table is None:
        _close_quietly(disk, fd)
        result.files.append(file)
        return
    used = any(item.header.kind != Kind.CHECKPOINT for item in found)
    crc = crc32c(memoryview(scanned.data)[: file.end])
    result.active = ActiveFile(file, fd, crc, 0, file.table, used)


def _make_durable(disk: Disk, file: WalFile, group: LastGroup, result: Recovered) -> int | None:
    """Make the last file durable, cut it at its end and open it; None if it takes no more writes.

    The frames are confirmed first, so that a full disk prevents only the cut.
    """
    fd = aside = None
    file.end = group.start
    try:
        result.unconfirmed = group
        group.confirm(disk)
        result.unconfirmed = None
        successor_needed = group.replay(file)
        tail = group.scanned.data[file.end :]
        if tail:
            aside = _set_aside(disk, file.path, file.end, tail)
        # In the same file, a crash between the cut and the record of a gap would forget the gap.
        result.uncut = successor_needed and bool(tail)
        if not successor_needed:
            fd = disk.open_append(file.path)
            if tail:
                disk.truncate(fd, file.end)
    except OSError as error:
        result.failure = error
        _close_quietly(disk, fd)
        fd = None
    cut = [damage for damage in group.scanned.damages if damage.position >= group.end]
    result.findings += [DamageFinding(file.path, damage, aside) for damage in cut]
    return fd


def _close_quietly(disk: Disk, fd: int | None) -> None:
    if fd is not None:
        with suppress(OSError):
            disk.close(fd)


def _kept_in_place(scanned: Scanned, keep: int) -> Iterable[DamageFinding]:
    return [
        DamageFinding(scanned.path, damage)
        for damage in scanned.damages
        if damage.verdict is not Verdict.CORRUPT and damage.position < keep
    ]


def _set_aside(disk: Disk, path: Path, position: int, data: bytes) -> Path:
    """Write what was cut to a file of its own, never over that of an earlier recovery."""
    aside, copy = path.with_name(f"{path.name}.{position}{BROKEN_SUFFIX}"), 0
    while aside.exists():
        copy += 1
        aside = path.with_name(f"{path.name}.{position}.{copy}{BROKEN_SUFFIX}")
    disk.close(disk.create(aside, [data]))
    return aside


def _next_number(found: list[IntactFrame], damages: list[Damage], first: int) -> int:
    numbers = [item.header.number + 1 for item in found]
    numbers += [d.first_number + 1 for d in damages if d.verdict is Verdict.CORRUPT]
    return max(numbers, default=first)
