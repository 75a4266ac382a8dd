"""Reports about WAL files; tests/unit/cli tests `penstock wal`."""

import errno
from pathlib import Path

import pytest

from penstock.log.recovery import verify as verify_module
from penstock.log.recovery.reopen import LogMode
from penstock.log.recovery.verify import FileReport, Problem
from penstock.log.settings import LogSettings
from penstock.model.errors import DurabilityUnmet, FormatError
from penstock.model.run import Run
from tests.unit.log import segments
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.disks import Faulty, Unsynced, on
from tests.unit.log.messages import eventually
from tests.unit.log.segments import Segment

DISK = Unsynced()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    return segments.make_several(tmp_path_factory.mktemp("several"))


def reports(directory: Path, files: dict[str, bytes]) -> list[FileReport]:
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return list(verify_module.verify(DISK, directory))


def problems(found: list[FileReport]) -> dict[str, list[str]]:
    """The problems of each file."""
    return {r.path.name: [p.sentence for p in r.problems] for r in found if r.problems}


def test_files_without_a_fault_are_counted(directory: Path, several: list[Segment]) -> None:
    found = reports(directory, {segment.name: segment.data for segment in several})
    assert found == [
        FileReport(
            directory / segment.name,
            len(segment.frames),
            sum(s.size for frame in segment.frames for s in frame.written.stretches),
            segment is not several[-1],
            (),
        )
        for segment in several
    ]


def test_a_damaged_batch_is_reported_with_its_position_and_offsets(
    directory: Path, several: list[Segment]
) -> None:
    segment = several[1]
    hit = segment.frames[1]
    files = {each.name: each.data for each in several}
    files[segment.name] = segment.damaged(hit.body + 1, b"\xff")
    found = reports(directory, files)
    size = hit.end - hit.position
    corrupt = f"corrupt: {size} bytes from frame {hit.number} on, partition 0, offsets 2 to 3"
    assert found[1].problems == (
        Problem(hit.position, corrupt),
        Problem(None, "the checksum over the whole file is wrong"),
    )
    assert problems(found)[several[2].name] == ["does not begin where the file before it ended"]


def test_a_missing_file_is_detected_by_its_successor(
    directory: Path, several: list[Segment]
) -> None:
    found = reports(directory, {s.name: s.data for s in several if s is not several[1]})
    assert problems(found) == {several[2].name: ["does not begin where the file before it ended"]}


def test_a_damaged_header_and_an_unreadable_file_are_reported(
    directory: Path, several: list[Segment]
) -> None:
    files = {several[0].name: several[0].damaged(20, b"\xff"), several[1].name: bytes(500)}
    found = reports(directory, files)
    assert problems(found) == {
        several[0].name: [
            "the file header is damaged",
            "the checksum over the whole file is wrong",
        ],
        several[1].name: [f"{several[1].name}: not a WAL file: the magic bytes are wrong"],
    }


def test_one_file_is_looked_at_alone(directory: Path, several: list[Segment]) -> None:
    path = directory / several[2].name
    path.write_bytes(several[2].data)
    (report,) = verify_module.verify(DISK, path)
    assert (report.problems, report.sealed) == ((), True)


def test_a_directory_without_wal_files_is_refused(directory: Path) -> None:
    (directory / "reserve").touch()
    for path in (directory, directory / "reserve"):
        with pytest.raises(FormatError, match="no WAL file"):
            verify_module.wal_files(path)


async def test_a_log_that_went_on_after_a_torn_tail_has_no_fault(logs: OpenLogs) -> None:
    log = await logs.log()
    for n in range(3):
        await log.append(Run(b"s", [b"%d" % n]))
    copy = logs.crash()
    (path,) = copy.wal_files()
    path.write_bytes(path.read_bytes()[:-5])
    log = await copy.log()
    await log.append(Run(b"s", [b"again"]))
    log.rotate()
    await log.append(Run(b"s", [b"more"]))
    await copy.close()
    found = list(verify_module.verify(DISK, copy.topic_directory))
    assert problems(found) == {}
    assert [(report.messages, report.sealed) for report in found] == [(3, True), (1, False)]


async def test_bytes_after_the_durable_end_are_not_counted(logs: OpenLogs) -> None:
    disk = Faulty()
    log = await logs.log(disk, settings=LogSettings(retry_seconds=0.01))
    await log.append(Run(b"s", [b"0"]))
    disk.fail = on("sync", errno.EIO)
    with pytest.raises(DurabilityUnmet):
        await log.append(Run(b"s", [b"never acknowledged"]))
    await eventually(lambda: log.mode is LogMode.OPEN)
    await log.append(Run(b"s", [b"1"]))
    await logs.close()
    found = list(verify_module.verify(DISK, logs.topic_directory))
    assert [report.messages for report in found] == [1, 1]
    behind = ["bytes after the durable end, never acknowledged"]
    assert problems(found) == {logs.wal_files()[0].name: behind}


async def test_offsets_that_recovery_skipped_are_no_problem(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    await log.append(Run(b"s", [b"0"]))
    end = logs.wal_files()[0].stat().st_size
    await log.append(Run(b"s", [b"1"]))
    left = logs.crash()
    (path,) = left.wal_files()
    data = bytearray(path.read_bytes())
    data[end + 20] ^= 1
    path.write_bytes(data)
    log = await left.log()
    await log.append(Run(b"s", [b"new"]))
    assert problems(list(verify_module.verify(DISK, left.topic_directory))) == {}
    assert len(left.wal_files()) == 2
