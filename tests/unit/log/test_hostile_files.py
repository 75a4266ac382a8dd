"""Foreign files in the data directory do not prevent other logs from being served."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log.logs import Logs
from penstock.model.names import TopicName
from penstock.model.run import Run
from tests.unit.log.conftest import TOPIC, OpenLogs
from tests.unit.log.messages import P0, payloads_from

OTHER = TopicName("default", "default", "other")
OPEN_SECONDS = 30
PAYLOADS = {0: b"1", 1: b"2", 2: b"3"}


async def filled(logs: OpenLogs) -> Path:
    """Two logs of three files each, closed; returns the directory of the first."""
    opened = await logs()
    for topic in (TOPIC, OTHER):
        log = await opened.create(topic)
        for payload in (b"1", b"2", b"3"):
            await log.append(Run(b"s", [payload]))
            log.rotate()
            await log.writer.flush()
        await log.index.settled()
    await logs.close()
    return logs.topic_directory


async def reopened(logs: OpenLogs) -> Logs:
    async with asyncio.timeout(OPEN_SECONDS):
        opened = await logs()
    other = opened.get(OTHER)
    assert other is not None
    assert await payloads_from(other, P0) == PAYLOADS
    return opened


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_outside(path: Path) -> None:
    outside = path.parents[3] / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 42)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("change", [_fifo, _directory, _link_outside, _link_to_itself])
async def test_a_wal_file_that_is_no_plain_file_makes_its_log_alone_unavailable(
    logs: OpenLogs, change: Callable[[Path], None], place: int
) -> None:
    directory = await filled(logs)
    change(sorted(directory.glob("wal-*.log"))[place])
    outside = directory.parents[2] / "outside"
    before = outside.read_bytes() if outside.exists() else b""
    opened = await reopened(logs)
    assert list(opened.unavailable) == ["default/default/t"]
    assert (outside.read_bytes() if outside.exists() else b"") == before


async def test_a_wal_file_of_terabytes_makes_its_log_alone_unavailable(logs: OpenLogs) -> None:
    directory = await filled(logs)
    _huge(sorted(directory.glob("wal-*.log"))[-1])
    opened = await reopened(logs)
    assert "bytes" in opened.unavailable["default/default/t"]


async def test_a_copy_of_a_log_is_not_taken_for_the_log(logs: OpenLogs) -> None:
    directory = await filled(logs)
    shutil.copytree(directory, directory.with_name("copy"))
    opened = await reopened(logs)
    log = opened.get(TOPIC)
    assert log is not None
    assert log.directory == directory
    assert "default/default/t" in opened.unavailable["default/default/copy"]


async def test_a_link_to_the_directory_of_a_log_is_not_another_log(logs: OpenLogs) -> None:
    directory = await filled(logs)
    directory.with_name("a-link").symlink_to(directory)
    opened = await reopened(logs)
    assert {log.directory.name for log in opened} == {"t", "other"}
    log = opened.get(TOPIC)
    assert log is not None
    assert await payloads_from(log, P0) == PAYLOADS


async def test_the_directory_of_a_log_may_be_a_link_to_another_disk(logs: OpenLogs) -> None:
    directory = await filled(logs)
    moved = directory.parents[3] / "moved"
    shutil.move(directory, moved)
    directory.symlink_to(moved)
    opened = await reopened(logs)
    log = opened.get(TOPIC)
    assert log is not None
    assert await payloads_from(log, P0) == PAYLOADS


async def test_a_name_with_other_digits_is_not_that_of_a_wal_file(logs: OpenLogs) -> None:
    directory = await filled(logs)
    strange = "".join(chr(0x0660 + digit) for digit in (0,) * 9 + (9,))
    (directory / f"wal-{strange}-0000000000000009.log").write_bytes(b"x" * 100)
    opened = await reopened(logs)
    assert not opened.unavailable


@pytest.mark.parametrize("change", [_fifo, _directory, _link_outside])
async def test_a_span_that_is_no_regular_file_is_rebuilt(
    logs: OpenLogs, change: Callable[[Path], None]
) -> None:
    directory = await filled(logs)
    change(next(directory.glob("subjects-*.sqlite")))
    opened = await reopened(logs)
    assert not opened.unavailable
    log = opened.get(TOPIC)
    assert log is not None
    async with asyncio.timeout(OPEN_SECONDS):
        await log.index.settled()


async def test_a_directory_that_cannot_be_listed_makes_its_log_alone_unavailable(
    logs: OpenLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await filled(logs)
    iterdir = Path.iterdir

    def refusing(path: Path) -> object:
        if path == directory:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    opened = await reopened(logs)
    assert "Permission denied" in opened.unavailable["default/default/t"]


async def test_the_reserve_is_not_allocated_through_a_symbolic_link(logs: OpenLogs) -> None:
    await filled(logs)
    outside = logs.directory.parent / "elsewhere"
    (logs.directory / "reserve").unlink()
    (logs.directory / "reserve").symlink_to(outside)
    await reopened(logs)
    assert not outside.exists()


async def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(logs: OpenLogs) -> None:
    log = await logs.log()
    outside = logs.directory.parent / "precious"
    outside.write_bytes(b"precious")
    (log.directory / "a.tmp").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        await log.side_files.write("a", b"x")
    assert outside.read_bytes() == b"precious"
