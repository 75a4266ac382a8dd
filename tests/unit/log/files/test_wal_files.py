from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.formats import bodies, frame_table
from penstock.formats.bodies import SealBody, StartBody
from penstock.formats.frame_table import entries_from
from penstock.formats.frames import Flag, Kind, decode_file_header
from penstock.formats.scan import IntactFrame, scan
from penstock.log.files import wal_files as files
from penstock.log.files.scans import read_checkpoint
from penstock.log.files.wal_files import STARTS_KEPT, TABLES_KEPT, FileFinder, Rotation, WalFile
from penstock.log.recovery.chain import find_chain
from penstock.log.state import LogState
from penstock.model.units import PartitionRange
from tests.unit.log import segments
from tests.unit.log.disks import Faulty, Unsynced
from tests.unit.log.segments import Segment

DISK = Unsynced()


def test_a_new_file_begins_with_the_state_of_the_log(directory: Path) -> None:
    state = LogState("default/default/t")
    state.nexts = {0: 5}
    header = files.new_header(None, 0, 77, 9, 1000)
    active = files.create(DISK, directory, header, state.to_start(), epoch=3)
    data = active.file.path.read_bytes()
    assert active.file.path.name == "wal-0000000000-0000000000000009.log"
    assert decode_file_header(data) == header
    (item,) = scan(data, 77, 64)
    assert isinstance(item, IntactFrame)
    fields = item.header
    assert (fields.kind, fields.flags, fields.number, fields.durable, fields.epoch) == (
        Kind.CHECKPOINT,
        Flag.START,
        9,
        9,
        3,
    )
    assert (
        bodies.decode(StartBody, read_checkpoint(DISK, active.open(DISK), 77, 64))
        == state.to_start()
    )
    assert (active.file.end, active.crc32c) == (len(data), crc32c(data))
    DISK.close(active.open(DISK))


def test_a_header_names_the_predecessor_and_its_durable_end() -> None:
    first = WalFile(Path("a"), files.new_header(None, 3, 1, 0, 0), end=500, seal_position=400)
    header = files.new_header(first, 5, 2, 17, 1000)
    assert (header.previous_end, header.previous_seal, header.previous_back) == (500, 400, 2)
    none = files.new_header(None, 5, 2, 17, 1000)
    assert (none.previous_end, none.previous_seal, none.previous_back) == (0, 0, 0)


def test_a_rotation_seals_the_file_and_begins_one_that_names_it(directory: Path) -> None:
    header = files.new_header(None, 4, 77, 0, 1000)
    start = LogState("t").to_start()
    old = files.create(DISK, directory, header, start, epoch=0)
    new = Rotation(directory, old, 78, 1, 0, 2000, start).carry_out(DISK)
    assert old.file.seal_position > 0
    assert old.file.path.stat().st_size == old.file.end
    assert new.file.header == files.new_header(old.file, 5, 78, 2, 2000)
    assert new.file.header.previous_end == old.file.end
    for active in (old, new):
        DISK.close(active.open(DISK))


def test_a_seal_has_the_checksum_and_the_table_of_the_file(directory: Path) -> None:
    header = files.new_header(None, 0, 77, 0, 1000)
    active = files.create(DISK, directory, header, LogState("t").to_start(), epoch=0)
    before = active.file.path.read_bytes()
    active.table.add(PartitionRange(3, 0, 5), 64, 72, 1000)
    files.seal(DISK, active, 1, 0)
    data = active.file.path.read_bytes()
    assert (active.file.seal_position, active.file.end) == (len(before), len(data))
    sealed = bodies.decode(SealBody, read_checkpoint(DISK, active.open(DISK), 77, len(before)))
    assert sealed.crc32c == crc32c(before)
    assert list(entries_from(frame_table.decode(sealed.table), 3, 0)) == [(3, 0, 5, 64, 72, 1000)]
    DISK.close(active.open(DISK))


def test_a_seal_that_is_not_durable_does_not_count(directory: Path) -> None:
    disk = Faulty()
    header = files.new_header(None, 0, 77, 0, 1000)
    active = files.create(disk, directory, header, LogState("t").to_start(), epoch=0)
    end = active.file.end
    for operation in ("write", "sync"):
        disk.fail = lambda called, _, bad=operation: (  # type: ignore[misc]
            OSError(5, "Input/output error") if called == bad else None
        )
        with pytest.raises(OSError, match="Input/output error"):
            files.seal(disk, active, 1, 0)
        assert (active.file.seal_position, active.file.end) == (0, end)
    disk.fail = lambda *_: None
    disk.close(active.open(disk))


