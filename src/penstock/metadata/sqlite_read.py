"""Reads of the embedded store, each from one snapshot of it; they block, and change nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock.metadata.interface import Change, Entry, HistoryCompacted, Page, Revision
from penstock.metadata.requests import prefix_end, range_start

PAGE_BYTES_MAX: Final = 32 << 20
"""A page ends with the entry that reaches this."""

_ENTRY: Final = "SELECT key, value, create_revision, mod_revision, version, lease FROM entries "
_BEHIND_ALL: Final = b"\xff"
"""Keys are UTF-8, where this byte never occurs."""
_CHANGES: Final = " FROM changes WHERE revision > ? AND key >= ? AND key < ? "
_IN_ORDER: Final = "ORDER BY revision, sequence "


class News(NamedTuple):
    """Changes in order, revisions whole, and the revision up to which these are all."""

    changes: list[Change]
    complete_to: Revision


def read_entry(connection: sqlite3.Connection, key: bytes) -> Entry | None:
    row = connection.execute(_ENTRY + "WHERE key = ?", (key,)).fetchone()
    return None if row is None else _entry(row)


def read_page(connection: sqlite3.Connection, prefix: bytes, after: bytes, limit: int) -> Page:
    """Entries that start with `prefix`, behind `after`, in key order; fewer if they are large."""
    where = _ENTRY + "WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
    bounds = range_start(prefix, after), prefix_end(prefix) or _BEHIND_ALL
    with _snapshot(connection):
        revision, _ = _revisions(connection)
        entries: list[Entry] = []
        size_bytes = 0
        for row in connection.execute(where, (*bounds, limit + 1)):
            if len(entries) == limit or size_bytes >= PAGE_BYTES_MAX:
                return Page(entries, revision, True)
            entries.append(_entry(row))
            size_bytes += len(row[0]) + len(row[1])
    return Page(entries, revision, False)


def read_changes(
    connection: sqlite3.Connection, prefix: bytes, since: Revision, limit: int
) -> News:
    """Changes below `prefix` behind `since`, about `limit` of them; raises HistoryCompacted."""
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
    changes = [Change(key.decode(), value, Revision(at)) for key, value, at in rows]
    return News(changes, complete_to)


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


def _entry(row: tuple[bytes, bytes, int, int, int, int | None]) -> Entry:
    return Entry._make((row[0].decode(), *row[1:]))
