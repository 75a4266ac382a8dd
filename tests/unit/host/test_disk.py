import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.host import disk as disk_module
from penstock.host.disk import WRITE_BACK_BYTES, Disk


class Steps(Disk):
    """Records the calls that make files durable, and fails in the chosen one."""

    def __init__(self, fail: str = "", watched: Path = Path()) -> None:
        self.steps: list[str] = []
        self.fail, self.watched = fail, watched
        self.seen: list[list[str]] = []
        """The files below `watched` at every sync of the file system."""

    def sync(self, fd: int) -> None:
        self._step("sync")
        super().sync(fd)

    def write_back(self, fd: int, start: int, size: int) -> None:
        self._step(f"write_back {start}")
        super().write_back(fd, start, size)

    def sync_filesystem(self, fd: int) -> None:
        self.seen.append(sorted(path.name for path in self.watched.rglob("*")))
        self._step(f"sync_filesystem {len(self.seen)}")
        super().sync_filesystem(fd)

    def sync_directory(self, directory: Path) -> None:
        self._step("sync_directory")
        super().sync_directory(directory)

    def _writev(self, fd: int, views: Sequence[memoryview]) -> int:
        self._step("write")
        return super()._writev(fd, views)

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fail:
            raise OSError(errno.EIO, "Input/output error")


