"""The file of the embedded store: how it is made, opened and told from other files.

    entries   every key as it is now
    changes   the latest changes, for watches; `value` is null where the key went
    leases    grants; when they end is in memory only, and a restart gives each its full time again
    store     one row: the revision, and the newest revision whose changes are no longer kept

`application_id` tells that the file is ours, `user_version` in which version of these tables. A
commit is durable when it returns: the WAL journal with `synchronous=FULL` is the one setting that
was seen to lose nothing in power cuts.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from penstock.host.disk import Disk
from penstock.model.errors import FormatError, StartRefused, VersionUnknown

FILE_NAME: Final = "metadata.sqlite"
FILE_MODE: Final = 0o600
SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = int.from_bytes(b"penS", "big")

BUSY_MS: Final = 5000
"""How long to wait for a tool that reads or copies the file."""
JOURNAL_BYTES_MAX: Final = 64 << 20
"""The journal is cut back to this after a checkpoint."""

_PRAGMAS: Final = (
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    f"PRAGMA journal_size_limit={JOURNAL_BYTES_MAX}",
    "PRAGMA trusted_schema=OFF",
)

# A new store begins at revision 1, as etcd does: the first change is 2.
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
    """The connection that may write; makes the file if there is none.

    Raises VersionUnknown, or FormatError when the file is not a store of ours.
    """
    path = directory / FILE_NAME
    # The journal and its index take over the mode of the file, so it must be right before them.
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
    """A connection that can only read; a writer must be open."""
    connection = _connect(directory / FILE_NAME, "ro")
    connection.execute(_PRAGMAS[0])
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    # Each connection is used by one thread, which need not be the one that opened it.
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
