"""Access of Spark's Python workers to the objects in the bucket, without the broker.

A worker process keeps one client for each store; a store in a directory is read as files.
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
from penstock.objects import ObjectInfo, ObjectMissing, ObjectStore, open_described

_T = TypeVar("_T")
_AHEAD_BYTES: Final = 1 << 20
"""Minimum size of a read from a remote object: its footer, or a few columns."""

_loop: asyncio.AbstractEventLoop | None = None
_open: dict[tuple[StoreReply, tuple[tuple[str, str], ...]], ObjectStore] = {}


class SparkBucket:
    """An object store described by the broker, with credentials; it can be pickled."""

    def __init__(self, store: StoreReply, credentials: Mapping[str, str]) -> None:
        self._description, self._credentials = store, dict(credentials)

    @property
    def directory(self) -> Path | None:
        """The directory of a store whose objects are files, else None."""
        return Path(self._description.root) if self._description.backend == "fs" else None

    def parquet(self, key: str, size: int) -> pq.ParquetFile:
        """Open an object for reading; raises ObjectMissing and the errors of pyarrow."""
        directory = self.directory
        source: Any
        if directory is not None:
            try:
                source = pa.OSFile(str(directory / key))
            except FileNotFoundError:
                raise ObjectMissing(key) from None
        else:
            source = pa.PythonFile(
                io.BufferedReader(_RemoteFile(self, key, size), _AHEAD_BYTES), "r"
            )
        return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        return _run(self._store().get(key, start, size))

    def put(self, key: str, data: pa.Buffer) -> ObjectInfo:
        """Write a new object, durably."""
        return _run(self._store().put(key, [memoryview(data)]))

    def delete(self, key: str) -> None:
        _run(self._store().delete(key))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Objects whose keys start with the prefix."""
        store = self._store()

        async def objects() -> list[ObjectInfo]:
            return [info async for info in store.list(prefix)]

        return _run(objects())

    def _store(self) -> ObjectStore:
        key = (self._description, tuple(sorted(self._credentials.items())))
        if key not in _open:

            async def open_store() -> ObjectStore:
                return open_described(self._description, self._credentials)

            _open[key] = _run(open_store())
        return _open[key]


class _RemoteFile(io.RawIOBase):
    """A remote object as a file."""

    def __init__(self, bucket: SparkBucket, key: str, size: int) -> None:
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
    global _loop  # noqa: PLW0603 - the clients of a process belong to one loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(work)