class Stingy(Disk):
    """A system that writes only a part of the bytes of every call."""

    def __init__(self, portions: Iterator[int]) -> None:
        self._portions = portions

    def _writev(self, fd: int, views: Sequence[memoryview]) -> int:
        return os.write(fd, b"".join(views)[: next(self._portions)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@given(st.lists(st.binary(max_size=20), max_size=8), st.lists(st.integers(1, 9), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_pieces_are_written_after_partial_writes(
    tmp_path: Path, pieces: list[bytes], portions: list[int]
) -> None:
    def repeated() -> Iterator[int]:
        while True:
            yield from portions

    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    disk = Stingy(repeated())
    fd = disk.create(path, [])
    disk.write(fd, pieces)
    disk.close(fd)
    assert path.read_bytes() == b"".join(pieces)


def test_more_pieces_than_the_system_takes_at_once_are_written(path: Path) -> None:
    disk = Disk()
    fd = disk.create(path, [])
    disk.write(fd, [b"ab", bytearray(b"c"), memoryview(b"d"), b""] * 1000)
    disk.close(fd)
    assert path.read_bytes() == b"abcd" * 1000


def test_a_write_of_no_bytes_is_an_error(path: Path) -> None:
    fd = Disk().create(path, [])
    with pytest.raises(OSError, match="took no bytes") as caught:
        Stingy(iter([0])).write(fd, [b"abc"])
    assert caught.value.errno == errno.EIO
    os.close(fd)


def test_a_new_file_is_written_synced_renamed_and_its_directory_synced(path: Path) -> None:
    disk = Steps()
    fd = disk.create(path, [b"one", b"two"])
    assert disk.steps == ["write", "sync", "sync_directory"]
    assert path.read_bytes() == b"onetwo"
    assert list(path.parent.iterdir()) == [path]
    disk.write(fd, [b"three"])
    assert disk.read(fd, 100, 3) == b"twothree"
    assert disk.size(fd) == 11
    disk.close(fd)


@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_file_that_cannot_be_made_durable_does_not_exist(path: Path, step: str) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        Steps(fail=step).create(path, [b"one"])
    assert list(path.parent.iterdir()) == []


def test_a_file_whose_name_cannot_be_made_durable_may_stay_but_is_reported(path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        Steps(fail="sync_directory").create(path, [b"one"])
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_many_new_files_are_written_synced_renamed_and_synced_together(tmp_path: Path) -> None:
    disk = Steps(watched=tmp_path)
    fds = disk.create_all([(tmp_path / name / "f", [name.encode(), b"!"]) for name in "ab"])
    assert disk.steps == ["write", "write", "sync_filesystem 1", "sync_filesystem 2"]
    assert disk.seen == [["a", "b", "f.tmp", "f.tmp"], ["a", "b", "f", "f"]]
    assert [disk.read(fd, 9, 0) for fd in fds] == [b"a!", b"b!"]
    disk.write(fds[1], [b"?"])
    assert (tmp_path / "b" / "f").read_bytes() == b"b!?"
    for fd in fds:
        disk.close(fd)


@pytest.mark.parametrize("step", ["write", "sync_filesystem 1", "sync_filesystem 2"])
def test_no_file_exists_if_many_new_files_cannot_be_made_durable(tmp_path: Path, step: str) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        Steps(step, tmp_path).create_all([(tmp_path / name / "f", [b"x"]) for name in "ab"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_leftover_of_an_earlier_attempt_is_overwritten(path: Path) -> None:
    path.with_name("file.tmp").write_bytes(b"a longer leftover")
    disk = Disk()
    disk.close(disk.create(path, [b"new"]))
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_read_past_the_end_returns_fewer_bytes(path: Path) -> None:
    path.write_bytes(b"0123456789")
    disk = Disk()
    fd = disk.open_read(path)
    assert disk.read(fd, 4, 3) == b"3456"
    assert disk.read(fd, 100, 8) == b"89"
    assert disk.read(fd, 100, 10) == b""
    disk.close(fd)


def test_a_partial_read_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"0123456789")
    pread = os.pread
    monkeypatch.setattr("os.pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    disk = Disk()
    fd = disk.open_read(path)
    assert disk.read(fd, 8, 1) == b"12345678"
    disk.close(fd)


def test_an_existing_file_is_written_at_its_end_and_can_be_cut(path: Path) -> None:
    path.write_bytes(b"0123456789")
    disk = Disk()
    fd = disk.open_append(path)
    disk.truncate(fd, 4)
    disk.write(fd, [b"ab"])
    disk.sync(fd)
    disk.sync_filesystem(fd)
    assert disk.read(fd, 100, 0) == b"0123ab"
    disk.close(fd)


def test_rewritten_bytes_are_synced(path: Path) -> None:
    path.write_bytes(b"one two three")
    disk = Steps()
    disk.rewrite(path, b"two", 4)
    assert (path.read_bytes(), disk.steps) == (b"one two three", ["sync"])
    # What is really written shows with other bytes.
    disk.rewrite(path, b"TWO", 4)
    disk.rewrite(path, b"", 0)
    assert path.read_bytes() == b"one TWO three"
    with pytest.raises(OSError, match="Input/output error"):
        Steps("sync").rewrite(path, b"two", 4)


def test_a_partial_rewrite_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"one two three")
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:2], at))
    Disk().rewrite(path, b"TWO THREE", 4)
    assert path.read_bytes() == b"one TWO THREE"


def test_opening_a_missing_file_does_not_create_it(path: Path) -> None:
    for call in (Disk().open_append, Disk().open_read):
        with pytest.raises(FileNotFoundError):
            call(path)


def test_syncing_the_file_system_of_no_file_fails_with_the_systems_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        Disk().sync_filesystem(-1)
    assert caught.value.errno == errno.EBADF


def test_an_allocated_file_occupies_its_size(path: Path) -> None:
    Disk().allocate(path, 1 << 20)
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_space_that_cannot_be_allocated_leaves_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Disk().allocate(path, 1 << 20)
    assert not path.exists()


def test_removing_a_file_twice_is_no_error(path: Path) -> None:
    path.write_bytes(b"x")
    Disk().remove(path)
    Disk().remove(path)
    assert not path.exists()


def test_free_space_is_what_an_ordinary_user_may_write(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = Disk().free_bytes(tmp_path)
    assert abs(free - status.f_bavail * status.f_frsize) < 1 << 30


def test_create_new_never_replaces_a_file(path: Path) -> None:
    disk = Steps()
    temporary = path.with_name("mine")
    disk.create_new(path, temporary, [b"one"])
    assert disk.steps == ["write", "sync", "sync_directory"]
    with pytest.raises(FileExistsError):
        disk.create_new(path, temporary, [b"two"])
    assert path.read_bytes() == b"one"
    assert list(path.parent.iterdir()) == [path]


def _written_back(position: int) -> tuple[str, str]:
    return "write", f"write_back {position}"


@pytest.mark.parametrize(
    ("pieces", "steps"),
    [
        ([], []),
        ([b"one"], ["write"]),
        (
            [b"one", b"four", b"seventeen"],
            ["write", *_written_back(3), *_written_back(7), *_written_back(11), "write"],
        ),
    ],
)
def test_a_large_new_file_is_written_back_in_parts(
    path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], steps: list[str]
) -> None:
    monkeypatch.setattr(disk_module, "WRITE_BACK_BYTES", 4)
    disk = Steps()
    disk.create_new(path, path.with_name("mine"), pieces)
    assert disk.steps == [*steps, "sync", "sync_directory"]
    assert path.read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("step", ["write", "write_back 0", "sync", "sync_directory"])
def test_a_new_file_that_cannot_be_made_durable_leaves_nothing(path: Path, step: str) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        Steps(fail=step).create_new(path, path.with_name("mine"), [bytes(WRITE_BACK_BYTES)])
    assert list(path.parent.iterdir()) == []


def test_every_directory_that_is_made_is_synced_in_its_parent(tmp_path: Path) -> None:
    class Parents(Disk):
        def __init__(self) -> None:
            self.synced: list[Path] = []

        def sync_directory(self, directory: Path) -> None:
            self.synced.append(directory)

    disk = Parents()
    disk.make_directories(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()
    assert disk.synced == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    disk.make_directories(tmp_path / "a/b/c")
    assert len(disk.synced) == 3


def test_a_move_is_durable(path: Path) -> None:
    path.write_bytes(b"x")
    disk = Steps()
    disk.move(path, path.with_name("new"))
    assert [p.name for p in path.parent.iterdir()] == ["new"]
    assert disk.steps == ["sync_directory"]


def test_names_distinguish_files_and_directories(tmp_path: Path) -> None:
    disk = Disk()
    disk.make_directory(tmp_path / "directory")
    disk.make_directory(tmp_path / "directory")
    (tmp_path / "file").write_bytes(b"four")
    assert sorted(disk.names(tmp_path)) == [("directory", True), ("file", False)]
    assert disk.file_size(tmp_path / "file") == 4
    for missing in ("directory", "nothing"):
        with pytest.raises(FileNotFoundError):
            disk.file_size(tmp_path / missing)


def test_a_directory_is_removed_with_its_files_and_again_without_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    for name in ("a", "b"):
        (directory / name).write_bytes(b"x")
    Disk().remove_directory(directory)
    Disk().remove_directory(directory)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_back_is_an_error(path: Path) -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match="Illegal seek"):
        Disk().write_back(write, 0, 1)
    os.close(read)
    os.close(write)


def test_write_back_has_no_effect_on_systems_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def sync_file_range(self, *_: object) -> int:
            ctypes.set_errno(errno.ENOSYS)
            return -1

    monkeypatch.setattr(disk_module, "_LIBC", Old())
    Disk().write_back(0, 0, 1)
