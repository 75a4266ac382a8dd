"""Disks that count, wait and fail, and a clock that the test sets."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.host.clock import Clock
from penstock.host.disk import Buffer, Disk
from penstock.model.units import Microseconds, Nanoseconds


class Unsynced(Disk):
    """Trusts the page cache: right for every test that does not cut the power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_filesystem(self, fd: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)


class Slow(Unsynced):
    """Counts, and takes its time to sync."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.syncs = 0
        self.writes = 0

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        self.writes += 1
        super().write(fd, pieces)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        time.sleep(self.seconds)


class Gate(Unsynced):
    """Syncs wait while the gate is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = threading.Event()

    def shut(self) -> None:
        self.waiting.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def sync(self, fd: int) -> None:
        if not self._open.is_set():
            self.waiting.set()
        if not self._open.wait(10):
            raise OSError(errno.ETIMEDOUT, "the gate was never opened")


Failure = Callable[[str, str], OSError | None]
"""Given an operation and a file's name, the error it meets."""


def no_failure(operation: str, name: str) -> OSError | None:
    return None


def on(operation: str, code: int, times: int = 1, name: str = "") -> Failure:
    """The first `times` calls of an operation fail with `code`, on files whose name has `name`."""
    left = [times]

    def fail(called: str, file: str) -> OSError | None:
        if called != operation or not left[0] or name not in file:
            return None
        left[0] -= 1
        return OSError(code, os.strerror(code))

    return fail


class Faulty(Disk):
    """Fails chosen operations, and records every operation on every file by name.

    A failed sync is the kernel's: what was written is marked clean and may never reach the disk,
    so syncing those bytes again would be a lie. `poisoned` are the files a sync failed on,
    `synced_again` those of them that somebody synced nevertheless.
    """

    def __init__(self) -> None:
        self.fail: Failure = no_failure
        self.calls: Counter[tuple[str, str]] = Counter()
        self.poisoned: set[str] = set()
        self.synced_again: list[str] = []
        self.free: int | None = None
        self._names: dict[int, str] = {}

    def _meet(self, operation: str, name: str) -> None:
        self.calls[operation, name] += 1
        error = self.fail(operation, name)
        if error is not None:
            raise error

    def count(self, operation: str) -> int:
        return sum(n for (called, _), n in self.calls.items() if called == operation)

    def open_read(self, path: Path) -> int:
        self._meet("open_read", path.name)
        fd = super().open_read(path)
        self._names[fd] = path.name
        return fd

    def open_append(self, path: Path) -> int:
        self._meet("open_append", path.name)
        fd = super().open_append(path)
        self._names[fd] = path.name
        return fd

    def close(self, fd: int) -> None:
        name = self._names.pop(fd)
        super().close(fd)
        self._meet("close", name)

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._meet("read", self._names[fd])
        return super().read(fd, size, position)

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        self._meet("write", self._names[fd])
        super().write(fd, pieces)

    def _writev(self, fd: int, views: Sequence[memoryview]) -> int:
        error = self.fail("writev", self._names[fd])
        if error is not None and error.errno == errno.EINTR:
            return os.write(fd, b"".join(views)[:7])
        if error is not None:
            os.write(fd, b"".join(views)[: sum(map(len, views)) // 2])
            raise error
        return super()._writev(fd, views)

    def sync(self, fd: int) -> None:
        name = self._names[fd]
        if name in self.poisoned:
            self.synced_again.append(name)
        try:
            self._meet("sync", name)
        except OSError:
            self.poisoned.add(name)
            raise

    def truncate(self, fd: int, size: int) -> None:
        self._meet("truncate", self._names[fd])
        os.ftruncate(fd, size)

    def sync_filesystem(self, fd: int) -> None:
        self._meet("sync_filesystem", self._names[fd])

    def sync_directory(self, directory: Path) -> None:
        self._meet("sync_directory", directory.name)

    def create(self, path: Path, pieces: Sequence[Buffer]) -> int:
        """Performs the steps of the real disk one by one, so that each can fail."""
        self._meet("create", path.name)
        temporary = path.with_name(path.name + ".tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o640)
        self._names[fd] = temporary.name
        self.poisoned.discard(temporary.name)
        try:
            self.write(fd, pieces)
            self.sync(fd)
            os.rename(temporary, path)
            self._names[fd] = path.name
            self.sync_directory(path.parent)
        except BaseException:
            super().close(fd)
            temporary.unlink(missing_ok=True)
            raise
        return fd

    def create_all(self, files: Sequence[tuple[Path, Sequence[Buffer]]]) -> list[int]:
        """One by one, since every step can fail there."""
        self._meet("create_all", "")
        for path, _ in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        return [self.create(path, pieces) for path, pieces in files]

    def rewrite(self, path: Path, data: bytes, position: int) -> None:
        """Written once more, bytes may be synced where a sync has failed on them."""
        fd = self.open_append(path)
        try:
            self._meet("rewrite", path.name)
            with path.open("rb") as file:
                assert file.read()[position:].startswith(data)
            self.poisoned.discard(path.name)
            self.sync(fd)
        finally:
            os.close(fd)
            del self._names[fd]

    def allocate(self, path: Path, size: int) -> None:
        self._meet("allocate", path.name)
        super().allocate(path, size)

    def remove(self, path: Path) -> None:
        self._meet("remove", path.name)
        super().remove(path)

    def free_bytes(self, directory: Path) -> int:
        self._meet("free_bytes", directory.name)
        return super().free_bytes(directory) if self.free is None else self.free


class Full(Faulty):
    """A full disk, with only the space that the reserve has freed."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.full = False
        self.fail = self._when_full

    def _when_full(self, operation: str, name: str) -> OSError | None:
        reserve = self.root / "reserve"
        if self.full and operation in ("write", "create", "allocate") and reserve.exists():
            return OSError(errno.ENOSPC, "No space left on device")
        return None

    def fill(self) -> None:
        self.full, self.free = True, 0

    def clear(self) -> None:
        self.full, self.free = False, 1 << 30


class Hand(Clock):
    """Both clocks stand still until they are moved; the time of day may be set back."""

    def __init__(self, now_us: int = 1_000_000_000_000) -> None:
        self.us = now_us
        self.ns = 1_000_000_000

    def now_us(self) -> Microseconds:
        return Microseconds(self.us)

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(self.ns)

    def pass_seconds(self, seconds: float) -> None:
        self.us += int(seconds * 1e6)
        self.ns += int(seconds * 1e9)
