"""Recovery of damaged files.

Every expectation is worked out from what was written (segments.py), not by the code under test.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.formats.frames import Kind, decode_file_header, encode_file_header
from penstock.formats.scan import Damage, Verdict, judge, scan
from penstock.log.reading.wal_reader import InObjects, Unreadable, WalReader
from penstock.log.recovery.recover import DamageFinding, Recovered, cut_last, recover
from penstock.log.state import Missing
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Offset, PartitionId
from tests.unit.log import segments
from tests.unit.log.disks import Unsynced
from tests.unit.log.segments import TOPIC, Frame, Segment

DISK = Unsynced()
SECTOR = 512


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """Every kind of frame; the last group has two frames and no marker after it."""
    return segments.make(tmp_path_factory.mktemp("killed"), segments.mixed)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """A closed log: its last checkpoint marks everything before it as durable."""
    return segments.make(tmp_path_factory.mktemp("closed"), segments.mixed, closed=True)


@contextmanager
def recovered(directory: Path, files: Mapping[str, bytes]) -> Iterator[Recovered]:
    """Recover a directory that holds these files and nothing else."""
    place = directory / "log"
    place.mkdir()
    result = None
    try:
        for name, data in files.items():
            (place / name).write_bytes(data)
        result = recover(DISK, place, str(TOPIC))
        yield result
    finally:
        if result is not None and result.active is not None:
            DISK.close(result.active.open(DISK))
        shutil.rmtree(place)


Content = dict[int, dict[int, object]]
"""Partition, offset, message; the name of the object for rows that lie in one."""


def written_in(frames: Sequence[Frame]) -> Content:
    """The messages of these frames, before any deletion."""
    content: Content = {}
    for frame in frames:
        for stretch in frame.written.stretches:
            held = content.setdefault(stretch.partition, {})
            for n in range(stretch.size):
                held[stretch.first + n] = stretch.messages[n] if stretch.messages else "object"
    return content


def nexts_of(frames: Sequence[Frame]) -> dict[int, int]:
    return {s.partition: s.next for frame in frames for s in frame.written.stretches}


def readable(result: Recovered) -> Content:
    """Everything that can be read through the tables that recovery made."""
    files = [*result.files, *([result.active.file] if result.active else [])]
    reader = WalReader(DISK)
    content: Content = {}
    for partition, end in result.state.nexts.items():
        held: dict[int, object] = {}
        offset = Offset(0)
        while offset < end:
            answer = reader.read(files, PartitionId(partition), offset, 1 << 20)
            if isinstance(answer, Unreadable):
                offset = Offset(max(answer.next_offset, offset + 1))
            elif isinstance(answer, InObjects):
                held |= dict.fromkeys(range(answer.first_offset, answer.next_offset), "object")
                offset = answer.next_offset
            else:
                for batch in answer:
                    column = (
                        batch.content.payload
                        if isinstance(batch.content, Columns)
                        else batch.content.column("n")
                    )
                    held |= dict(zip(batch.offsets().tolist(), column.to_pylist(), strict=True))
                offset = answer[-1].next_offset
        content[partition] = held
    return {partition: held for partition, held in content.items() if held}


def kept_aside(result: Recovered, directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "log").glob("*.broken")}


# -- undamaged


def test_an_empty_directory_is_an_empty_log(directory: Path) -> None:
    result = recover(DISK, directory, "default/default/t")
    assert (result.state.topic, result.state.nexts) == ("default/default/t", {})
    assert (result.files, result.active, result.next_number, result.sequence) == ([], None, 0, -1)


@pytest.mark.feature("T04")
def test_an_undamaged_file_is_recovered_whole(tmp_path: Path, killed: Segment) -> None:
    with recovered(tmp_path, {killed.name: killed.data}) as result:
        assert readable(result) == written_in(killed.frames)
        assert result.state.topic == str(TOPIC)
        assert result.state.nexts == nexts_of(killed.frames)
        assert set(result.state.bitmap(PartitionId(0)) or ()) == {1}
        assert result.state.transactions["app"].ranges == {0: (3, 5), 3: (0, 2)}
        assert (result.findings, result.missing, result.gaps) == ([], [], [])
        assert (result.next_number, result.sequence) == (len(killed.frames), 0)
        assert kept_aside(result, tmp_path) == {}
        assert result.active is not None
        assert result.active.file.end == len(killed.data)


def test_leftovers_that_are_no_wal_files_are_let_alone(tmp_path: Path, killed: Segment) -> None:
    leftovers = {"wal-0000000001-0000000000000009.log.tmp": b"half a file", "subjects.x": b"index"}
    with recovered(tmp_path, {killed.name: killed.data, **leftovers}) as result:
        assert readable(result) == written_in(killed.frames)
        assert {path.name for path in (tmp_path / "log").iterdir()} == {killed.name, *leftovers}


# -- cut at every byte


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_file_cut_at_any_byte_keeps_its_whole_frames_and_sets_the_rest_aside(
    tmp_path: Path, how: str, request: pytest.FixtureRequest
) -> None:
    segment: Segment = request.getfixturevalue(how)
    start_end = segment.frames[0].end
    for size in range(start_end, len(segment.data)):
        whole = [frame for frame in segment.frames if frame.end <= size]
        cut = segment.frame_at(size) if size > whole[-1].end else None
        with recovered(tmp_path, {segment.name: segment.data[:size]}) as result:
            path = tmp_path / "log" / segment.name
            assert readable(result) == written_in(whole)
            assert result.state.nexts == nexts_of(whole)
            assert (result.missing, result.gaps) == ([], [])
            assert result.next_number == len(whole)
            assert path.read_bytes() == segment.data[: whole[-1].end]
            if cut is None:
                assert (result.findings, kept_aside(result, tmp_path)) == ([], {})
                continue
            aside = path.with_name(f"{segment.name}.{cut.position}.broken")
            assert kept_aside(result, tmp_path) == {aside.name: segment.data[cut.position : size]}
            assert [(f.path, f.kept_aside) for f in result.findings] == [(path, aside)]
            damage = result.findings[0].damage
            assert (damage.verdict, damage.position, damage.end, damage.first_number) == (
                Verdict.TORN,
                cut.position,
                size,
                cut.number,
            )


@pytest.mark.feature("T05")
def test_a_file_cut_before_its_first_frame_ends_is_refused_and_not_touched(
    tmp_path: Path, killed: Segment
) -> None:
    for size in range(killed.frames[0].end):
        with (
            pytest.raises(FormatError, match=killed.name),
            recovered(tmp_path, {killed.name: killed.data[:size]}),
        ):
            pass
        assert not (tmp_path / "log").exists()


# -- every bit


@pytest.mark.feature("T05")
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_every_flipped_bit_is_corrupt_or_uncertain_and_never_torn(
    how: str, request: pytest.FixtureRequest
) -> None:
    segment: Segment = request.getfixturevalue(how)
    mark = int.from_bytes(segment.data[12:16], "little")
    last_durable = segment.frames[-1].durable
    for position in range(64, len(segment.data)):
        hit = segment.frame_at(position)
        others = [frame.number for frame in segment.frames if frame is not hit]
        verdict = Verdict.CORRUPT if hit.number < last_durable else Verdict.UNCERTAIN
        for bit in range(8):
            data = bytearray(segment.data)
            data[position] ^= 1 << bit
            found, damages = judge(scan(bytes(data), mark, 64), 0, 0)
            assert [item.header.number for item in found] == others
            assert [(d.verdict, d.position, d.end, d.first_number) for d in damages] == [
                (verdict, hit.position, hit.end, hit.number)
            ]
            assert (damages[0].header is None) == (position < hit.body)


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_flipped_bit_in_any_byte_hides_its_own_frame_only_and_is_reported(
    tmp_path: Path, how: str, request: pytest.FixtureRequest
) -> None:
    segment: Segment = request.getfixturevalue(how)
    for position in range(64, len(segment.data)):
        hit = segment.frame_at(position)
        flipped = bytes([segment.data[position] ^ 1 << position % 8])
        data = segment.damaged(position, flipped)
        with recovered(tmp_path, {segment.name: data}) as result:
            expected = Expected.of(segment, hit, header_intact=position >= hit.body)
            assert readable(result) == written_in([f for f in segment.frames if f is not hit])
            assert Counter(result.missing) == Counter(expected.missing)
            assert result.gaps == expected.gaps
            assert [_fact(finding) for finding in result.findings] == [expected.finding]
            aside = {f"{segment.name}.{cut}.broken": data[cut:] for cut in expected.cuts}
            assert kept_aside(result, tmp_path) == aside
            for partition, end in expected.nexts.items():
                assert result.state.nexts.get(partition, 0) == end
            assert result.state.floor == expected.floor
            assert_nothing_is_given_again(result, segment.frames)
            for gap in result.gaps:
                assert result.state.next_live(gap.partition, gap.first) == gap.next


def assert_nothing_is_given_again(result: Recovered, frames: Sequence[Frame]) -> None:
    """An acknowledged message keeps its offset, whether it can still be read or not."""
    for partition, end in nexts_of(frames).items():
        assert result.state.next(PartitionId(partition)) >= end


class Expected(NamedTuple):
    """The expected result of recovery when one frame is damaged."""

    finding: tuple[Verdict, int, int, bool]
    missing: list[Missing]
    """Offsets reported as used and missing."""
    gaps: list[Missing]
    """Offsets that may have been acknowledged: recorded as a gap and never reused."""
    nexts: dict[int, int]
    floor: int
    """Where partitions begin of which no frame was found."""
    cuts: list[int]
    """The position where the file is cut; the bytes after it are preserved."""

    @classmethod
    def of(cls, segment: Segment, hit: Frame, header_intact: bool) -> Expected:
        acknowledged = hit.number < segment.frames[-1].durable
        behind = segment.frames[hit.number + 1 :]
        missing: list[Missing] = []
        gaps: list[Missing] = []
        nexts = nexts_of([f for f in segment.frames if f is not hit])
        # The checkpoint of an idle or closing log tells where every partition ended.
        has_checkpoint = any(frame.written.kind is Kind.CHECKPOINT for frame in behind)
        spread = 0 if has_checkpoint else _spread(hit, header_intact)
        for stretch in hit.written.stretches:
            lost = _missing(stretch.partition, stretch.first, stretch.next)
            if has_checkpoint or stretch.partition in nexts_of(behind):
                missing.append(lost)
            elif spread:
                continue
            elif acknowledged:
                missing.append(lost)
            else:
                gaps.append(lost)
            nexts[stretch.partition] = max(stretch.next, nexts.get(stretch.partition, 0))
        for partition, end in nexts_of(segment.frames[: hit.number]).items() if spread else ():
            if partition not in nexts_of(behind):
                # It may have been of any partition.
                doubtful = _missing(partition, end, end + spread)
                (missing if acknowledged else gaps).append(doubtful)
                nexts[partition] = doubtful.next
        cut = hit is segment.frames[-1] and not acknowledged
        verdict = Verdict.CORRUPT if acknowledged else Verdict.UNCERTAIN
        finding = (verdict, hit.position, hit.end, cut)
        return cls(finding, missing, gaps, nexts, spread, [hit.position] if cut else [])


def _spread(hit: Frame, header_intact: bool) -> int:
    """How many offsets of every partition the frame may have used; 0 if its header reveals them."""
    kind = hit.written.kind
    if kind is Kind.CHECKPOINT:
        return 0
    if kind is Kind.LINK:
        # Its body tells the offsets, its header how many there are.
        return sum(stretch.size for stretch in hit.written.stretches) if header_intact else 0
    return 0 if header_intact else 8 * (hit.end - hit.position)


# -- sectors


def _sectors_zeroed(segment: Segment) -> Iterator[tuple[int, bytes]]:
    for start in range(0, len(segment.data), SECTOR):
        yield start, bytes(min(SECTOR, len(segment.data) - start))


def _sectors_as_they_were(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """Each sector as it was on disk after an earlier group, when the file ended within it."""
    for size in segment.sizes[:-1]:
        start = size // SECTOR * SECTOR
        older = segment.data[start:size].ljust(SECTOR, b"\0")
        yield start, older[: len(segment.data) - start]


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize("sectors", [_sectors_zeroed, _sectors_as_they_were])
def test_a_lost_sector_hides_the_frames_in_it_only_and_is_reported(
    tmp_path: Path,
    how: str,
    sectors: Callable[[Segment], Iterator[tuple[int, bytes]]],
    request: pytest.FixtureRequest,
) -> None:
    segment: Segment = request.getfixturevalue(how)
    for start, content in sectors(segment):
        data = segment.damaged(start, content)
        intact = [f for f in segment.frames if data[f.position : f.end] == _bytes_of(segment, f)]
        hit = [f for f in segment.frames if f not in intact]
        durable = max(
            (
                f.durable
                for f in segment.frames
                if _header_of(segment, f) == data[f.position : f.body]
            ),
            default=0,
        )
        with recovered(tmp_path, {segment.name: data}) as result:
            assert readable(result) == written_in(intact)
            damages = [f.damage for f in result.findings if f.damage.position or start]
            for frame in hit:
                (damage,) = [d for d in damages if d.position <= frame.position < d.end]
                if frame.number < durable:
                    assert damage.verdict is Verdict.CORRUPT
                elif damage.verdict is Verdict.TORN:
                    head, border = damage.position, start + len(content)
                    assert not data[max(head, start) : min(head + 64, border)].strip(b"\0")
                    assert damage.end == len(data)
            reported = [(m.partition, m.first, m.next) for m in result.missing + result.gaps]
            for frame in hit:
                for stretch in frame.written.stretches:
                    later = nexts_of([f for f in intact if f.number > frame.number])
                    if stretch.partition in later:
                        assert any(
                            partition == stretch.partition
                            and first <= stretch.first
                            and stretch.next <= next_
                            for partition, first, next_ in reported
                        )
            torn = [d for d in damages if d.verdict is Verdict.TORN]
            kept = [f for f in segment.frames if all(f.position < d.position for d in torn)]
            assert_nothing_is_given_again(result, kept)


def _bytes_of(segment: Segment, frame: Frame) -> bytes:
    return segment.data[frame.position : frame.end]


def _header_of(segment: Segment, frame: Frame) -> bytes:
    return segment.data[frame.position : frame.body]


# -- the file header


@pytest.mark.feature("T04", "T05")
def test_a_damaged_file_header_is_reported_and_costs_nothing_else(
    tmp_path: Path, killed: Segment
) -> None:
    for position in range(64):
        flipped = bytes([killed.data[position] ^ 1 << position % 8])
        with recovered(tmp_path, {killed.name: killed.damaged(position, flipped)}) as result:
            assert readable(result) == written_in(killed.frames)
            assert [_fact(finding) for finding in result.findings] == [
                (Verdict.CORRUPT, 0, 64, False)
            ]
            assert result.state.nexts == nexts_of(killed.frames)
            assert (result.missing, result.gaps) == ([], [])


# -- several files


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    return segments.make_several(tmp_path_factory.mktemp("several"))


def _files(several: Sequence[Segment]) -> dict[str, bytes]:
    return {segment.name: segment.data for segment in several}


def _frames(several: Sequence[Segment]) -> list[Frame]:
    return [frame for segment in several for frame in segment.frames]


@pytest.mark.feature("T04")
def test_sealed_files_form_a_chain(tmp_path: Path, several: list[Segment]) -> None:
    with recovered(tmp_path, _files(several)) as result:
        assert readable(result) == written_in(_frames(several))
        assert [file.path.name for file in result.files] == [s.name for s in several[:-1]]
        assert (result.findings, result.missing, result.gaps) == ([], [], [])
        assert (result.sequence, result.next_number) == (3, several[-1].frames[-1].number + 1)


@pytest.mark.feature("T04")
def test_a_log_whose_last_file_is_sealed_continues_in_a_new_one(
    tmp_path: Path, several: list[Segment]
) -> None:
    with recovered(tmp_path, _files(several[:3])) as result:
        assert readable(result) == written_in(_frames(several[:3]))
        assert [file.path.name for file in result.files] == [s.name for s in several[:3]]
        assert result.active is None
        assert (result.findings, result.sequence) == ([], 2)
        assert result.next_number == several[2].frames[-1].number + 1


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("lost", [[1], [2], [1, 2]])
def test_a_missing_middle_file_is_reported_by_its_offsets_and_the_others_are_read(
    tmp_path: Path, several: list[Segment], lost: list[int]
) -> None:
    there = [segment for n, segment in enumerate(several) if n not in lost]
    gone = nexts_of(_frames([several[n] for n in lost]))
    first = {s.partition: s.first for n in reversed(lost) for s in _stretches(several[n])}
    with recovered(tmp_path, _files(there)) as result:
        assert readable(result) == written_in(_frames(there))
        assert result.missing == [_missing(p, first[p], next_) for p, next_ in gone.items()]
        assert result.state.nexts == nexts_of(_frames(several))


def _stretches(segment: Segment) -> list[segments.Stretch]:
    return [stretch for frame in segment.frames for stretch in frame.written.stretches]


def test_files_that_were_dropped_from_the_front_are_not_missed(
    tmp_path: Path, several: list[Segment]
) -> None:
    with recovered(tmp_path, _files(several[2:])) as result:
        assert readable(result) == written_in(_frames(several[2:]))
        assert (result.findings, result.missing) == ([], [])
        assert result.state.nexts == nexts_of(_frames(several))


@pytest.mark.feature("T05")
@pytest.mark.parametrize("copied", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "name", ["wal-0000000004-{first}.log", "wal-0000000009-0000000000000001.log"]
)
def test_a_copy_of_a_file_under_another_name_is_reported_and_not_read(
    tmp_path: Path, several: list[Segment], copied: int, name: str
) -> None:
    copy = name.format(first=several[copied].name[15:31])
    with recovered(tmp_path, {**_files(several), copy: several[copied].data}) as result:
        assert readable(result) == written_in(_frames(several))
        assert [(f.path.name, *_fact(f)) for f in result.findings] == [
            (copy, Verdict.CORRUPT, 0, 64, False)
        ]
        assert result.state.nexts == nexts_of(_frames(several))
        assert result.sequence == int(copy[4:14])
        assert (tmp_path / "log" / copy).read_bytes() == several[copied].data


@pytest.mark.feature("T05")
def test_a_copy_with_the_same_sequence_does_not_hide_the_file(
    tmp_path: Path, several: list[Segment]
) -> None:
    for first_frame in (0, 999):
        copy = f"wal-0000000003-{first_frame:016d}.log"
        with recovered(tmp_path, {**_files(several), copy: several[1].data}) as result:
            assert readable(result) == written_in(_frames(several))
            assert [f.path.name for f in result.findings] == [copy]


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_sealed_file_cut_short_is_reported_by_the_offsets_it_lost(
    tmp_path: Path, several: list[Segment], torn: int
) -> None:
    segment = several[torn]
    for size in range(segment.frames[0].end, len(segment.data), 3):
        lost = [frame for frame in segment.frames if frame.end > size]
        files = {**_files(several), segment.name: segment.data[:size]}
        expected = written_in([f for f in _frames(several) if f not in lost])
        with recovered(tmp_path, files) as result:
            assert readable(result) == expected
            assert result.state.nexts == nexts_of(_frames(several))
            assert result.missing == [
                _missing(stretch.partition, stretch.first, stretch.next)
                for frame in lost
                for stretch in frame.written.stretches
            ]
            assert [(f.path.name, *_fact(f)) for f in result.findings] == [
                (segment.name, Verdict.CORRUPT, size, len(segment.data), False)
            ]
            assert (tmp_path / "log" / segment.name).read_bytes() == segment.data[:size]


@pytest.mark.feature("T05")
@pytest.mark.parametrize("which", [1, 2, 3])
def test_damage_at_the_start_of_any_file_costs_its_own_frames_only(
    tmp_path: Path, several: list[Segment], which: int
) -> None:
    segment = several[which]
    start = segment.frames[0]
    for position in range(start.end):
        flipped = bytes([segment.data[position] ^ 1 << position % 8])
        files = {**_files(several), segment.name: segment.damaged(position, flipped)}
        with recovered(tmp_path, files) as result:
            assert readable(result) == written_in(_frames(several))
            assert result.state.nexts == nexts_of(_frames(several))
            assert result.missing == []
            if position < 64 or which == 3:
                assert [f.path.name for f in result.findings] == [segment.name]
                assert result.findings[0].damage.verdict is Verdict.CORRUPT


@pytest.mark.feature("T05")
@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_lost_first_sector_costs_the_frames_in_it_and_no_other_file(
    tmp_path: Path, several: list[Segment], which: int
) -> None:
    segment = several[which]
    first = segment.frames[1]
    data = segment.damaged(0, bytes(first.position))
    with recovered(tmp_path, {**_files(several), segment.name: data}) as result:
        assert readable(result) == written_in(_frames(several))
        assert segment.name in [f.path.name for f in result.findings]


@pytest.mark.feature("T05")
def test_a_file_beyond_reading_is_reported_and_the_others_are_read(
    tmp_path: Path, several: list[Segment]
) -> None:
    files = {**_files(several), several[1].name: bytes(len(several[1].data))}
    there = [several[0], *several[2:]]
    with recovered(tmp_path, files) as result:
        assert readable(result) == written_in(_frames(there))
        assert [f.path.name for f in result.findings] == [several[1].name]
        assert result.missing == [_missing(0, 2, 4)]


def test_a_last_file_beyond_reading_is_refused(tmp_path: Path, several: list[Segment]) -> None:
    files = {**_files(several), several[3].name: bytes(len(several[3].data))}
    with pytest.raises(FormatError, match=several[3].name), recovered(tmp_path, files):
        pass


def test_a_file_begun_during_a_disk_error_and_never_named_is_passed_over(
    tmp_path: Path, several: list[Segment]
) -> None:
    """No file names file 1: the third file has the first as its predecessor."""
    named = several[2].data
    header = decode_file_header(named)._replace(
        previous_back=2, previous_end=len(several[0].data), previous_seal=0
    )
    files = {**_files(several[:2]), several[2].name: encode_file_header(header) + named[64:]}
    with recovered(tmp_path, files) as result:
        assert [file.path.name for file in result.files] == [several[0].name, several[2].name]
        assert result.sequence == 2


@pytest.mark.feature("T05")
def test_a_damaged_or_torn_seal_at_the_end_of_a_log_costs_no_message(
    tmp_path: Path, several: list[Segment]
) -> None:
    sealed = several[2]
    seal = sealed.frames[-1]
    for position in range(seal.position, seal.end):
        flipped = bytes([sealed.data[position] ^ 1 << position % 8])
        for data in (sealed.damaged(position, flipped), sealed.data[:position]):
            with recovered(tmp_path, {**_files(several[:2]), sealed.name: data}) as result:
                assert readable(result) == written_in(_frames(several[:3]))
                assert (result.missing, result.gaps) == ([], [])
                assert result.active is not None
                assert result.active.file.end == seal.position
                assert result.next_number == seal.number


# -- what is kept aside


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("byte", [20, 70], ids=["header", "body"])
def test_uncertain_offsets_survive_a_crash_before_the_next_file_exists(
    directory: Path, killed: Segment, byte: int
) -> None:
    last = killed.frames[-1]
    position = last.position + byte
    flipped = bytes([killed.data[position] ^ 1])
    (directory / killed.name).write_bytes(killed.damaged(position, flipped))
    once, again = (recover(DISK, directory, str(TOPIC)) for _ in range(2))
    assert once.gaps
    assert (again.gaps, again.state.nexts) == (once.gaps, once.state.nexts)
    assert (again.active, again.files[-1].end, again.uncut) == (None, last.position, True)
    assert_nothing_is_given_again(again, killed.frames)
    cut_last(DISK, again.files[-1])
    assert (directory / killed.name).read_bytes() == killed.data[: last.position]


@pytest.mark.feature("T04")
def test_bytes_cut_earlier_are_preserved_when_the_same_position_is_cut_again(
    directory: Path, killed: Segment
) -> None:
    last = killed.frames[-1]
    path = directory / killed.name
    for tail in (b"the first torn write", b"another torn write"):
        path.write_bytes(killed.data[: last.position] + tail)
        result = recover(DISK, directory, str(TOPIC))
        assert result.active is not None
        DISK.close(result.active.open(DISK))
    kept = sorted(file.read_bytes() for file in directory.glob("*.broken"))
    assert kept == [b"another torn write", b"the first torn write"]


def _missing(partition: int, first: int, next_: int) -> Missing:
    return Missing(PartitionId(partition), Offset(first), Offset(next_))


def _fact(finding: DamageFinding) -> tuple[Verdict, int, int, bool]:
    damage: Damage = finding.damage
    aside = finding.kept_aside is not None
    return damage.verdict, damage.position, damage.end, aside
