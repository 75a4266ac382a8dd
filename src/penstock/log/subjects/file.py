"""The file of a span: its name, its tables, and how one is written.

A span covers the WAL files `first` to `last` and is named after them. It is written aside, synced
and renamed, so it is there whole or not at all, needs no journal, and readers need no locks.

Rows are blocks of entries sorted by (partition, subject, offset), not single subjects: ten million
subjects are twenty thousand rows, written in a few array operations and read in as few.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

from penstock.formats import postings
from penstock.formats.paths import TEMPORARY_SUFFIX
from penstock.formats.postings import BLOCK_ENTRIES, Entries
from penstock.host.disk import Disk

SPAN_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE about (version INTEGER, level INTEGER, entries INTEGER);
CREATE TABLE extents (partition INTEGER PRIMARY KEY, first INTEGER, next INTEGER,
                      messages INTEGER, block_first INTEGER, block_last INTEGER);
CREATE TABLE blocks (id INTEGER PRIMARY KEY, partition INTEGER, subject BLOB, first INTEGER,
                     data BLOB);
"""
_INDEX: Final = "CREATE UNIQUE INDEX keys ON blocks (partition, subject, first)"

_NAME: Final = re.compile(r"subjects-(\d{10})-(\d{10})-(\d{6})\.sqlite")
_PAGE_BYTES: Final = 8192
_CACHE_KIB: Final = 256


class SpanName(NamedTuple):
    """The WAL files a span covers, and how often it was written anew."""

    first: int
    last: int
    edition: int

    def __str__(self) -> str:
        return f"subjects-{self.first:010d}-{self.last:010d}-{self.edition:06d}.sqlite"

    @classmethod
    def parse(cls, name: str) -> SpanName | None:
        """None if this is no span's name."""
        match = _NAME.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None


class Extent(NamedTuple):
    """What a span has of one partition."""

    first: int
    next: int
    messages: int
    block_first: int
    block_last: int


class SpanWriter:
    """A span in the making; entries come by ascending partition, subject and offset."""

    def __init__(self, directory: Path, name: SpanName, level: int) -> None:
        self.path = directory / str(name)
        # The name of the process keeps an orphan's leftovers apart from ours.
        self._temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
        self._temporary.unlink(missing_ok=True)
        self._level, self._entries, self._blocks = level, 0, 0
        self._extents: dict[int, Extent] = {}
        self._connection = sqlite3.connect(self._temporary, isolation_level=None)
        # No journal and no sync: until it is renamed, a file that is lost is made again.
        self._connection.executescript(
            f"PRAGMA page_size = {_PAGE_BYTES}; PRAGMA journal_mode = OFF;"
            f"PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE; {_SCHEMA} BEGIN"
        )

    def add(self, partition: int, entries: Entries) -> None:
        if not len(entries):
            return
        first_block = self._blocks + 1
        rows = []
        for start in range(0, len(entries), BLOCK_ENTRIES):
            part = entries.slice(start, min(start + BLOCK_ENTRIES, len(entries)))
            self._blocks += 1
            key = (part.subjects[0].as_py(), int(part.firsts[0]))
            rows.append((self._blocks, partition, *key, postings.encode(part)))
        self._connection.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?)", rows)
        self._entries += len(entries)
        before = self._extents.get(partition)
        firsts, ends = entries.firsts, entries.firsts + entries.lengths
        self._extents[partition] = Extent(
            min(int(firsts.min()), before.first if before else int(firsts[0])),
            max(int(ends.max()), before.next if before else 0),
            int(entries.lengths.sum()) + (before.messages if before else 0),
            before.block_first if before else first_block,
            self._blocks,
        )

    def finish(self) -> Path:
        """Make the span durable under its name."""
        extents = [(partition, *extent) for partition, extent in self._extents.items()]
        self._connection.executemany("INSERT INTO extents VALUES (?, ?, ?, ?, ?, ?)", extents)
        about = (SPAN_VERSION, self._level, self._entries)
        self._connection.execute("INSERT INTO about VALUES (?, ?, ?)", about)
        self._connection.execute(_INDEX)
        self._connection.execute("COMMIT")
        self._connection.close()
        disk = Disk()
        fd = disk.open_read(self._temporary)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)
        self._temporary.replace(self.path)
        disk.sync_directory(self.path.parent)
        return self.path

    def abandon(self) -> None:
        self._connection.close()
        self._temporary.unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    # A path may hold `%`, which only an escaped address keeps.
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection
