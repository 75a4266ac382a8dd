"""Objects as plain files in a directory: the key of an object is its path.

A file appears under its name complete, durable, and never in place of another: it is written under
a reserved name in the same directory, synced and linked, and the directory is synced, as are the
parents of new directories. A crash leaves at most a file with a reserved name, which listings skip
and `abort_uploads` removes.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from crc32c import crc32c as crc32c_of

from penstock.host.disk import Disk
from penstock.host.entropy import unique_name
from penstock.host.threads import WorkerThreads
from penstock.objects.interface import (
    RESERVED,
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
    check_key,
    check_prefix,
)
from penstock.objects.transfer import READ_BYTES, check_crc32c, pieces_crc32c

THREADS: Final = 4
SYNCED_DIRECTORIES_MAX: Final = 16 << 10
"""Directories that are remembered as durable; when there are more, all are forgotten."""

_MAY_PASS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN}

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FileStore:
    """An object store in a directory; create and close it within a running event loop."""

    backend: Final = "fs"

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root.absolute()
        self._disk = disk or Disk()
        self._workers = WorkerThreads(THREADS, "objects")
        self._synced: set[Path] = set()

    def __repr__(self) -> str:
        return f"FileStore({str(self._root)!r})"

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        check_key(key)
        await self._run(key, self._put, key, pieces)
        return ObjectInfo(key, sum(memoryview(piece).nbytes for piece in pieces), None)

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        check_key(key)
        data = await self._run(key, self._get, key, start, size)
        return check_crc32c(key, data, crc32c)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return ObjectInfo(key, await self._run(key, self._disk.file_size, self._path(key)), None)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        names: list[str] = []
        async for key in walk(self._entries, prefix, after):
            names.append(key)
            if len(names) == STAT_NAMES:
                for info in await self._run(prefix, self._infos, names):
                    yield info
                names = []
        for info in await self._run(prefix, self._infos, names):
            yield info

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._run(key, self._delete, self._path(key))

    async def abort_uploads(self, prefix: str, before: str | None = None) -> int:
        check_prefix(prefix)
        removed = 0
        async for key in walk(self._entries, prefix, writing=True):
            if before is not None and intended_key(key) >= before:
                continue
            await self._run(key, self._delete, self._path(key))
            removed += 1
        return removed

    async def enforces_conditions(self) -> bool:
        return True

    async def close(self) -> None:
        await self._workers.close()

    def _path(self, key: str) -> Path:
        return self._root / key

    async def _entries(self, directory: str) -> Sequence[tuple[str, bool]]:
        try:
            return await self._run(directory, self._disk.names, self._root / directory)
        except ObjectMissing:
            return []

    async def _run(
        self, key: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        try:
            return await self._workers.run(call, *args, **kwargs)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectMissing(key) from None
        except OSError as error:
            kind = StoreUnavailable if error.errno in _MAY_PASS else ObjectStoreError
            raise kind(key, (error.strerror or "the disk failed").lower()) from error

    # -- in a worker thread from here on

    def _put(self, key: str, pieces: Sequence[Buffer]) -> None:
        path = self._path(key)
        try:
            self._make_directory(path.parent)
            self._create(key, path, pieces)
        except FileNotFoundError:
            # A directory that was remembered as durable has been removed.
            self._synced.clear()
            self._make_directory(path.parent)
            self._create(key, path, pieces)
        except (NotADirectoryError, IsADirectoryError) as error:
            raise ObjectStoreError(key, "a part of it is the name of an object") from error

    def _create(self, key: str, path: Path, pieces: Sequence[Buffer]) -> None:
        temporary = path.with_name(unfinished(path.name, unique_name()[:16]))
        try:
            self._disk.create_new(path, temporary, pieces)
        except FileExistsError:
            self._compare(key, path, pieces)

    def _make_directory(self, directory: Path) -> None:
        """Create the directory and its parents, and make their names durable up to the root.

        Existing directories are synced, too: the process that made them may have died before.
        """
        if directory in self._synced:
            return
        if directory != self._root and directory.is_relative_to(self._root):
            self._make_directory(directory.parent)
        try:
            self._disk.make_directory(directory)
        except FileNotFoundError:
            self._make_directory(directory.parent)
            self._disk.make_directory(directory)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(directory)) from None
        self._disk.sync_directory(directory.parent)
        if len(self._synced) >= SYNCED_DIRECTORIES_MAX:
            self._synced.clear()
        self._synced.add(directory)

    def _compare(self, key: str, path: Path, pieces: Sequence[Buffer]) -> None:
        """Make the object that has this name durable if it has the same bytes; else raise."""
        if path.is_dir():
            raise ObjectExists(key)
        fd = self._disk.open_read(path)
        try:
            size = sum(memoryview(piece).nbytes for piece in pieces)
            if self._disk.size(fd) != size or self._crc(fd, size) != pieces_crc32c(pieces):
                raise ObjectExists(key)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.sync_directory(path.parent)

    def _crc(self, fd: int, size: int) -> int:
        crc = 0
        for start in range(0, size, READ_BYTES):
            crc = crc32c_of(self._disk.read(fd, READ_BYTES, start), crc)
        return crc

    def _get(self, key: str, start: int, size: int | None) -> bytes:
        fd = self._disk.open_read(self._path(key))
        try:
            have = self._disk.size(fd)
            stop = have if size is None else start + size
            if not 0 <= start <= stop <= have:
                raise ObjectStoreError(key, f"bytes {start} to {stop} are not in its {have}")
            data = self._disk.read(fd, stop - start, start)
        finally:
            self._disk.close(fd)
        if len(data) != stop - start:
            raise ObjectStoreError(key, f"it has {len(data)} bytes where {stop - start} were asked")
        return data

    def _infos(self, keys: Sequence[str]) -> Sequence[ObjectInfo]:
        infos = []
        for key in keys:
            try:
                infos.append(ObjectInfo(key, self._disk.file_size(self._path(key)), None))
            except FileNotFoundError:
                continue  # deleted since it was listed
        return infos

    def _delete(self, path: Path) -> None:
        try:
            self._disk.remove(path)
            self._disk.sync_directory(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return


STAT_NAMES: Final = 1000
"""Files whose sizes a listing reads at a time."""

Entries = Callable[[str], Awaitable[Sequence[tuple[str, bool]]]]
"""Returns the names in a directory (a key with a final slash) and whether each is a directory."""


def unfinished(name: str, unique: str) -> str:
    """The reserved name of a file until it is complete and gets its `name`."""
    return f"{RESERVED}{name}.{unique}"


async def walk(
    entries: Entries, prefix: str, after: str = "", *, writing: bool = False
) -> AsyncIterator[str]:
    """Keys that start with `prefix` and come after `after`, in key order.

    With `writing`, unfinished files instead, in order of the keys that they are meant for.
    """
    waiting = [prefix[: prefix.rfind("/") + 1]]
    while waiting:
        key = waiting.pop()
        if key and not key.endswith("/"):
            yield key
            continue
        children = [
            f"{key}{name}/" if is_directory else f"{key}{name}"
            for name, is_directory in await entries(key)
            if is_directory or name.startswith(RESERVED) == writing
        ]
        waiting.extend(sorted(filter(_within(prefix, after), children), reverse=True))


def _within(prefix: str, after: str) -> Callable[[str], bool]:
    def matches(key: str) -> bool:
        if key.endswith("/"):
            in_prefix = key.startswith(prefix) or prefix.startswith(key)
            return in_prefix and (key > after or after.startswith(key))
        return intended_key(key).startswith(prefix) and key > after

    return matches


def intended_key(key: str) -> str:
    """The key of the object that a finished or unfinished file is for."""
    directory, slash, name = key.rpartition("/")
    if name.startswith(RESERVED):
        name = name.removeprefix(RESERVED).rpartition(".")[0]
    return f"{directory}{slash}{name}"
