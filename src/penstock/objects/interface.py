"""What Penstock asks of an object store.

Objects are written once, whole, under names that are never reused, and read by ranges. Nothing here
depends on an object being overwritten, renamed or listed at once after a write: which objects count
is told by the manifest.

ObjectStoreError           the store refused or failed for good
├── ObjectMissing          there is no such object
├── ObjectExists           somebody else's object has this name
├── ObjectDamaged          the bytes are not those that were written
├── StoreUnavailable       no answer, or too busy, and it went on like that
└── KeyInvalid             the key breaks the rules; nothing was asked of the store
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from penstock.model.errors import PenstockError

Buffer = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """An object as the store knows it."""

    key: str
    size_bytes: int
    etag: str | None
    """What the store calls its version; None where it has no such thing (fs, memory)."""


class ObjectStoreError(PenstockError):
    """The store refused or failed for good, after all retries."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object {key}: {reason}")
        self.key, self.reason = key, reason


class ObjectMissing(ObjectStoreError):
    """There is no such object."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "there is no such object")


class ObjectExists(ObjectStoreError):
    """Somebody else's object has this name, with other bytes."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "the name is taken by an object with other bytes")


class ObjectDamaged(ObjectStoreError):
    """The bytes read are not those that were written, also when read again."""

    def __init__(self, key: str, crc32c: int, crc32c_found: int) -> None:
        super().__init__(
            key, f"its bytes have the CRC32C {crc32c_found:08x} instead of {crc32c:08x}"
        )
        self.crc32c, self.crc32c_found = crc32c, crc32c_found


class StoreUnavailable(ObjectStoreError):
    """The store did not answer, or answered that it is too busy, and went on doing so."""


class KeyInvalid(ObjectStoreError):
    """The key breaks the rules for keys; nothing was asked of the store."""


class ObjectStore(Protocol):
    """One bucket and prefix of one backend; every call has a time-out and retries."""

    @property
    def backend(self) -> str:
        """`s3`, `gcs`, `azblob`, `fs` or `memory`."""

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        """Write a whole new object; it is there for good when this returns.

        When this raises, it is there whole or not at all. Large ones go in parts, a bounded number
        at a time. Writing the same bytes again is fine, also when the first reply was lost. Raises
        ObjectExists, StoreUnavailable.
        """

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        """Exactly the asked bytes; raises ObjectMissing, and ObjectStoreError when they are short.

        With `crc32c`, the checksum that the asked bytes must have, other bytes are never returned:
        they are read once more, in case the damage was done on the way, then ObjectDamaged.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose keys start with `prefix`, behind `after`, in key order."""

    async def delete(self, key: str) -> None:
        """Remove; no error if it is not there."""

    async def abort_uploads(self, prefix: str, before: str | None = None) -> int:
        """Throw away uploads below `prefix` that were never completed; how many.

        With `before`, only those of keys that come before it in key order.

        Not for a prefix under which somebody is writing: that upload is thrown away, too.
        """

    async def enforces_conditions(self) -> bool:
        """Whether of two writers that race for one name exactly one wins.

        Found out once, where it must be by writing small objects under `penstock-probe/`. A yes is
        for objects of one part: a store may be careless about those written in several.
        """

    async def close(self) -> None:
        """Let calls in hand finish for a while, cancel the rest, free everything."""
