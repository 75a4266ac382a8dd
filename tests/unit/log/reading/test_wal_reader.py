"""Reads of WAL files by offset and by time."""

from pathlib import Path

import pytest

from penstock.formats.frame_groups import FEW_FRAMES, SMALL_BODY_BYTES
from penstock.log.files.scans import scan_file
from penstock.log.files.wal_files import WalFile, find_wal_files
from penstock.log.reading.wal_reader import InObjects, Unreadable, WalReader
from penstock.log.recovery.chain import find_chain
from penstock.model.columns import Columns
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.log import segments
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty, Unsynced
from tests.unit.log.segments import Segment

P0, P1, P2, P3 = (PartitionId(n) for n in range(4))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mixed")
    segments.make(directory, segments.mixed)
    return directory / "default/default/t"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Segment]]:
    directory = tmp_path_factory.mktemp("several")
    made = segments.make_several(directory)
    return directory / "default/default/t", made


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Segment]:
    directory = tmp_path_factory.mktemp("many")
    made = segments.make(directory, segments.many)
    return directory / "default/default/t", made


def files_in(directory: Path) -> list[WalFile]:
    return find_chain(Unsynced(), find_wal_files(directory)).files


def read(
    reader: WalReader,
    files: list[WalFile],
    partition: PartitionId,
    offset: int,
    size: int = 1 << 20,
) -> list[tuple[int, object]] | InObjects | Unreadable:
    """Offsets and payloads or values, or what else is there."""
    answer = reader.read(files, partition, Offset(offset), size)
    if not isinstance(answer, list):
        return answer
    found: list[tuple[int, object]] = []
    for batch in answer:
        column = (
            batch.content.payload
            if isinstance(batch.content, Columns)
            else batch.content.column("n")
        )
        found += zip(batch.offsets().tolist(), column.to_pylist(), strict=True)
    return found


def messages(segment: Segment, partition: PartitionId) -> list[tuple[int, object]]:
    """Offsets and payloads as they were written."""
    return [
        (stretch.first + place, message)
        for frame in segment.frames
        for stretch in frame.written.stretches
        if stretch.partition == partition
        for place, message in enumerate(stretch.messages)
    ]


def read_on(
    reader: WalReader, files: list[WalFile], partition: PartitionId, stop: int
) -> tuple[list[tuple[int, object]], list[tuple[int, int]]]:
    """Everything up to `stop`, and the offsets that could not be read."""
    found: list[tuple[int, object]] = []
    lost: list[tuple[int, int]] = []
    offset = 0
    while offset < stop:
        answer = read(reader, files, partition, offset)
        if isinstance(answer, Unreadable):
            lost.append((answer.first_offset, answer.next_offset))
            offset = answer.next_offset
        else:
            assert isinstance(answer, list)
            found += [one for one in answer if one[0] >= offset]
            offset = found[-1][0] + 1
    return found, lost


def test_a_read_ends_at_a_frame_that_is_no_batch(mixed: Path) -> None:
    files, reader = files_in(mixed), WalReader(Unsynced())
    assert read(reader, files, P0, 0) == [(0, b"zero"), (1, b"one"), (2, b"two")]
    assert read(reader, files, P0, 1) == [(0, b"zero"), (1, b"one"), (2, b"two")]
    linked = read(reader, files, P0, 4)
    assert isinstance(linked, InObjects)
    assert (linked.first_offset, linked.next_offset) == (3, 5)
    assert read(reader, files, P0, 5) == [(5, b"five"), (6, b"")]
    assert read(reader, files, P1, 1) == [(1, b"due")]
    assert read(reader, files, P2, 0) == [(0, 7), (1, 8)]
    assert isinstance(read(reader, files, P3, 1), InObjects)


def test_an_offset_that_no_file_has_is_unreadable(mixed: Path) -> None:
    files, reader = files_in(mixed), WalReader(Unsynced())
    nowhere = Unreadable(Offset(7), Offset(8), "no file has it")
    assert reader.read(files, P0, Offset(7), 1) == nowhere
    assert reader.read([], P0, Offset(7), 1) == nowhere


def test_one_read_is_of_one_file_and_about_its_size(
    several: tuple[Path, list[Segment]],
) -> None:
    files, reader = files_in(several[0]), WalReader(Unsynced())
    assert read(reader, files, P0, 2) == [(2, b"1-a"), (3, b"1-b" * 40)]
    assert read(reader, files, P1, 1) == [(1, b"2-c")]
    assert read(reader, files, P0, 7, size=0) == [(6, b"3-a"), (7, b"3-b" * 40)]


def test_damage_found_while_reading_is_unreadable_by_its_offsets(
    several: tuple[Path, list[Segment]], directory: Path
) -> None:
    hit = several[1][2].frames[1]
    for segment in several[1]:
        data = segment.data
        if segment is several[1][2]:
            data = segment.damaged(hit.body + 2, b"\xff")
        (directory / segment.name).write_bytes(data)
    files, reader = files_in(directory), WalReader(Unsynced())
    cause = f"{several[1][2].name} is damaged there"
    assert read(reader, files, P0, 4) == Unreadable(Offset(4), Offset(6), cause)
    assert read(reader, files, P0, 5) == Unreadable(Offset(5), Offset(6), cause)
    assert read(reader, files, P0, 3) == [(2, b"1-a"), (3, b"1-b" * 40)]
    assert read(reader, files, P0, 6) == [(6, b"3-a"), (7, b"3-b" * 40)]


