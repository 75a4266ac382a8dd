"""The expiry table: its entries in memory and in files, also after a crash."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from penstock.formats.expiry import BLOCK_ENTRIES, ExpiryEntries
from penstock.host.threads import WorkerThreads
from penstock.log import SideFiles
from penstock.model.errors import FormatError
from penstock.streams import expiry_table
from penstock.streams.expiry_table import (
    MERGED_RUNS,
    RECENT_MAX,
    SMALL_ENTRIES,
    ExpiryTable,
    run_name,
)
from tests.unit.log.disks import Unsynced

FOREVER = 1 << 62


class CountingDisk(Unsynced):
    """Counts the bytes that are read, and fails to create files while `full` is set."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.full = False

    def read(self, fd: int, size: int, position: int) -> bytes:
        data = super().read(fd, size, position)
        self.bytes_read += len(data)
        return data

    def create(self, path: Path, pieces: object) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        return super().create(path, pieces)  # type: ignore[arg-type]


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest_asyncio.fixture
async def files(tmp_path: Path, disk: CountingDisk) -> AsyncIterator[SideFiles]:
    workers = WorkerThreads(1, "test")
    yield SideFiles(disk, workers, tmp_path)
    await workers.close()


def entries(dues: list[int], first: int = 0) -> ExpiryEntries:
    return ExpiryEntries(
        np.array(dues, np.int64), np.arange(first, first + len(dues), dtype=np.int64)
    )


def all_alive(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.ones(len(offsets), np.bool_)


def even_alive(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.equal(offsets % 2, 0)


async def take_all(table: ExpiryTable, now_us: int = FOREVER, most: int = 1000) -> list[int]:
    found: list[int] = []
    while len(due := await table.take(now_us, most)):
        assert len(due) <= most
        found += due.offsets.tolist()
    return found


async def filled(files: SideFiles, count: int, spread: int = 1_000_000) -> ExpiryTable:
    """A table of random due times, moved to files whenever memory is full."""
    table, random = ExpiryTable(files), Random(1)
    for first in range(0, count, RECENT_MAX):
        dues = [random.randrange(spread) for _ in range(min(RECENT_MAX, count - first))]
        table.add(entries(dues, first))
        if table.full:
            await table.spill(all_alive)
            await table.remove_unused()
    return table


async def test_the_number_of_entries_in_memory_is_bounded(files: SideFiles) -> None:
    count = 60 * RECENT_MAX
    table = await filled(files, count)
    assert len(table) == count
    most = RECENT_MAX + (MERGED_RUNS + count // SMALL_ENTRIES) * BLOCK_ENTRIES
    for now_us in range(0, 1_000_000, 100_000):
        await table.take(now_us, 100)
        assert table.in_memory <= most
    assert len(table.runs()) <= MERGED_RUNS + count // SMALL_ENTRIES


async def test_every_entry_is_consumed_once_when_it_is_due(
    files: SideFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_table, "RECENT_MAX", 50)
    monkeypatch.setattr(expiry_table, "SMALL_ENTRIES", 200)
    monkeypatch.setattr(expiry_table, "MERGED_ENTRIES", 3000)
    table, random = ExpiryTable(files), Random(2)
    left: dict[int, int] = {}
    offset = now_us = 0
    for _ in range(300):
        dues = [now_us + random.randrange(2000) for _ in range(random.randrange(40))]
        table.add(entries(dues, offset))
        left |= {offset + place: due for place, due in enumerate(dues)}
        offset += len(dues)
        if table.full:
            await table.spill(all_alive)
        if random.random() < 0.1:
            await table.remove_unused()
        now_us += random.randrange(20)
        for found in await take_all(table, now_us, random.randrange(1, 60)):
            assert left.pop(found) <= now_us
        assert min(left.values(), default=None) == table.next_us
        assert (table.next_us or FOREVER) > now_us
        assert len(table) == len(left)
    assert sorted(await take_all(table)) == sorted(left)


async def test_consuming_entries_reads_only_their_blocks(
    files: SideFiles, disk: CountingDisk
) -> None:
    table = await filled(files, 8 * RECENT_MAX)
    table = ExpiryTable(files, table.runs())
    disk.bytes_read = 0
    assert len(await table.take(-1, 1000)) == 0
    assert (table.in_memory, disk.bytes_read) == (0, 0)
    await table.take(table.next_us or 0, 1000)
    assert 0 < disk.bytes_read < 2 * BLOCK_ENTRIES * 16 + 1000


async def test_reopened_runs_continue_after_the_consumed_entries(files: SideFiles) -> None:
    table = await filled(files, 3 * RECENT_MAX)
    taken = await take_all(table, 500_000)
    table = ExpiryTable(files, table.runs())
    left = await take_all(table)
    assert sorted(taken + left) == list(range(3 * RECENT_MAX))


async def test_merging_and_sweeping_leave_out_deleted_messages(files: SideFiles) -> None:
    table = ExpiryTable(files)
    for number in range(MERGED_RUNS):
        table.add(entries([5, 6], 2 * number))
        await table.spill(all_alive if number < MERGED_RUNS - 1 else even_alive)
    assert [run.entries for run in table.runs()] == [MERGED_RUNS]
    table.add(entries([1, 2, 3, 4], 100))
    await table.sweep(even_alive)
    assert sorted(await take_all(table)) == [*range(0, 2 * MERGED_RUNS, 2), 100, 102]
    assert table.next_us is None


async def test_files_named_by_a_checkpoint_exist_until_the_next_checkpoint(
    files: SideFiles,
) -> None:
    table = ExpiryTable(files)
    for number in range(MERGED_RUNS - 1):
        table.add(entries([number], number))
        await table.spill(all_alive)
    named = table.runs()
    table.add(entries([99], 99))
    await table.spill(all_alive)
    assert len(table.runs()) == 1
    assert table.has_unused_files
    crashed = ExpiryTable(files, named)
    assert sorted(await take_all(crashed)) == list(range(MERGED_RUNS - 1))
    await table.remove_unused()
    assert await files.names("expiry-") == [run_name(table.runs()[0].number)]
    assert len(await take_all(table)) == MERGED_RUNS


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
async def test_a_damaged_run_is_detected_and_other_entries_stay(
    files: SideFiles, tmp_path: Path, damage: str
) -> None:
    table = ExpiryTable(files)
    table.add(entries([1, 2, 3]))
    await table.spill(all_alive)
    table = ExpiryTable(files, table.runs())
    table.add(entries([1], 50))
    path = tmp_path / run_name(1)
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:-1] if damage == "short" else data[:-1] + b"x")
    with pytest.raises(FormatError):
        await table.take(10, 10)
    assert len(table) == 4


async def test_a_full_disk_loses_no_entry(files: SideFiles, disk: CountingDisk) -> None:
    table = ExpiryTable(files)
    table.add(entries([3, 1, 2]))
    disk.full = True
    with pytest.raises(OSError, match="full"):
        await table.spill(all_alive)
    disk.full = False
    await table.spill(all_alive)
    assert await take_all(table) == [1, 2, 0]


async def test_a_table_without_files_is_in_memory_only() -> None:
    table = ExpiryTable(None)
    table.add(entries(list(range(2 * RECENT_MAX))))
    assert not table.full
    await table.spill(all_alive)
    await table.sweep(even_alive)
    await table.remove_unused()
    assert len(table) == table.in_memory == RECENT_MAX
    assert await take_all(table, 5) == [0, 2, 4]
