"""A span: the subject index of sealed WAL files, as an immutable SQLite file.

A span covers the WAL files `first` to `last` and is named after them. It is written under a
temporary name, synced and renamed, so it exists as a whole or not at all, needs no journal, and
readers need no locks. A span replaces the ones from which it was merged; after a crash between the
two steps those are removed at the next start. Damage is confined to one span, which is dropped and
built again.

Rows are blocks of entries sorted by (partition, subject, offset), not single subjects: ten million
subjects are twenty thousand rows, written in a few array operations and read in as few.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats import postings
from penstock.formats.paths import TEMPORARY_SUFFIX
from penstock.formats.postings import BLOCK_ENTRIES, Postings, PostingsBlock
from penstock.host.disk import Disk
from penstock.log.subjects.bitmaps import bits_of, match_subjects
from penstock.model.errors import FormatError
from penstock.model.limits import OFFSET_MAX
from penstock.model.subjects import Filter

SPAN_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE about (version INTEGER, level INTEGER, entries INTEGER);
CREATE TABLE extents (partition INTEGER PRIMARY KEY, first INTEGER, next INTEGER,
                      messages INTEGER, block_first INTEGER, block_last INTEGER);
CREATE TABLE blocks (id INTEGER PRIMARY KEY, partition INTEGER, subject BLOB, first INTEGER,
                     data BLOB);
"""
_INDEX: Final = "CREATE UNIQUE INDEX keys ON blocks (partition, subject, first)"

_NAME: Final = re.compile(r"subjects-([0-9]{10})-([0-9]{10})-([0-9]{6})\.sqlite")
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


