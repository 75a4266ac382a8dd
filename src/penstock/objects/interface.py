"""The interface of an object store, its errors, and the rules for keys.

Objects are written once and whole, under names that are never reused, and are read by ranges.
Penstock never overwrites or renames objects and does not rely on listings for recent writes: the
manifest says which objects exist.

Keys mean the same object in every store: some clients trim spaces and merge slashes, some servers
normalise Unicode, file systems have `..` and short names. A key that a store could take for another
is refused before any store sees it.

ObjectStoreError           the store refused the request or failed
├── ObjectMissing          the object does not exist
├── ObjectExists           another object has this name
├── ObjectDamaged          the bytes are not those that were written
├── StoreUnavailable       the store does not reply or is too busy, after all retries
└── KeyInvalid             the key breaks the rules; the store was not called
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol
from unicodedata import is_normalized

from penstock.model.errors import PenstockError

Buffer = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """Facts of a stored object."""

    key: str
    size_bytes: int
    etag: str | None
    """The store's version of the object; None for stores without versions (fs, memory)."""


class ObjectStoreError(PenstockError):
    """The store refused the request or failed, after all retries."""

    code = "object_store_error"

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object {key}: {reason}")
        self.key, self.reason = key, reason


class ObjectMissing(ObjectStoreError):
    """The object does not exist."""

    code = "object_missing"

    def __init__(self, key: str) -> None:
        super().__init__(key, "there is no such object")


class ObjectExists(ObjectStoreError):
    """An object with other bytes has this name."""

    code = "object_exists"

    def __init__(self, key: str) -> None:
        super().__init__(key, "the name is taken by an object with other bytes")


class ObjectDamaged(ObjectStoreError):
    """The bytes read are not those that were written, even when they are read again."""

    code = "object_damaged"

    def __init__(self, key: str, crc32c: int, crc32c_found: int) -> None:
        super().__init__(
            key, f"its bytes have the CRC32C {crc32c_found:08x} instead of {crc32c:08x}"
        )
        self.crc32c, self.crc32c_found = crc32c, crc32c_found


class StoreUnavailable(ObjectStoreError):
    """The store does not reply or is too busy, after all retries."""

    code = "object_store_unavailable"


class KeyInvalid(ObjectStoreError):
    """The key breaks the rules for keys; the store was not called."""

    code = "object_key_invalid"


class ObjectStore(Protocol):
    """One bucket and prefix of one backend; every call has a timeout and retries."""

    @property
    def backend(self) -> str:
        """`s3`, `gcs`, `azblob`, `fs` or `memory`."""

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        """Write a new object; it is durable when this returns.

        If this raises, the object exists completely or not at all. Large objects are written in
        parts, a bounded number at a time. Writing the same bytes again succeeds. Raises
        ObjectExists, StoreUnavailable.
        """

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        """Exactly the requested bytes; raises ObjectMissing, or ObjectStoreError for fewer bytes.

        Bytes with another checksum than `crc32c` are read once more, as they may have been damaged
        on their way, and never returned: raises ObjectDamaged.
        """

    async def head(self, key: str) -> ObjectInfo:
        """The facts of an object; raises ObjectMissing."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose keys start with `prefix` and come after `after`, in key order."""

    async def delete(self, key: str) -> None:
        """Delete an object if it exists."""

    async def abort_uploads(self, prefix: str, before: str | None = None) -> int:
        """Abort unfinished uploads of keys that start with `prefix`; returns their number.

        With `before`, only uploads of keys that come before it in key order. Uploads that are still
        running are aborted, too.
        """

    async def enforces_conditions(self) -> bool:
        """Whether exactly one of two writers that race for one name succeeds.

        If necessary, the first call writes small objects under `penstock-probe/` to find out. The
        result holds for objects of one part; stores may not check it for several parts.
        """

    async def close(self) -> None:
        """Give running calls some time, cancel those that remain, and free all resources."""


KEY_BYTES_MAX: Final = 896
PREFIX_BYTES_MAX: Final = 127
"""Prefix, slash and key together have at most the 1024 bytes that stores allow."""
SEGMENT_BYTES_MAX: Final = 220
"""File systems allow 255 bytes; the difference is for the names of unfinished files."""

RESERVED: Final = ".penstock-"
"""Prefix of names that stores reserve for their own files."""

PROBE_PREFIX: Final = "penstock-probe/"

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> None:
    """Raise KeyInvalid unless the key is allowed."""
    if _FORBIDDEN.search(key):
        raise KeyInvalid(repr(key), "it has a control character, a backslash or half a character")
    if not is_normalized("NFC", key):
        raise KeyInvalid(repr(key), "it is not in Unicode's normal form C")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise KeyInvalid(f"{key[:40]}...", f"it is longer than {KEY_BYTES_MAX} bytes")
    for segment in key.split("/"):
        _check_segment(key, segment)


def check_prefix(prefix: str) -> None:
    """Raise KeyInvalid unless a valid key can start with `prefix`, which may be empty."""
    check_key(f"{prefix}x")


def _check_segment(key: str, segment: str) -> None:
    if segment in ("", ".", ".."):
        raise KeyInvalid(repr(key), f"{segment!r} is no name between two slashes")
    if segment != segment.strip():
        raise KeyInvalid(repr(key), f"{segment!r} starts or ends with white space")
    if segment.startswith(RESERVED):
        raise KeyInvalid(repr(key), f"names that start with {RESERVED} are reserved")
    if len(segment.encode()) > SEGMENT_BYTES_MAX:
        raise KeyInvalid(f"{key[:40]}...", f"a name in it is over {SEGMENT_BYTES_MAX} bytes")
