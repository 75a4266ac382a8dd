"""Objects as plain files below a directory: an object's key is its path.

A file appears under its name whole, synced, and never over another: it is written under a reserved
name beside it, synced, linked, and its directory is synced; so are the parents of directories that
were made for it. A crash leaves at most a file with a reserved name, which no listing shows and
`abort_uploads` removes.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from crc32c import crc32c as crc32c_of

from penstock.host.disk import Disk
from penstock.host.entropy import unique_name
from penstock.host.threads import Workers
from penstock.objects.checksums import READ_BYTES, check_crc32c, pieces_crc32c
from penstock.objects.fs_walk import STAT_NAMES, meant, unfinished, walk
from penstock.objects.interface import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.objects.keys import check_key, check_prefix

THREADS: Final = 4
SYNCED_DIRECTORIES_MAX: Final = 16 << 10
"""Directories remembered as durable; beyond that, all are forgotten and synced once more."""

_MAY_PASS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN}

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FileStore:
    """One directory; make it where an event loop runs, and close it there."""

    backend: Final = "fs"

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root.absolute()
        self._disk = disk or Disk()
        self._workers = Workers(THREADS, "objects")
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
            if before is not None and meant(key) >= before:
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
            # Somebody removed a directory that was remembered as being there.
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
        """Make it and those above; up to the root, their names survive a power cut.

        Also those that were there: the process that made them may have died before it synced them.
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
        """The name is taken: fine if by the same bytes, which then are made durable here, too."""
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