class SpanExtent(NamedTuple):
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
        self._extents: dict[int, SpanExtent] = {}
        self._connection = sqlite3.connect(self._temporary, isolation_level=None)
        # No journal and no sync: a file that is lost before its rename is built again.
        self._connection.executescript(
            f"PRAGMA page_size = {_PAGE_BYTES}; PRAGMA journal_mode = OFF;"
            f"PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE; {_SCHEMA} BEGIN"
        )

    def add(self, partition: int, entries: Postings) -> None:
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
        self._extents[partition] = SpanExtent(
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


OPEN_SPANS_MAX: Final = 128
"""Spans of all topics that stay open between look-ups."""

_MATCH_BLOCKS: Final = 64
_AT: Final = (
    "SELECT id, data FROM blocks WHERE partition = ? AND (subject, first) <= (?, ?)"
    " ORDER BY subject DESC, first DESC LIMIT 1"
)
_BEFORE: Final = (
    "SELECT id FROM blocks WHERE partition = ? AND subject < ?"
    " ORDER BY subject DESC, first DESC LIMIT 1"
)


class SpanDamaged(FormatError):
    """A span is unreadable; drop it and build it again."""

    code = "index_span_damaged"

    def __init__(self, span: IndexSpan, reason: str) -> None:
        super().__init__(f"{span.path.name} is damaged: {reason}")
        self.span = span


class IndexSpan:
    """An open span; its methods block and may be called from any number of worker threads.

    They raise SpanDamaged if the file is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        name = SpanName.parse(path.name)
        assert name is not None, path
        self.path, self.name = path, name
        self.users = 0
        """How many queries use it; counted on the event loop by the catalog."""
        self.retired = False
        with self._reporting_damage(), closing(connect(path)) as connection:
            (about,) = connection.execute("SELECT version, level, entries FROM about")
            version, self.level, self.entries = about
            if version != SPAN_VERSION:
                raise FormatError(f"{path.name} has version {version}, this one is {SPAN_VERSION}")
            rows = connection.execute("SELECT * FROM extents")
            self.extents = {row[0]: SpanExtent(*row[1:]) for row in rows}
        self._connection: sqlite3.Connection | None = None
        self._lock = Lock()

    def greatest(self, partition: int, subject: bytes) -> int | None:
        """The greatest offset of a subject."""
        with self._reporting_damage():
            found = self._select(_AT, (partition, subject, OFFSET_MAX))
            low, high = found[1].find(subject) if found else (0, 0)
            if found is None or low == high:
                return None
            return int(found[1].firsts[high - 1] + found[1].lengths[high - 1]) - 1

    def first_from(self, partition: int, subject: bytes, start: int) -> int | None:
        """The smallest offset of a subject from `start` on."""
        extent = self.extents[partition]
        with self._reporting_damage():
            found = self._select(_AT, (partition, subject, start))
            number, block = found or self._block(extent.block_first)
            offset = _first_from(block, subject, start)
            if offset is None and number < extent.block_last:
                offset = _first_from(self._block(number + 1)[1], subject, start)
            return offset

    def match(self, partition: int, filter_: Filter) -> BitMap64:
        """All offsets whose subject matches."""
        found = BitMap64()
        with self._reporting_damage(), closing(connect(self.path)) as connection:
            blocks = self._blocks(connection, partition, filter_, filter_.prefix)
            # A few blocks at a time, so that memory does not grow with the span.
            while pages := [block.entries() for block in islice(blocks, _MATCH_BLOCKS)]:
                entries = postings.concatenate(pages)
                mask = match_subjects(entries.subjects, filter_)
                found |= bits_of(entries.firsts[mask], entries.lengths[mask])
        found.run_optimize()
        return found

    def page(self, partition: int, filter_: Filter, after: bytes, limit: int) -> Postings:
        """Entries of at least the first `limit` matching subjects after `after`.

        Only the last subject may lack entries, and then it is not among the first `limit`.
        """
        found: list[Postings] = []
        subjects = 0
        with self._reporting_damage(), closing(connect(self.path)) as connection:
            low = max(after + b"\0", filter_.prefix)
            for block in self._blocks(connection, partition, filter_, low):
                entries = block.entries()
                later = pc.greater(entries.subjects, pa.scalar(after, pa.binary()))
                mask = later.to_numpy(zero_copy_only=False)
                found.append(entries.select(mask & match_subjects(entries.subjects, filter_)))
                # A subject that continues in the next block is counted again there.
                subjects += pc.count_distinct(found[-1].subjects).as_py()
                if subjects >= limit + len(found):
                    break
        return postings.concatenate(found)

    def blocks(self, partition: int) -> Iterator[Postings]:
        """All entries of a partition, block by block."""
        extent = self.extents[partition]
        with self._reporting_damage(), closing(connect(self.path)) as connection:
            for block in _decoded(connection, extent.block_first, extent.block_last):
                yield block.entries()

    def close(self) -> None:
        """Close the file; the next look-up opens it again."""
        _OPEN.forget(self)
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, FormatError, ValueError) as error:
            # A file that exists and cannot be opened is not damaged: descriptors may be short.
            if "unable to open" in str(error) and self.path.exists():
                raise
            raise SpanDamaged(self, str(error)) from error

    def _block(self, number: int) -> tuple[int, PostingsBlock]:
        found = self._select("SELECT id, data FROM blocks WHERE id = ?", (number,))
        if found is None:
            raise FormatError(f"{self.path.name} lacks block {number}")
        return found

    def _select(
        self, sql: str, values: tuple[int | bytes, ...]
    ) -> tuple[int, PostingsBlock] | None:
        with self._lock:
            if self._connection is None:
                self._connection = connect(self.path)
            row = self._connection.execute(sql, values).fetchone()
        _OPEN.use(self)
        return None if row is None else (row[0], postings.decode(row[1]))

    def _blocks(
        self, connection: sqlite3.Connection, partition: int, filter_: Filter, low: bytes
    ) -> Iterator[PostingsBlock]:
        """Blocks that may have matching subjects from `low` on; at least one."""
        extent = self.extents[partition]
        first = _before(connection, partition, low) or extent.block_first
        stop = extent.block_last
        if filter_.prefix:
            # After all subjects with the prefix: the next subject of a literal, or `a.` -> `a/`.
            prefix = filter_.prefix
            end = prefix + b"\0" if filter_.literal else prefix[:-1] + bytes([prefix[-1] + 1])
            stop = _before(connection, partition, end) or extent.block_first
        return _decoded(connection, first, max(first, stop))


class _OpenSpans:
    """Bounds the number of open spans; the least recently used one is closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._order: OrderedDict[IndexSpan, None] = OrderedDict()

    def use(self, span: IndexSpan) -> None:
        with self._lock:
            self._order[span] = None
            self._order.move_to_end(span)
            too_many = len(self._order) > self._limit
            oldest = next(iter(self._order))
        if too_many:
            oldest.close()

    def forget(self, span: IndexSpan) -> None:
        with self._lock:
            self._order.pop(span, None)


_OPEN: Final = _OpenSpans(OPEN_SPANS_MAX)


def open_spans(directory: Path) -> tuple[list[IndexSpan], list[str]]:
    """Every intact span by sequence, and why others could not be opened.

    Removes those others, unfinished spans and spans that are covered by another one.
    """
    for unfinished in directory.glob(f"subjects-*{TEMPORARY_SUFFIX}"):
        unfinished.unlink(missing_ok=True)
    paths = {path: SpanName.parse(path.name) for path in directory.glob("subjects-*.sqlite")}
    named = [(name.first, -name.last, -name.edition, path) for path, name in paths.items() if name]
    spans: list[IndexSpan] = []
    damages: list[str] = []
    for first, _, _, path in sorted(named):
        if path.is_symlink() or not path.is_file():
            damages.append(f"{path.name} is not a plain file")
        elif not spans or first > spans[-1].name.last:
            try:
                spans.append(IndexSpan(path))
                continue
            except SpanDamaged as damage:
                damages.append(str(damage))
        _remove_entry(path)
    return spans, damages


def _remove_entry(path: Path) -> None:
    """Remove a file, or an empty directory in its place."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _before(connection: sqlite3.Connection, partition: int, subject: bytes) -> int | None:
    """The last block that starts with a lesser subject; it may have this one too."""
    row = connection.execute(_BEFORE, (partition, subject)).fetchone()
    return None if row is None else int(row[0])


def _decoded(connection: sqlite3.Connection, first: int, last: int) -> Iterator[PostingsBlock]:
    rows = connection.execute("SELECT data FROM blocks WHERE id BETWEEN ? AND ?", (first, last))
    for (data,) in rows:
        yield postings.decode(data)


def _first_from(block: PostingsBlock, subject: bytes, start: int) -> int | None:
    low, high = block.find(subject)
    ends = block.firsts[low:high] + block.lengths[low:high]
    index = low + int(np.searchsorted(ends, start, "right"))
    return max(start, int(block.firsts[index])) if index < high else None
