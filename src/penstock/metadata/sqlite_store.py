"""What the embedded store does, on one connection in one thread: no waiting, no event loop.

The caller opens a group with `begin`, carries out any number of requests and makes them durable
with `commit`. A request that raises a PenstockError has changed nothing, so the others of its group
stand. After any other failure the whole group is given up with `abandon`.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.metadata.interface import (
    Compare,
    Delete,
    LeaseExpired,
    LeaseId,
    Put,
    Revision,
    Target,
)
from penstock.metadata.requests import encode_key, prefix_end
from penstock.metadata.sqlite_file import open_writer
from penstock.metadata.sqlite_leases import Leases

_COLUMNS: Final = {
    Target.VALUE: 0,
    Target.VERSION: 1,
    Target.CREATE_REVISION: 2,
    Target.MOD_REVISION: 3,
}
_FIND: Final = "SELECT value, version, create_revision, mod_revision FROM entries WHERE key = ?"
_PUT: Final = """
INSERT INTO entries(key, value, create_revision, mod_revision, version, lease)
VALUES(:key, :value, :revision, :revision, 1, :lease)
ON CONFLICT(key) DO UPDATE SET
    value = :value, mod_revision = :revision, version = version + 1, lease = :lease
"""
_DELETE: Final = "DELETE FROM entries WHERE key = ? RETURNING key"
_DELETE_RANGE: Final = "DELETE FROM entries WHERE key >= ? AND key < ? RETURNING key"
_DELETE_LEASED: Final = "DELETE FROM entries WHERE lease = ? RETURNING key"
_REMEMBER: Final = "INSERT INTO changes(revision, key, value) VALUES(?, ?, ?)"
_HISTORY: Final = """
SELECT revision, count(*), sum(length(key) + coalesce(length(value), 0)) FROM changes
GROUP BY revision ORDER BY revision
"""


class HistoryLimits(NamedTuple):
    """How many of the latest changes are kept for watches."""

    changes_max: int = 10_000
    bytes_max: int = 64 << 20


class Applied(NamedTuple):
    """What became of a transaction, and how many keys it removed."""

    succeeded: bool
    revision: Revision
    removed: int


class Committed(NamedTuple):
    """What a group changed: the store's revision behind it, and the keys."""

    revision: Revision
    keys: list[bytes]


class Store:
    """The tables and the leases."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, limits: HistoryLimits) -> None:
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._leases = Leases()
        self._revision = self._committed = Revision(0)
        self._forgotten = 0
        self._history: deque[tuple[int, int, int]] = deque()
        self._history_changes = self._history_bytes = 0
        self._keys: list[bytes] = []
        self._stale = True
        self._load()

    @classmethod
    def open(cls, directory: Path, disk: Disk, clock: Clock, limits: HistoryLimits) -> Store:
        """Raises VersionUnknown, FormatError."""
        return cls(open_writer(directory, disk), clock, limits)

    @property
    def revision(self) -> Revision:
        """The latest revision, of a group not yet committed too."""
        return self._revision

    def earliest_end_ns(self) -> int | None:
        """When the next lease may end, None when there is none."""
        return self._leases.earliest_ns()

    def begin(self) -> None:
        """Open a group; it starts with the leases whose time is over, each a change of its own."""
        if self._stale:
            self._load()
        self._connection.execute("BEGIN IMMEDIATE")
        for lease in self._leases.due(self._clock.monotonic_ns()):
            self.revoke(lease)

    def commit(self) -> Committed:
        """Durable on return."""
        keys, self._keys = self._keys, []
        if self._revision != self._committed:
            self._forget_old_changes()
            self._connection.execute(
                "UPDATE store SET revision = ?, forgotten = ?", (self._revision, self._forgotten)
            )
        self._connection.execute("COMMIT")
        self._committed = self._revision
        return Committed(self._revision, keys)

    def abandon(self) -> None:
        """Give up the group; if it was the commit that failed, a crash now may yet carry it out."""
        self._keys = []
        # What is remembered beside the tables may be ahead of them; if even this fails, the next
        # group begins with it.
        self._stale = True
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._load()

    def transact(self, compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> Applied:
        """Make all changes if all comparisons hold; raises LeaseExpired."""
        if not all(map(self._holds, compares)):
            return Applied(False, self._revision, 0)
        for change in changes:
            if isinstance(change, Put) and change.lease is not None:
                self._require(change.lease)
        revision = Revision(self._revision + 1)
        removed = sum(self._make(change, revision) for change in changes)
        return Applied(True, self._revision, removed)

    def grant(self, seconds: int) -> LeaseId:
        cursor = self._connection.execute("INSERT INTO leases(seconds) VALUES(?)", (seconds,))
        assert cursor.lastrowid is not None
        lease = LeaseId(cursor.lastrowid)
        self._leases.grant(lease, seconds, self._clock.monotonic_ns())
        return lease

    def keep_alive(self, lease: LeaseId) -> float:
        """Seconds it is good for from now; raises LeaseExpired."""
        return self._leases.renew(lease, self._clock.monotonic_ns())

    def revoke(self, lease: LeaseId) -> None:
        """End the lease, remove its keys as one change; no error if there is no such lease."""
        self._leases.drop(lease)
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
        self._remove(_DELETE_LEASED, (lease,), Revision(self._revision + 1))

    def close(self) -> None:
        self._connection.close()

    def _holds(self, compare: Compare) -> bool:
        row = self._connection.execute(_FIND, (encode_key(compare.key),)).fetchone()
        if row is None:
            # A key that is not there has no value, not even an empty one.
            return compare.target is not Target.VALUE and compare.equals == 0
        return bool(row[_COLUMNS[compare.target]] == compare.equals)

    def _require(self, lease: LeaseId) -> None:
        found = self._connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone()
        if found is None:
            raise LeaseExpired(f"lease {lease} has ended")

    def _make(self, change: Put | Delete, revision: Revision) -> int:
        """Carry out one change; the number of keys removed."""
        key = encode_key(change.key)
        if isinstance(change, Put):
            row = {
                "key": key,
                "value": change.value,
                "revision": revision,
                "lease": change.lease,
            }
            self._connection.execute(_PUT, row)
            self._note(revision, [key], change.value)
            return 0
        if change.prefix:
            end = prefix_end(key)
            assert end is not None
            return self._remove(_DELETE_RANGE, (key, end), revision)
        return self._remove(_DELETE, (key,), revision)

    def _remove(self, statement: str, arguments: tuple[object, ...], revision: Revision) -> int:
        rows = self._connection.execute(statement, arguments).fetchall()
        if rows:
            self._note(revision, sorted(key for (key,) in rows), None)
        return len(rows)

    def _note(self, revision: Revision, keys: list[bytes], value: bytes | None) -> None:
        self._revision = revision
        self._connection.executemany(_REMEMBER, [(revision, key, value) for key in keys])
        size = sum(map(len, keys)) + len(value or b"")
        self._history.append((revision, len(keys), size))
        self._history_changes += len(keys)
        self._history_bytes += size
        self._keys += keys

    def _forget_old_changes(self) -> None:
        forgotten = self._forgotten
        while self._history and (
            self._history_changes > self._limits.changes_max
            or self._history_bytes > self._limits.bytes_max
            # A revision is kept whole or not at all.
            or self._history[0][0] == forgotten
        ):
            forgotten, count, size = self._history.popleft()
            self._history_changes -= count
            self._history_bytes -= size
        if forgotten != self._forgotten:
            self._connection.execute("DELETE FROM changes WHERE revision <= ?", (forgotten,))
            self._forgotten = forgotten

    def _load(self) -> None:
        """Remember what the tables say."""
        row = self._connection.execute("SELECT revision, forgotten FROM store").fetchone()
        self._revision, self._forgotten = row
        self._committed = self._revision
        self._history = deque(self._connection.execute(_HISTORY))
        self._history_changes = sum(count for _, count, _ in self._history)
        self._history_bytes = sum(size for _, _, size in self._history)
        stored = self._connection.execute("SELECT id, seconds FROM leases").fetchall()
        self._leases.restore(stored, self._clock.monotonic_ns())
        self._stale = False
