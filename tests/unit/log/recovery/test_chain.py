"""The chain of WAL files; test_recover.py tests what happens to the messages."""

from pathlib import Path

import pytest

from penstock.formats.frames import encode_file_header
from penstock.log.files.wal_files import find_wal_files, new_header
from penstock.log.recovery.chain import Chain, find_chain
from penstock.model.errors import FormatError, VersionUnknown
from tests.unit.log import segments
from tests.unit.log.disks import Unsynced
from tests.unit.log.segments import Segment

DISK = Unsynced()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    return segments.make_several(tmp_path_factory.mktemp("several"))


def chain_of(directory: Path, files: dict[str, bytes]) -> Chain:
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return find_chain(DISK, find_wal_files(directory))


def facts(chain: Chain) -> tuple[list[tuple[int, int]], list[int], list[str], list[str]]:
    """Sequence and end of every file, and all that is wrong."""
    return (
        [(file.sequence, file.end) for file in chain.files],
        chain.broken,
        [path.name for path in chain.damaged],
        [path.name for path in chain.strangers],
    )


def test_every_file_ends_at_the_position_in_its_successor(
    directory: Path, several: list[Segment]
) -> None:
    files = {segment.name: segment.data for segment in several}
    files[several[1].name] += b"written after an error, never acknowledged"
    chain = chain_of(directory, files)
    sizes = [(n, len(segment.data)) for n, segment in enumerate(several)]
    assert facts(chain) == (sizes, [], [], [])
    seals = [segment.frames[-1].position for segment in several[:-1]]
    assert [file.seal_position for file in chain.files] == [*seals, 0]


def test_a_missing_file_and_a_short_one_break_the_chain(
    directory: Path, several: list[Segment]
) -> None:
    files = {segment.name: segment.data for segment in several if segment is not several[1]}
    files[several[2].name] = several[2].data[:300]
    sizes = [(0, len(several[0].data)), (2, 300), (3, len(several[3].data))]
    assert facts(chain_of(directory, files)) == (sizes, [2, 0], [], [])


def test_the_oldest_file_may_name_one_that_was_dropped(
    directory: Path, several: list[Segment]
) -> None:
    files = {segment.name: segment.data for segment in several[2:]}
    sizes = [(n, len(several[n].data)) for n in (2, 3)]
    assert facts(chain_of(directory, files)) == (sizes, [], [], [])


def test_a_header_with_another_name_is_not_part_of_the_chain(
    directory: Path, several: list[Segment]
) -> None:
    copy = "wal-0000000007-0000000000000000.log"
    files = {segment.name: segment.data for segment in several[:2]}
    sizes = [(n, len(several[n].data)) for n in (0, 1)]
    chain = chain_of(directory, {**files, copy: several[0].data})
    assert facts(chain) == (sizes, [], [], [copy])


def test_strangers_alone_are_no_log(directory: Path, several: list[Segment]) -> None:
    with pytest.raises(FormatError, match="does not match its name"):
        chain_of(directory, {"wal-0000000007-0000000000000000.log": several[0].data})


def test_a_damaged_header_is_reported_and_replaced(directory: Path, several: list[Segment]) -> None:
    files = {segment.name: segment.data for segment in several}
    files[several[1].name] = several[1].damaged(20, b"\xff")
    chain = chain_of(directory, files)
    sizes = [(n, len(segment.data)) for n, segment in enumerate(several)]
    assert facts(chain) == (sizes, [], [several[1].name], [])


def test_a_file_of_a_later_version_is_refused_wherever_it_is(
    directory: Path, several: list[Segment]
) -> None:
    later = new_header(None, 0, 1, 0, 0)._replace(version=9)
    data = encode_file_header(later) + several[0].data[64:]
    files = {segment.name: segment.data for segment in several}
    with pytest.raises(VersionUnknown, match="format version 9"):
        chain_of(directory, {**files, several[0].name: data})
