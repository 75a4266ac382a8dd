"""Files, with durability said out loud: `write` orders, `sync` makes durable.

Every call blocks and is meant for a worker thread. Errors are the system's own OSError, so that the
caller can tell a full disk from a broken one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

Buffer = bytes | bytearray | memoryview

WRITE_BACK_BYTES: Final = 1 << 20
_IOV_MAX: Final = 1024
_WRITE_AND_WAIT: Final = 7
"""Of `sync_file_range`: wait for what is under way, begin to write, wait for that."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Disk:
    """The local file system."""

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_append(self, path: Path) -> int:
        """An existing file, for writing at its end and reading."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        """Write all pieces one behind the other, however the system cuts them."""
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        start = 0
        while start < len(views):
            written = self._writev(fd, views[start : start + _IOV_MAX])
            if written == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            while start < len(views) and written >= len(views[start]):
                written -= len(views[start])
                start += 1
            if written:
                views[start] = views[start][written:]

    def sync(self, fd: int) -> None:
        """The bytes of this file survive a power cut when this returns."""
        os.fdatasync(fd)

    def sync_filesystem(self, fd: int) -> None:
        """Like `sync` for every file of the file system that holds `fd`."""
        if _LIBC.syncfs(fd) != 0:
            raise _last_error()

    def sync_directory(self, directory: Path) -> None:
        """Names created, renamed and removed in the directory survive a power cut."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def create(self, path: Path, pieces: Sequence[Buffer]) -> int:
        """A new file that is there whole or not at all, durable; returns it open for appending."""
        temporary = _temporary(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o640)
        try:
            self.write(fd, pieces)
            self.sync(fd)
            os.rename(temporary, path)
            self.sync_directory(path.parent)
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        return fd

    def create_all(self, files: Sequence[tuple[Path, Sequence[Buffer]]]) -> list[int]:
        """Like `create` for many files of one file system, with the directories they are in: two
        syncs of it make them all durable. None of them may be there; all are made, or none.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fds: list[int] = []
        try:
            for path, pieces in files:
                path.parent.mkdir(parents=True, exist_ok=True)
                fds.append(os.open(_temporary(path), flags, 0o640))
                self.write(fds[-1], pieces)
            self.sync_filesystem(fds[0])
            for path, _ in files:
                os.rename(_temporary(path), path)
            self.sync_filesystem(fds[0])
        except BaseException:
            for fd, (path, _) in zip(fds, files, strict=False):
                os.close(fd)
                _temporary(path).unlink(missing_ok=True)
                path.unlink(missing_ok=True)
            raise
        return fds

    def create_new(self, path: Path, temporary: Path, pieces: Sequence[Buffer]) -> None:
        """Like `create`, but never over another file, and closed: raises FileExistsError then.

        `temporary` is a name in the same directory that nobody else uses.
        """
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            try:
                self._write_slowly(fd, pieces)
                self.sync(fd)
            finally:
                os.close(fd)
            self.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        try:
            self.sync_directory(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _write_slowly(self, fd: int, pieces: Sequence[Buffer]) -> None:
        """Write a large file bit by bit: whoever syncs another file of the disk meanwhile waits for
        a bit of it, not for all.
        """
        position = 0
        for piece in pieces:
            view = memoryview(piece).cast("B")
            for start in range(0, len(view), WRITE_BACK_BYTES):
                part = view[start : start + WRITE_BACK_BYTES]
                self.write(fd, [part])
                if len(part) == WRITE_BACK_BYTES:
                    self.write_back(fd, position, len(part))
                position += len(part)

    def write_back(self, fd: int, start: int, size: int) -> None:
        """Have the disk take these bytes of the file; they survive a power cut only by `sync`.

        Where the system knows no such thing, nothing happens.
        """
        place = ctypes.c_int64(start), ctypes.c_int64(size)
        if _LIBC.sync_file_range(fd, *place, _WRITE_AND_WAIT) != 0:
            error = _last_error()
            if error.errno != errno.ENOSYS:
                raise error

    def link(self, path: Path, new: Path) -> None:
        """A second name for a file; raises FileExistsError. Durable by `sync_directory`."""
        os.link(path, new)

    def make_directory(self, path: Path) -> None:
        """No error if it is there. Durable by `sync_directory` of its parent."""
        path.mkdir(mode=0o750, exist_ok=True)

    def names(self, directory: Path) -> list[tuple[str, bool]]:
        """What is in the directory, in no order, and whether it is a directory itself."""
        with os.scandir(directory) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]

    def file_size(self, path: Path) -> int:
        """Raises FileNotFoundError, also if it is not a plain file."""
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a plain file", str(path))
        return status.st_size

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        have = len(data)
        while have < size and (data := os.pread(fd, size - have, position + have)):
            pieces.append(data)
            have += len(data)
        return b"".join(pieces)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file and make the cut durable."""
        os.ftruncate(fd, size)
        os.fsync(fd)

    def rewrite(self, path: Path, data: bytes, position: int) -> None:
        """Write bytes of a file that are there already once more, and make them durable.

        A sync alone would not: after one that failed, the system takes them for written.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, position)
                view, position = view[written:], position + written
            self.sync(fd)
        finally:
            os.close(fd)

    def allocate(self, path: Path, size: int) -> None:
        """A file that really holds `size` bytes of the disk."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def make_directories(self, path: Path) -> None:
        """The directory and those above it; they survive a power cut."""
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def move(self, old: Path, new: Path) -> None:
        """Rename within one directory, durably."""
        os.rename(old, new)
        self.sync_directory(new.parent)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """With the files in it; no error if it is not there. Durable by `sync_directory`."""
        if path.is_dir():
            for name, _ in self.names(path):
                self.remove(path / name)
            path.rmdir()

    def free_bytes(self, directory: Path) -> int:
        """What an ordinary user may still write on the file system of `directory`."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def _writev(self, fd: int, views: Sequence[memoryview]) -> int:
        return os.writev(fd, views)


def _last_error() -> OSError:
    """Why a call of the C library failed."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")
