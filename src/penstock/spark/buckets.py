"""Objects read and staged by Spark's Python workers, past the broker.

A worker keeps one client of a store for as long as it lives; directories are read as files.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.plan_api import StoreReply
from penstock.objects.described import open_described
from penstock.objects.interface import ObjectInfo, ObjectMissing, ObjectStore

_T = TypeVar("_T")
_AHEAD_BYTES: Final = 1 << 20
"""Read at least so much of a remote object at a time: its footer, or a few columns."""

_loop: asyncio.AbstractEventLoop | None = None
_open: dict[tuple[StoreReply, tuple[tuple[str, str], ...]], ObjectStore] = {}


class Bucket:
    """A store that was described, with credentials; it can be sent to other processes."""

    def __init__(self, told: StoreReply, credentials: Mapping[str, str]) -> None:
        self._told, self._credentials = told, dict(credentials)

    @property
    def directory(self) -> Path | None:
        """Where the objects are files."""
        return Path(self._told.root) if self._told.backend == "fs" else None

    def parquet(self, key: str, size: int) -> pq.ParquetFile:
        """An object to be read; raises ObjectMissing, or what pyarrow raises."""
        directory = self.directory
        source: Any
        if directory is not None:
            try:
                source = pa.OSFile(str(directory / key))
            except FileNotFoundError:
                raise ObjectMissing(key) from None
        else:
            source = pa.PythonFile(io.BufferedReader(_Remote(self, key, size), _AHEAD_BYTES), "r")
        return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        return _run(self._store().get(key, start, size))

    def put(self, key: str, data: pa.Buffer) -> ObjectInfo:
        """Write a new object; it is there for good on return."""
        return _run(self._store().put(key, [memoryview(data)]))

    def delete(self, key: str) -> None:
        _run(self._store().delete(key))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Objects whose keys start with the prefix."""
        store = self._store()

        async def found() -> list[ObjectInfo]:
            return [info async for info in store.list(prefix)]

        return _run(found())

    def _store(self) -> ObjectStore:
        key = (self._told, tuple(sorted(self._credentials.items())))
        if key not in _open:

            async def make() -> ObjectStore:
                return open_described(self._told, self._credentials)

            _open[key] = _run(make())
        return _open[key]


class _Remote(io.RawIOBase):
    """An object as a file."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket, self._key, self._size = bucket, key, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = {0: 0, 1: self._position, 2: self._size}[whence] + position
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size - self._position)
        if size <= 0:
            return 0
        buffer[:size] = self._bucket.get(self._key, self._position, size)
        self._position += size
        return size


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    global _loop  # noqa: PLW0603 - one loop a process, which the clients belong to
    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(work)
