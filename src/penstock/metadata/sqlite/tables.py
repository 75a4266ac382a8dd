"""The file of the embedded store: its tables, how it is opened, and the queries that read it.

    entries   all keys and their values
    changes   the latest changes, for watches; `value` is null where the key was deleted
    leases    granted leases; their ends are in memory only, and a restart renews all of them
    store     one row: the revision, and the newest revision whose changes were dropped

`application_id` identifies the file, and `user_version` is the version of these tables. A commit is
durable when it returns: the WAL journal with `synchronous=FULL` is the one setting that lost
nothing in tests with power cuts. Reads block; each reads one snapshot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from penstock.host.disk import Disk
from penstock.metadata.interface import (
    EntryPage,
    HistoryCompacted,
    KeyChange,
    MetadataEntry,
    Revision,
)
from penstock.metadata.requests import prefix_end, range_start
from penstock.model.errors import FormatError, StartRefused, VersionUnknown

FILE_NAME: Final = "metadata.sqlite"
FILE_MODE: Final = 0o600
SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = int.from_bytes(b"penS", "big")

BUSY_MS: Final = 5000
"""How long a statement waits for a tool that reads or copies the file."""
JOURNAL_BYTES_MAX: Final = 64 << 20
"""The journal is truncated to this size after a checkpoint."""

_PRAGMAS: Final = (
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    f"PRAGMA journal_size_limit={JOURNAL_BYTES_MAX}",
    "PRAGMA trusted_schema=OFF",
)

# A new store begins at revision 1, like etcd: the first change has revision 2.
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries(
    key BLOB PRIMARY KEY,
    value BLOB NOT NULL,
    create_revision INTEGER NOT NULL,
    mod_revision INTEGER NOT NULL,
    version INTEGER NOT NULL,
    lease INTEGER
) WITHOUT ROWID;
CREATE INDEX entries_lease ON entries(lease) WHERE lease IS NOT NULL;
CREATE TABLE changes(
    sequence INTEGER PRIMARY KEY,
    revision INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB
);
CREATE INDEX changes_revision ON changes(revision);
CREATE TABLE leases(id INTEGER PRIMARY KEY AUTOINCREMENT, seconds INTEGER NOT NULL);
CREATE TABLE store(revision INTEGER NOT NULL, forgotten INTEGER NOT NULL);
INSERT INTO store VALUES(1, 0);
PRAGMA application_id={APPLICATION_ID};
PRAGMA user_version={SCHEMA_VERSION};
COMMIT;
"""


def open_writer(directory: Path, disk: Disk) -> sqlite3.Connection:
    """Open the connection that writes; creates the file if there is none.

    Raises VersionUnknown, or FormatError if the file is not a metadata store.
    """
    path = directory / FILE_NAME
    # The journal and its index inherit the mode of the file, so it is set before they exist.
    path.touch(FILE_MODE)
    path.chmod(FILE_MODE)
    disk.sync_directory(directory)
    connection = _connect(path, "rw")
    try:
        _check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(directory: Path) -> sqlite3.Connection:
    """Open a connection that can only read; the writing connection must be open."""
    connection = _connect(directory / FILE_NAME, "ro")
    connection.execute(_PRAGMAS[0])
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    # One thread uses each connection, not necessarily the one that opened it.
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    try:
        identity = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        empty = connection.execute("SELECT count(*) = 0 FROM sqlite_schema").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise StartRefused(
            f"the metadata store {path} cannot be opened: {error}; is the disk full?"
        ) from error
    except sqlite3.DatabaseError as error:
        raise FormatError(f"{path} is not a metadata store: {error}") from error
    if not empty and identity != APPLICATION_ID:
        raise FormatError(f"{path} is not a metadata store but some other database")
    if version > SCHEMA_VERSION or (version < 1 and not empty):
        raise VersionUnknown(f"metadata store {path}", version, SCHEMA_VERSION)
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    if empty:
        connection.executescript(_SCHEMA)


PAGE_BYTES_MAX: Final = 32 << 20
"""A page ends with the entry that reaches this size."""

_ENTRY: Final = "SELECT key, value, create_revision, mod_revision, version, lease FROM entries "
_BEHIND_ALL: Final = b"\xff"
"""Keys are UTF-8, in which this byte does not occur."""
_CHANGES: Final = " FROM changes WHERE revision > ? AND key >= ? AND key < ? "
_IN_ORDER: Final = "ORDER BY revision, sequence "


class ChangeRead(NamedTuple):
    """Changes in order, with complete revisions, and the revision up to which they are complete."""

    changes: list[KeyChange]
    complete_to: Revision


def read_entry(connection: sqlite3.Connection, key: bytes) -> MetadataEntry | None:
    row = connection.execute(_ENTRY + "WHERE key = ?", (key,)).fetchone()
    return None if row is None else _entry(row)


def read_entries(
    connection: sqlite3.Connection, keys: Sequence[bytes]
) -> list[MetadataEntry | None]:
    return [read_entry(connection, key) for key in keys]


def read_page(connection: sqlite3.Connection, prefix: bytes, after: bytes, limit: int) -> EntryPage:
    """Entries that start with `prefix` and follow `after`, in key order; fewer if large."""
    where = _ENTRY + "WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
    bounds = range_start(prefix, after), prefix_end(prefix) or _BEHIND_ALL
    with _snapshot(connection):
        revision, _ = _revisions(connection)
        entries: list[MetadataEntry] = []
        size_bytes = 0
        for row in connection.execute(where, (*bounds, limit + 1)):
            if len(entries) == limit or size_bytes >= PAGE_BYTES_MAX:
                return EntryPage(entries, revision, True)
            entries.append(_entry(row))
            size_bytes += len(row[0]) + len(row[1])
    return EntryPage(entries, revision, False)


def read_changes(
    connection: sqlite3.Connection, prefix: bytes, since: Revision, limit: int
) -> ChangeRead:
    """About `limit` changes below `prefix` after `since`; raises HistoryCompacted."""
    bounds = since, prefix, prefix_end(prefix) or _BEHIND_ALL
    with _snapshot(connection):
        revision, forgotten = _revisions(connection)
        if since < forgotten:
            raise HistoryCompacted(since, Revision(forgotten + 1))
        full = connection.execute(
            "SELECT revision" + _CHANGES + _IN_ORDER + "LIMIT 1 OFFSET ?", (*bounds, limit - 1)
        ).fetchone()
        complete_to = revision if full is None else Revision(full[0])
        rows = connection.execute(
            "SELECT key, value, revision" + _CHANGES + "AND revision <= ? " + _IN_ORDER,
            (*bounds, complete_to),
        ).fetchall()
    changes = [KeyChange(key.decode(), value, Revision(at)) for key, value, at in rows]
    return ChangeRead(changes, complete_to)


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _revisions(connection: sqlite3.Connection) -> tuple[Revision, Revision]:
    row: tuple[Revision, Revision] = connection.execute(
        "SELECT revision, forgotten FROM store"
    ).fetchone()
    return row


def _entry(row: tuple[bytes, bytes, int, int, int, int | None]) -> MetadataEntry:
    return MetadataEntry._make((row[0].decode(), *row[1:]))
