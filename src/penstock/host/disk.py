"""File operations with explicit durability: `write` orders bytes, `sync` makes them durable.

Every method blocks and belongs in a worker thread. Errors are OSErrors of the system, so that
callers can distinguish a full disk from a broken one.
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
"""Flags of `sync_file_range`: wait for running writes, write, and wait for that."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Disk:
    """The local file system. Opens plain files only: a link, a pipe or a device is an OSError."""

    def open_read(self, path: Path) -> int:
        return _open(path, os.O_RDONLY)

    def open_append(self, path: Path) -> int:
        """Open an existing file for reading and appending."""
        return _open(path, os.O_RDWR | os.O_APPEND)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        """Write all pieces in order, in as many system calls as necessary."""
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
        """Sync every file of the file system that `fd` is on."""
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
        """Create a durable file atomically, replacing one of this name; open for appending."""
        temporary = _temporary(path)
        fd = _open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
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
        """Create many new files of one file system and their directories, all of them or none.

        It syncs the whole file system twice instead of each file.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        fds: list[int] = []
        try:
            for path, pieces in files:
                path.parent.mkdir(parents=True, exist_ok=True)
                fds.append(_open(_temporary(path), flags))
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
        """Create a durable file atomically and close it; raises FileExistsError.

        `temporary` is a unique name in the same directory.
        """
        fd = _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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
        """Write a large file in small parts, so that syncs of other files do not wait for all."""
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
        """Write these bytes of the file to the disk; only `sync` makes them durable.

        Has no effect on systems without `sync_file_range`.
        """
        byte_range = ctypes.c_int64(start), ctypes.c_int64(size)
        if _LIBC.sync_file_range(fd, *byte_range, _WRITE_AND_WAIT) != 0:
            error = _last_error()
            if error.errno != errno.ENOSYS:
                raise error

    def link(self, path: Path, new: Path) -> None:
        """Create a second name of a file; raises FileExistsError. Durable by `sync_directory`."""
        os.link(path, new)

    def make_directory(self, path: Path) -> None:
        """Create a directory if necessary. Durable by `sync_directory` of its parent."""
        path.mkdir(mode=0o750, exist_ok=True)

    def names(self, directory: Path) -> list[tuple[str, bool]]:
        """Names in the directory in no order, and whether each is a directory."""
        with os.scandir(directory) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]

    def file_size(self, path: Path) -> int:
        """Size of a plain file; raises FileNotFoundError for anything else."""
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
        """Write existing bytes of a file again and make them durable.

        A sync alone is not enough after a failed sync, when the system believes them written.
        """
        fd = _open(path, os.O_WRONLY)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, position)
                view, position = view[written:], position + written
            self.sync(fd)
        finally:
            os.close(fd)

    def allocate(self, path: Path, size: int) -> None:
        """Create a file that occupies `size` bytes of the disk."""
        fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def make_directories(self, path: Path) -> None:
        """Create the directory and missing parents durably."""
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
        """Remove a directory with its files, if it exists. Durable by `sync_directory`."""
        if path.is_dir():
            for name, _ in self.names(path):
                self.remove(path / name)
            path.rmdir()

    def free_bytes(self, directory: Path) -> int:
        """Bytes that an ordinary user may still write on the file system of `directory`."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def _writev(self, fd: int, views: Sequence[memoryview]) -> int:
        return os.writev(fd, views)


def _open(path: Path, flags: int) -> int:
    """Open a plain file. Without O_NONBLOCK, to open a named pipe would block the thread."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "not a plain file", str(path))
    return fd


def _last_error() -> OSError:
    """The error of a failed call of the C library."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")