@pytest.mark.feature("T09")
@pytest.mark.parametrize("size", [1, 500, 3000, 1 << 20])
def test_many_small_frames_are_read_from_any_offset_without_those_between(
    many: tuple[Path, Segment], size: int
) -> None:
    files, reader = files_in(many[0]), WalReader(Unsynced())
    for partition in (P0, P1, P2):
        expected = messages(many[1], partition)
        for start in range(len(expected)):
            found = [expected[offset] for offset in range(start)]
            while len(found) < len(expected):
                answer = read(reader, files, partition, len(found), size)
                assert isinstance(answer, list)
                found += [pair for pair in answer if pair[0] >= len(found)]
            assert found == expected


def test_frames_of_others_are_read_along_unless_they_are_long(many: tuple[Path, Segment]) -> None:
    disk = Faulty()
    files, reader = files_in(many[0]), WalReader(disk)
    read(reader, files, P0, 0)
    before = disk.count("read")
    answer = reader.read(files, P0, Offset(0), 1 << 20)
    assert disk.count("read") - before == 3
    assert isinstance(answer, list)
    edges = [(batch.first_offset, batch.next_offset) for batch in answer]
    assert edges == [(0, 25), (25, 50), (50, 60)]


def test_the_limit_of_a_read_includes_neighbouring_frames(many: tuple[Path, Segment]) -> None:
    sizes: list[int] = []

    class Measured(Unsynced):
        def read(self, fd: int, size: int, position: int) -> bytes:
            sizes.append(size)
            return super().read(fd, size, position)

    files, reader = files_in(many[0]), WalReader(Measured())
    reader.read(files, P1, Offset(0), 1 << 20)
    for limit in (1, 400, 1000, 2000):
        for partition in (P0, P1):
            sizes.clear()
            reader.read(files, partition, Offset(0), limit)
            longest = max(frame.end - frame.position for frame in many[1].frames[1:5])
            assert 0 < sum(sizes) <= max(limit, longest)


@pytest.mark.feature("T05")
def test_damage_among_many_small_frames_hides_its_own_offsets_and_no_others(
    many: tuple[Path, Segment], directory: Path
) -> None:
    name, frames = many[1].name, many[1].frames
    for hit in frames[1:]:
        for place in (hit.position + 5, hit.body, hit.end - 1):
            flipped = bytes([many[1].data[place] ^ 1])
            (directory / name).write_bytes(many[1].damaged(place, flipped))
            (file,) = files_in(directory)
            file.table = scan_file(Unsynced(), many[0] / name, None, 0).table()
            reader = WalReader(Unsynced())
            for partition in (P0, P1):
                expected = messages(many[1], partition)
                lost = [s.first for s in hit.written.stretches if s.partition == partition]
                assert read_on(reader, [file], partition, len(expected)) == (
                    [pair for pair in expected if pair[0] not in lost],
                    [(first, first + 1) for first in lost],
                )


def test_no_file_stays_open(several: tuple[Path, list[Segment]]) -> None:
    disk = Faulty()
    files, reader = files_in(several[0]), WalReader(disk)
    for offset in range(8):
        read(reader, files, P0, offset)
    reader.first_after(files, P0, 1 << 60)
    assert disk.count("open_read") == disk.count("close") > 0


def test_a_time_before_all_messages_is_the_first_offset_and_after_all_is_none(
    several: tuple[Path, list[Segment]],
) -> None:
    files, reader = files_in(several[0]), WalReader(Unsynced())
    assert reader.first_after(files, P0, 0) == 0
    assert reader.first_after(files, P0, 1 << 60) is None
    assert reader.first_after(files, PartitionId(9), 0) is None
    assert reader.first_after([], P0, 0) is None


def test_files_with_frames_that_are_still_needed_are_not_dead(
    several: tuple[Path, list[Segment]],
) -> None:
    files, reader = files_in(several[0]), WalReader(Unsynced())
    starts = {0: 100, 1: 100}
    firsts = [segment.frames[0].number for segment in several[1]]
    for first_needed, dead in (
        (None, 3),
        (0, 0),
        (firsts[1] - 1, 0),
        (firsts[1], 1),
        (firsts[3], 3),
    ):
        assert reader.dead_files(files, starts, first_needed) == files[:dead]


def test_the_files_tell_where_each_partition_begins_in_them(
    several: tuple[Path, list[Segment]],
) -> None:
    files, reader = files_in(several[0]), WalReader(Unsynced())
    assert dict(reader.starts(files)) == {}
    assert dict(reader.starts(files[2:])) == {0: 4, 1: 1}


async def test_a_read_begins_with_the_batch_that_holds_the_offset(logs: OpenLogs) -> None:
    """Also where frames that are read along are too few, or too large, to be joined."""
    log = await logs.log(Unsynced())
    for size_bytes in (*[10] * FEW_FRAMES, SMALL_BODY_BYTES):
        await log.append(Run(b"s", [bytes(size_bytes)]))
    for offset in range(FEW_FRAMES + 1):
        found = WalReader(Unsynced()).read(log.files.all(), P0, Offset(offset), 1 << 20)
        assert isinstance(found, list)
        assert found[0].first_offset <= offset < found[0].next_offset
