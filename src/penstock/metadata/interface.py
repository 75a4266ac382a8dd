"""The interface of a metadata store: ordered keys, transactions, leases and watches.

`metadata/sqlite` (embedded) and `metadata/etcd` implement it; one suite of conformance tests runs
against both. Every change has a revision, which ascends over the whole store. A key's *create
revision* is the revision of the change that created it; a key that is deleted and created again has
another one. That number is the fencing token of ownership.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import NamedTuple, NewType, Protocol

from penstock.model.errors import PenstockError

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)


class MetadataEntry(NamedTuple):
    """A key and its value."""

    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    version: int
    """How often the key was written since it was created, from 1."""
    lease: LeaseId | None


class CompareTarget(Enum):
    """The attribute of a key that a comparison reads."""

    VALUE = "value"
    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"


class Compare(NamedTuple):
    """Holds if the attribute of the key equals this; version or revision 0: the key is absent."""

    key: str
    target: CompareTarget
    equals: bytes | int


class Put(NamedTuple):
    """Writes a key; with a lease, the key is deleted when the lease ends."""

    key: str
    value: bytes
    lease: LeaseId | None = None


class DeleteKeys(NamedTuple):
    """Deletes a key, or with `prefix` all keys that start with it."""

    key: str
    prefix: bool = False


class TransactionResult(NamedTuple):
    """Whether all comparisons held, so that all changes were applied; otherwise none was."""

    succeeded: bool
    revision: Revision


class EntryPage(NamedTuple):
    """Entries in key order, the revision they were read at, and whether more follow."""

    entries: list[MetadataEntry]
    revision: Revision
    more: bool


class KeyChange(NamedTuple):
    """A change that a watch returns; `value` is None if the key was deleted or its lease ended."""

    key: str
    value: bytes | None
    revision: Revision


class MetadataUnavailable(PenstockError):
    """The store did not reply in time; a transaction may or may not have been carried out."""

    code = "metadata_unavailable"


class HistoryCompacted(PenstockError):
    """A watch began at revisions that the store has dropped: list again, and watch from there."""

    code = "history_compacted"

    def __init__(self, since: Revision, oldest: Revision) -> None:
        super().__init__(f"changes since revision {since} are gone, the oldest kept is {oldest}")
        self.since, self.oldest = since, oldest


class LeaseExpired(PenstockError):
    """The lease has ended, and the keys bound to it are deleted."""

    code = "lease_expired"


class MetadataRefused(PenstockError):
    """The request breaks a rule or limit, or is not permitted; nothing was changed."""

    code = "metadata_refused"


class Renewer(Protocol):
    """Renews leases by blocking calls, for a thread that is independent of the event loop."""

    def keep_alive(self, lease: LeaseId, timeout_seconds: float) -> float:
        """Renew the lease; returns for how many seconds it is valid from the time of this *call*.

        Raises LeaseExpired, MetadataRefused, and MetadataUnavailable once the timeout is over.
        """

    def close(self) -> None:
        """Close, from any thread; a running call raises MetadataUnavailable soon."""


class Metadata(Protocol):
    """The store; `MetadataKeys` makes the keys, which are absolute paths."""

    async def get(self, key: str) -> MetadataEntry | None: ...

    async def get_many(self, keys: Sequence[str]) -> list[MetadataEntry | None]:
        """The entry of each key, in the order of `keys`; they may be of different revisions."""

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> EntryPage:
        """Entries whose keys start with `prefix` and follow `after`, in key order."""

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision: ...

    async def delete(self, key: str) -> bool:
        """Delete a key; returns whether it existed."""

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        """Make all changes if all comparisons hold; durable on return.

        The leases of the changes must exist if the comparisons hold. Raises LeaseExpired and
        MetadataRefused.
        """

    async def grant(self, seconds: int) -> LeaseId:
        """Grant a lease, which ends after `seconds` unless it is renewed."""

    def renewer(self) -> Renewer:
        """A renewer of this store's leases; the caller closes it before it closes the store."""

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease and delete its keys; no error if it has ended already."""

    def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[KeyChange]]:
        """Every change to keys that start with `prefix` after revision `since`, in order, once.

        A watch survives a restart of the store. Raises HistoryCompacted.
        """

    async def close(self) -> None: ...


async def read_all(metadata: Metadata, prefix: str) -> list[MetadataEntry]:
    """All entries whose keys start with `prefix`, in key order, read page by page."""
    entries: list[MetadataEntry] = []
    while True:
        page = await metadata.range(prefix, entries[-1].key if entries else "")
        entries += page.entries
        if not page.more:
            return entries
