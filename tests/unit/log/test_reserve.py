import errno
from pathlib import Path

from penstock.log.reserve import Reserve
from tests.unit.log.disks import Faulty, on

SIZE = 1 << 16


def test_the_reserve_is_taken_given_up_and_taken_back(tmp_path: Path) -> None:
    reserve = Reserve(Faulty(), tmp_path, SIZE)
    assert reserve.restore()
    assert (tmp_path / "reserve").stat().st_size == SIZE
    assert reserve.restore()
    assert reserve.release()
    assert not (tmp_path / "reserve").exists()
    assert not reserve.release()
    assert reserve.restore()


def test_the_reserve_is_not_taken_when_that_would_fill_the_disk_again(tmp_path: Path) -> None:
    disk = Faulty()
    reserve = Reserve(disk, tmp_path, SIZE)
    disk.free = 4 * SIZE - 1
    assert not reserve.restore()
    assert not (tmp_path / "reserve").exists()
    disk.free = 4 * SIZE
    assert reserve.restore()


def test_a_reserve_that_cannot_be_taken_is_no_error(tmp_path: Path) -> None:
    disk = Faulty()
    disk.fail = on("allocate", errno.ENOSPC)
    reserve = Reserve(disk, tmp_path, SIZE)
    assert not reserve.restore()
    assert reserve.restore()


def test_a_disk_that_cannot_tell_its_free_space_gets_no_reserve(tmp_path: Path) -> None:
    disk = Faulty()
    disk.fail = on("free_bytes", errno.EIO)
    reserve = Reserve(disk, tmp_path, SIZE)
    assert not reserve.restore()
    assert reserve.restore()
