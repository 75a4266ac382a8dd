"""Objects in memory, for `storage.mode: memory` and for tests; they are lost with the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from penstock.objects.interface import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
    check_key,
    check_prefix,
)
from penstock.objects.transfer import check_crc32c

BYTES_MAX: Final = 1 << 30


class MemoryStore:
    """An object store in a dict, with a limit of bytes."""

    backend: Final = "memory"

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._objects: dict[str, bytes] = {}
        self._bytes = 0
        self._bytes_max = bytes_max

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        check_key(key)
        data = b"".join(pieces)
        held = self._objects.get(key)
        if held is None:
            if self._bytes + len(data) > self._bytes_max:
                raise StoreUnavailable(
                    key, f"memory for objects is full, bytes_max is {self._bytes_max}"
                )
            self._objects[key] = data
            self._bytes += len(data)
        elif held != data:
            raise ObjectExists(key)
        return ObjectInfo(key, len(data), None)

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        data = self._found(key)
        stop = len(data) if size is None else start + size
        if not 0 <= start <= stop <= len(data):
            raise ObjectStoreError(key, f"bytes {start} to {stop} are not in its {len(data)}")
        return check_crc32c(key, data[start:stop], crc32c)

    async def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self._found(key)), None)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        keys = [key for key in self._objects if key.startswith(prefix) and key > after]
        for key in sorted(keys):
            if (data := self._objects.get(key)) is not None:
                yield ObjectInfo(key, len(data), None)

    async def delete(self, key: str) -> None:
        check_key(key)
        self._bytes -= len(self._objects.pop(key, b""))

    async def abort_uploads(self, prefix: str, before: str | None = None) -> int:
        check_prefix(prefix)
        return 0

    async def enforces_conditions(self) -> bool:
        return True

    async def close(self) -> None:
        self._objects.clear()
        self._bytes = 0

    def _found(self, key: str) -> bytes:
        check_key(key)
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectMissing(key) from None
