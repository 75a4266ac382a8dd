from pathlib import Path

import pytest

from penstock.formats import bodies
from penstock.formats.bodies import StartBody
from penstock.formats.frame_table import TableEntry, entries_from
from penstock.formats.frames import FILE_MAGIC, FileHeader, encode_file_header
from penstock.formats.scan import Verdict
from penstock.log.files.scans import read_checkpoint, read_header, scan_file
from penstock.model.errors import FormatError, VersionUnknown
from tests.unit.log import segments
from tests.unit.log.disks import Unsynced
from tests.unit.log.segments import TOPIC, Segment

DISK = Unsynced()


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return segments.make(tmp_path_factory.mktemp("segment"), segments.mixed)


def mark_of(segment: Segment) -> int:
    return int.from_bytes(segment.data[12:16], "little")


def test_a_whole_file_is_its_frames_and_their_bodies(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    path.write_bytes(segment.data)
    scanned = scan_file(DISK, path, None, 0)
    assert [item.position for item in scanned.found] == [f.position for f in segment.frames]
    assert (scanned.damages, scanned.header_intact, scanned.data) == ([], True, segment.data)
    start = bodies.decode(StartBody, scanned.body(scanned.found[0]))
    assert start.topic == str(TOPIC)


def test_bytes_after_the_end_are_not_scanned(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    path.write_bytes(segment.data)
    end = segment.frames[3].end
    scanned = scan_file(DISK, path, end, 0)
    assert [item.position for item in scanned.found] == [f.position for f in segment.frames[:4]]
    assert scanned.damages == []


def test_a_cut_before_the_durable_end_is_corruption(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    path.write_bytes(segment.data[:-1])
    last = len(segment.frames) - 1
    assert scan_file(DISK, path, None, last).damages[0].verdict is Verdict.TORN
    assert scan_file(DISK, path, None, last + 1).damages[0].verdict is Verdict.CORRUPT


def test_the_table_of_a_file_locates_every_run_of_frames(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    path.write_bytes(segment.data)
    scanned = scan_file(DISK, path, None, 0)
    table = scanned.table()
    for partition in range(4):
        stretches = [
            (stretch, frame)
            for frame in segment.frames
            for stretch in frame.written.stretches
            if stretch.partition == partition
        ]
        entries = list(entries_from(table, partition, 0))
        assert entries[0].first_offset == stretches[0][0].first
        assert entries[-1].next_offset == stretches[-1][0].next
        for stretch, frame in stretches:
            (entry,) = [e for e in entries if e.first_offset <= stretch.first < e.next_offset]
            assert entry.position <= frame.position
            assert frame.end <= entry.position + entry.length
    third = segment.frames[4]
    stamp = scanned.found[4].header.first_timestamp
    length = third.end - third.position
    assert list(entries_from(table, 2, 0)) == [TableEntry(2, 0, 2, third.position, length, stamp)]


def test_an_intact_header_is_read(segment: Segment) -> None:
    header, intact = read_header(segment.data, Path(segment.name))
    assert intact
    assert (header.sequence, header.first_frame, header.mark) == (0, 0, mark_of(segment))


@pytest.mark.parametrize("position", [0, 12, 60])
def test_a_damaged_header_is_restored_from_the_name_and_the_first_frame(
    segment: Segment, position: int
) -> None:
    flipped = bytes([segment.data[position] ^ 1])
    name = Path("wal-0000000005-0000000000000000.log")
    header, intact = read_header(segment.damaged(position, flipped), name)
    assert not intact
    assert header == FileHeader(FILE_MAGIC, 1, 0, mark_of(segment), 5, 0, 0, 0, 0, 1)


def test_a_lost_sector_leaves_a_later_frame_to_tell_the_mark(segment: Segment) -> None:
    data = segment.damaged(0, bytes(segment.frames[2].position))
    header, intact = read_header(data, Path(segment.name))
    assert (header.mark, intact) == (mark_of(segment), False)


def test_a_mark_that_is_not_among_the_first_frames_is_not_trusted(segment: Segment) -> None:
    data = segment.damaged(0, bytes(64))
    with pytest.raises(FormatError, match="magic bytes are wrong"):
        read_header(data, Path("wal-0000000000-0000000000009000.log"))


@pytest.mark.parametrize("data", [b"", b"short", bytes(4096)])
def test_bytes_that_tell_nothing_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="wal-0000000000"):
        read_header(data, Path("wal-0000000000-0000000000000000.log"))


def test_a_damaged_header_under_another_name_is_refused(segment: Segment) -> None:
    with pytest.raises(FormatError):
        read_header(segment.damaged(0, b"x"), Path("something.else"))


def test_a_later_version_is_never_guessed(segment: Segment) -> None:
    header, _ = read_header(segment.data, Path(segment.name))
    later = encode_file_header(header._replace(version=2)) + segment.data[64:]
    with pytest.raises(VersionUnknown):
        read_header(later, Path(segment.name))


def test_a_checkpoint_is_read_by_its_place(directory: Path, segment: Segment) -> None:
    path = directory / segment.name
    path.write_bytes(segment.data)
    fd = DISK.open_read(path)
    mark = mark_of(segment)
    assert bodies.decode(StartBody, read_checkpoint(DISK, fd, mark, 64)).topic == str(TOPIC)
    for position in (0, 72, segment.frames[1].position, len(segment.data)):
        with pytest.raises(FormatError, match=f"no checkpoint at byte {position}"):
            read_checkpoint(DISK, fd, mark, position)
    DISK.close(fd)
    path.write_bytes(segment.damaged(segment.frames[0].end - 1, b"\0\0"))
    fd = DISK.open_read(path)
    with pytest.raises(FormatError, match="the checkpoint at byte 64 is damaged"):
        read_checkpoint(DISK, fd, mark, 64)
    DISK.close(fd)