def test_wal_files_are_found_by_sequence(directory: Path) -> None:
    names = ["wal-0000000010-0000000000000000.log", "wal-0000000002-0000000000000000.log"]
    for name in [*names, "reserve", "wal-0000000002-0000000000000000.log.64.broken"]:
        (directory / name).touch()
    assert [path.name for path in files.find_wal_files(directory)] == sorted(names)


# -- the finder


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Segment]]:
    """Four files with offsets 0-7 of partition 0 and 0-1 of partition 1 in the even ones."""
    directory = tmp_path_factory.mktemp("several")
    written = segments.make_several(directory)
    return directory / "default/default/t", written


def test_the_file_of_an_offset_is_the_last_that_begins_at_or_before_it(
    several: tuple[Path, list[Segment]],
) -> None:
    chain = find_chain(DISK, files.find_wal_files(several[0])).files
    finder = FileFinder(DISK)
    assert [finder.file_of(chain, 0, offset) for offset in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert [finder.file_of(chain, 1, offset) for offset in range(3)] == [0, 2, 3]
    assert finder.file_of(chain, 99, 0) == 3


def test_a_damaged_first_frame_is_replaced_by_the_state_of_the_previous_file(
    several: tuple[Path, list[Segment]], directory: Path
) -> None:
    for segment in several[1]:
        data = segment.data if segment is several[1][0] else segment.damaged(70, b"\xff" * 9)
        (directory / segment.name).write_bytes(data)
    chain = find_chain(DISK, files.find_wal_files(directory)).files
    finder = FileFinder(DISK)
    assert [finder.file_of(chain, 0, offset) for offset in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_dead_files_are_the_oldest_that_hold_nothing_from_the_starts_on(
    several: tuple[Path, list[Segment]],
) -> None:
    chain = find_chain(DISK, files.find_wal_files(several[0])).files
    finder = FileFinder(DISK)
    assert finder.dead_prefix(chain, {}) == 0
    assert finder.dead_prefix(chain, {0: 4}) == 0
    assert finder.dead_prefix(chain, {0: 4, 1: 1}) == 2
    assert finder.dead_prefix(chain, {0: 100, 1: 100}) == 3
    assert finder.dead_prefix(chain[:1], {0: 100, 1: 100}) == 0
    assert finder.dead_prefix([], {}) == 0


def test_an_unreadable_table_is_rebuilt_from_the_frames(
    several: tuple[Path, list[Segment]], directory: Path
) -> None:
    segment = several[1][0]
    last = segment.frames[-1]
    for damage in (last.position, last.body + 3):
        (directory / segment.name).write_bytes(segment.damaged(damage, b"\xff\xff"))
        header = decode_file_header(segment.data)
        file = WalFile(directory / segment.name, header, len(segment.data), last.position)
        entries = list(entries_from(FileFinder(DISK).table_of(file), 0, 0))
        assert [(e.first_offset, e.next_offset) for e in entries] == [(0, 2)]


def test_tables_and_starts_of_few_files_are_remembered(
    several: tuple[Path, list[Segment]],
) -> None:
    disk = Faulty()
    chain = find_chain(disk, files.find_wal_files(several[0])).files
    finder = FileFinder(disk)
    for _ in range(3):
        for file in chain[:-1]:
            finder.table_of(file)
        for offset in range(8):
            finder.file_of(chain, 0, offset)
    before = disk.count("open_read")
    finder.table_of(chain[0])
    finder.file_of(chain, 0, 5)
    assert disk.count("open_read") == before
    assert len(finder._tables) <= TABLES_KEPT
    assert len(finder._starts) <= STARTS_KEPT


def test_cached_tables_and_starts_are_bounded(
    several: tuple[Path, list[Segment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "TABLES_KEPT", 2)
    monkeypatch.setattr(files, "STARTS_KEPT", 2)
    chain = find_chain(DISK, files.find_wal_files(several[0])).files
    finder = FileFinder(DISK)
    for file in chain[:-1]:
        finder.table_of(file)
    for offset in range(8):
        finder.file_of(chain, 0, offset)
    assert (len(finder._tables), len(finder._starts)) == (2, 2)
