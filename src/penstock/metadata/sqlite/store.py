"""The operations of the embedded store, on one connection in one thread, without the event loop.

The caller opens a group with `begin`, carries out any number of requests, and makes them durable
with `commit`. A request that raises a PenstockError has changed nothing, and the others of its
group remain valid. After any other failure the caller rolls back the whole group with `abandon`.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    LeaseExpired,
    LeaseId,
    Put,
    Revision,
)
from penstock.metadata.requests import encode_key, prefix_end
from penstock.metadata.sqlite.tables import open_writer
from penstock.model.units import Nanoseconds

_COLUMNS: Final = {
    CompareTarget.VALUE: 0,
    CompareTarget.VERSION: 1,
    CompareTarget.CREATE_REVISION: 2,
    CompareTarget.MOD_REVISION: 3,
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
    """How many of the latest changes the store retains for watches."""

    changes_max: int = 10_000
    bytes_max: int = 64 << 20


class Applied(NamedTuple):
    """The result of a transaction, and how many keys it deleted."""

    succeeded: bool
    revision: Revision
    removed: int


class Committed(NamedTuple):
    """The revision after a group, and the keys that the group changed."""

    revision: Revision
    keys: list[bytes]


class SqliteStore:
    """The tables of the store, and its leases."""

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
    def open(cls, directory: Path, disk: Disk, clock: Clock, limits: HistoryLimits) -> SqliteStore:
        """Open the store in `directory`; raises VersionUnknown, FormatError."""
        return cls(open_writer(directory, disk), clock, limits)

    @property
    def revision(self) -> Revision:
        """The latest revision, including an uncommitted group."""
        return self._revision

    def earliest_end_ns(self) -> int | None:
        """When the next lease may end; None without leases."""
        return self._leases.earliest_ns()

    def begin(self) -> None:
        """Open a group; ended leases are revoked first, each as a change of its own."""
        if self._stale:
            self._load()
        self._connection.execute("BEGIN IMMEDIATE")
        for lease in self._leases.due(self._clock.monotonic_ns()):
            self.revoke(lease)

    def commit(self) -> Committed:
        """Commit the group; it is durable on return."""
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
        """Roll back the group; if its commit failed, a crash now may still make it durable."""
        self._keys = []
        # The state in memory may be ahead of the tables; if the rollback fails, too, the next group
        # reloads it.
        self._stale = True
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._load()

    def transact(self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]) -> Applied:
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
        """Renew a lease for the returned seconds from now; raises LeaseExpired."""
        return self._leases.renew(lease, self._clock.monotonic_ns())

    def revoke(self, lease: LeaseId) -> None:
        """End the lease and delete its keys as one change; no error if it does not exist."""
        self._leases.drop(lease)
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
        self._remove(_DELETE_LEASED, (lease,), Revision(self._revision + 1))

    def close(self) -> None:
        self._connection.close()

    def _holds(self, compare: Compare) -> bool:
        row = self._connection.execute(_FIND, (encode_key(compare.key),)).fetchone()
        if row is None:
            # An absent key has no value, not even an empty one.
            return compare.target is not CompareTarget.VALUE and compare.equals == 0
        return bool(row[_COLUMNS[compare.target]] == compare.equals)

    def _require(self, lease: LeaseId) -> None:
        row = self._connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone()
        if row is None:
            raise LeaseExpired(f"lease {lease} has ended")

    def _make(self, change: Put | DeleteKeys, revision: Revision) -> int:
        """Carry out one change; returns the number of deleted keys."""
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
            # The changes of a revision are dropped together.
            or self._history[0][0] == forgotten
        ):
            forgotten, count, size = self._history.popleft()
            self._history_changes -= count
            self._history_bytes -= size
        if forgotten != self._forgotten:
            self._connection.execute("DELETE FROM changes WHERE revision <= ?", (forgotten,))
            self._forgotten = forgotten

    def _load(self) -> None:
        """Load the state in memory from the tables."""
        row = self._connection.execute("SELECT revision, forgotten FROM store").fetchone()
        self._revision, self._forgotten = row
        self._committed = self._revision
        self._history = deque(self._connection.execute(_HISTORY))
        self._history_changes = sum(count for _, count, _ in self._history)
        self._history_bytes = sum(size for _, _, size in self._history)
        stored = self._connection.execute("SELECT id, seconds FROM leases").fetchall()
        self._leases.restore(stored, self._clock.monotonic_ns())
        self._stale = False


_SECOND_NS = 1_000_000_000


class Leases:
    """The leases that have not been dropped, and when they end, by a clock that is passed in."""

    def __init__(self) -> None:
        self._seconds: dict[LeaseId, int] = {}
        self._ends_ns: dict[LeaseId, int] = {}
        self._earliest_ns: int | None = None

    def grant(self, lease: LeaseId, seconds: int, now_ns: Nanoseconds) -> None:
        ends_ns = now_ns + seconds * _SECOND_NS
        self._seconds[lease], self._ends_ns[lease] = seconds, ends_ns
        if self._earliest_ns is None or ends_ns < self._earliest_ns:
            self._earliest_ns = ends_ns

    def renew(self, lease: LeaseId, now_ns: Nanoseconds) -> float:
        """Renew a lease for the returned seconds from now; raises LeaseExpired after its end."""
        seconds = self._seconds.get(lease)
        if seconds is None or self._ends_ns[lease] <= now_ns:
            raise LeaseExpired(f"lease {lease} has ended")
        self._ends_ns[lease] = now_ns + seconds * _SECOND_NS
        return float(seconds)

    def drop(self, lease: LeaseId) -> None:
        self._seconds.pop(lease, None)
        self._ends_ns.pop(lease, None)

    def due(self, now_ns: Nanoseconds) -> list[LeaseId]:
        """The leases that have ended and are not dropped yet."""
        if self._earliest_ns is None or now_ns < self._earliest_ns:
            return []
        self._earliest_ns = min(
            (ends for ends in self._ends_ns.values() if ends > now_ns), default=None
        )
        return [lease for lease, ends in self._ends_ns.items() if ends <= now_ns]

    def earliest_ns(self) -> int | None:
        """A time before which no lease ends; None without leases."""
        return self._earliest_ns

    def restore(self, stored: Iterable[tuple[LeaseId, int]], now_ns: Nanoseconds) -> None:
        """Replace the leases by the stored ones; unknown ones get their full duration."""
        known, self._seconds, self._earliest_ns = self._ends_ns, {}, None
        self._ends_ns = {}
        for lease, seconds in stored:
            self.grant(lease, seconds, now_ns)
            if lease in known:
                self._ends_ns[lease] = known[lease]
                self._earliest_ns = min(self._earliest_ns or known[lease], known[lease])
