"""Files beside the WAL of a log."""

from __future__ import annotations

from penstock.model.run import Run
from penstock.model.units import ONLY_PARTITION, Offset
from tests.unit.log.conftest import OpenLogs


async def test_a_file_is_replaced_as_a_whole_and_survives_a_restart(logs: OpenLogs) -> None:
    log = await logs.log()
    assert await log.side_files.read("a") is None
    await log.side_files.write("a", b"first, and long")
    await log.side_files.write("a", b"second")
    await log.side_files.write("b", b"")
    log = await logs.crash().log()
    assert await log.side_files.read("a") == b"second"
    assert await log.side_files.read("b") == b""


async def test_a_part_of_a_file_can_be_read(logs: OpenLogs) -> None:
    files = (await logs.log()).side_files
    await files.write("a", b"0123456789")
    assert await files.read_part("a", 3, 4) == b"3456"
    assert await files.read_part("a", 8, 4) == b"89"
    assert await files.read_part("b", 0, 4) is None


async def test_files_are_found_by_prefix_and_removed(logs: OpenLogs) -> None:
    files = (await logs.log()).side_files
    for name in ("x-2", "x-1", "y"):
        await files.write(name, b"")
    assert await files.names("x-") == ["x-1", "x-2"]
    await files.remove(["x-1", "x-3"])
    assert await files.names("x-") == ["x-2"]


async def test_before_close_is_called_when_everything_is_written_and_can_still_be_read(
    logs: OpenLogs,
) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"1"]))
    seen: list[tuple[int, int, object]] = []

    async def last() -> None:
        (file,) = log.files.all()
        batches = await log.read(ONLY_PARTITION, Offset(0))
        seen.append((file.end, file.path.stat().st_size, isinstance(batches, list)))

    log.side_files.before_close(last)
    await log.close()
    ((end, size, readable),) = seen
    assert end == size == next(log.directory.glob("wal-*")).stat().st_size
    assert readable
