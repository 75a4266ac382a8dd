"""What Penstock asks of an object store.

Objects are written once, whole, under names that are never reused, and read by ranges. Nothing here
depends on an object being overwritten, renamed or listed at once after a write: which objects count
is told by the manifest.
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


class ObjectMissing(ObjectStoreError):
    """There is no such object."""


class ObjectExists(ObjectStoreError):
    """Somebody else's object has this name, with other bytes."""


class StoreUnavailable(ObjectStoreError):
    """The store did not answer, or answered that it is too busy, and went on doing so."""


class ObjectStore(Protocol):
    """One bucket and prefix of one backend; every call has a time-out and retries."""

    @property
    def backend(self) -> str:
        """`s3`, `gcs`, `azblob`, `fs` or `memory`."""

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        """Write a whole new object; it is there for good when this returns, or not at all.

        Large ones go in parts, a bounded number at a time. Writing the same bytes again is fine,
        also when the first reply was lost. Raises ObjectExists, StoreUnavailable.
        """

    async def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Exactly the asked bytes; raises ObjectMissing, and ObjectStoreError when they are short.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose keys start with `prefix`, behind `after`, in key order."""

    async def delete(self, key: str) -> None:
        """Remove; no error if it is not there."""

    async def abort_uploads(self, prefix: str) -> int:
        """Throw away uploads in parts below `prefix` that were never completed; how many."""

    async def close(self) -> None: ...
