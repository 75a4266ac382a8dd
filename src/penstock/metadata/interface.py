"""What Penstock asks of a metadata store: ordered keys, transactions, leases, watches.

Two implementations keep the same promises, and one suite of tests runs against both: SQLite,
embedded (metadata/sqlite.py), and etcd (metadata/etcd.py). Every change has a revision, ascending
over the whole store. A key's *create revision* is the revision of the change that made it; deleted
and made again, it has another one. That number is the fencing token of ownership.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import NamedTuple, NewType, Protocol

from penstock.model.errors import PenstockError

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)


class Entry(NamedTuple):
    """A key as it is now."""

    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    version: int
    """How often it was written since it was made, from 1."""
    lease: LeaseId | None


class Target(Enum):
    """What of a key is compared."""

    VALUE = "value"
    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"


class Compare(NamedTuple):
    """Holds if the key has exactly this; 0 as version or revision means there is no such key."""

    key: str
    target: Target
    equals: bytes | int


class Put(NamedTuple):
    """Write a key; with a lease it goes when the lease does."""

    key: str
    value: bytes
    lease: LeaseId | None = None


class Delete(NamedTuple):
    """Remove a key, or with `prefix` all keys that start with it."""

    key: str
    prefix: bool = False


class Outcome(NamedTuple):
    """Whether all comparisons held and the changes were made, all of them or none."""

    succeeded: bool
    revision: Revision


class Page(NamedTuple):
    """Entries in key order, the revision they were read at, and whether there are more."""

    entries: list[Entry]
    revision: Revision
    more: bool


class Change(NamedTuple):
    """A change seen by a watch; `value` is None when the key was deleted or its lease ended."""

    key: str
    value: bytes | None
    revision: Revision


class MetadataUnavailable(PenstockError):
    """The store did not answer in time; a transaction may or may not have been carried out."""


class HistoryCompacted(PenstockError):
    """A watch asked for revisions that are no longer kept: list again and watch from there."""

    def __init__(self, asked: Revision, oldest: Revision) -> None:
        super().__init__(f"changes since revision {asked} are gone, the oldest kept is {oldest}")
        self.asked, self.oldest = asked, oldest


class LeaseExpired(PenstockError):
    """The lease is gone, and every key bound to it."""


class MetadataRefused(PenstockError):
    """The request breaks a rule or limit, or may not be made by us; nothing was changed."""


class Metadata(Protocol):
    """The store; keys are absolute paths as metadata/keys.py makes them."""

    async def get(self, key: str) -> Entry | None: ...

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> Page:
        """Entries whose keys start with `prefix`, behind `after`, in key order."""

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision: ...

    async def delete(self, key: str) -> bool:
        """Whether there was such a key."""

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Outcome:
        """Make all changes if all comparisons hold; durable on return.

        A lease must exist only if they hold. Raises LeaseExpired, MetadataRefused.
        """

    async def grant(self, seconds: int) -> LeaseId:
        """A lease that ends unless it is kept alive."""

    async def keep_alive(self, lease: LeaseId) -> float:
        """Renew; seconds it is good for from when this was *asked*. Raises LeaseExpired."""

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease and remove its keys; no error if it has ended already."""

    def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[Change]]:
        """Every change below `prefix` behind revision `since`, in order, each once.

        Survives a restart of the store. Raises HistoryCompacted.
        """

    async def close(self) -> None: ...
