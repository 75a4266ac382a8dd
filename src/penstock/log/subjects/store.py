"""Spans: the subject index of sealed WAL files, each an immutable SQLite file.

A span replaces the ones it was merged from: after a crash between the two steps those are removed
at the next start. Damage is confined to one span, which is then thrown away and built again.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats import postings
from penstock.formats.paths import TEMPORARY_SUFFIX
from penstock.formats.postings import Block, Entries
from penstock.log.subjects.bits import bits_of, match_subjects
from penstock.log.subjects.file import SPAN_VERSION, Extent, SpanName, connect
from penstock.model.errors import FormatError
from penstock.model.limits import OFFSET_MAX
from penstock.model.subjects import Filter

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
    """A span cannot be read; throw it away and build it again."""

    def __init__(self, span: Span, reason: str) -> None:
        super().__init__(f"{span.path.name} is damaged: {reason}")
        self.span = span


class Span:
    """An open span; its methods block and are called from worker threads, any number at a time.

    They raise SpanDamaged when the file is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        name = SpanName.parse(path.name)
        assert name is not None, path
        self.path, self.name = path, name
        self.users = 0
        """Queries that hold it; counted on the event loop by whoever keeps the list of spans."""
        self.retired = False
        with self._telling_damage(), closing(connect(path)) as connection:
            (about,) = connection.execute("SELECT version, level, entries FROM about")
            version, self.level, self.entries = about
            if version != SPAN_VERSION:
                raise FormatError(f"{path.name} has version {version}, this one is {SPAN_VERSION}")
            rows = connection.execute("SELECT * FROM extents")
            self.extents = {row[0]: Extent(*row[1:]) for row in rows}
        self._connection: sqlite3.Connection | None = None
        self._lock = Lock()

    def greatest(self, partition: int, subject: bytes) -> int | None:
        """The greatest offset of a subject."""
        with self._telling_damage():
            found = self._one(_AT, (partition, subject, OFFSET_MAX))
            low, high = found[1].find(subject) if found else (0, 0)
            if found is None or low == high:
                return None
            return int(found[1].firsts[high - 1] + found[1].lengths[high - 1]) - 1

    def first_from(self, partition: int, subject: bytes, start: int) -> int | None:
        """The smallest offset of a subject from `start` on."""
        extent = self.extents[partition]
        with self._telling_damage():
            found = self._one(_AT, (partition, subject, start))
            number, block = found or self._block(extent.block_first)
            offset = _first_from(block, subject, start)
            if offset is None and number < extent.block_last:
                offset = _first_from(self._block(number + 1)[1], subject, start)
            return offset

    def match(self, partition: int, chosen: Filter) -> BitMap64:
        """All offsets whose subject matches."""
        found = BitMap64()
        with self._telling_damage(), closing(connect(self.path)) as connection:
            blocks = self._blocks(connection, partition, chosen, chosen.prefix)
            # A few blocks at a time: the memory this takes does not grow with the span.
            while some := [block.entries() for block in islice(blocks, _MATCH_BLOCKS)]:
                entries = postings.concatenate(some)
                mask = match_subjects(entries.subjects, chosen)
                found |= bits_of(entries.firsts[mask], entries.lengths[mask])
        found.run_optimize()
        return found

    def page(self, partition: int, chosen: Filter, after: bytes, limit: int) -> Entries:
        """Entries of at least the first `limit` matching subjects behind `after`.

        Only the last subject may miss some of its entries, and then it is not among the first.
        """
        found: list[Entries] = []
        subjects = 0
        with self._telling_damage(), closing(connect(self.path)) as connection:
            low = max(after + b"\0", chosen.prefix)
            for block in self._blocks(connection, partition, chosen, low):
                entries = block.entries()
                later = pc.greater(entries.subjects, pa.scalar(after, pa.binary()))
                mask = later.to_numpy(zero_copy_only=False)
                found.append(entries.select(mask & match_subjects(entries.subjects, chosen)))
                # A subject that goes on in the next block is counted again there.
                subjects += pc.count_distinct(found[-1].subjects).as_py()
                if subjects >= limit + len(found):
                    break
        return postings.concatenate(found)

    def blocks(self, partition: int) -> Iterator[Entries]:
        """All entries of a partition, block by block."""
        extent = self.extents[partition]
        with self._telling_damage(), closing(connect(self.path)) as connection:
            for block in _decoded(connection, extent.block_first, extent.block_last):
                yield block.entries()

    def close(self) -> None:
        """Let go of the file; the next look-up opens it again."""
        _OPEN.forget(self)
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _telling_damage(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, FormatError, ValueError) as error:
            # A file that is there and cannot be opened is not damaged: descriptors may be short.
            if "unable to open" in str(error) and self.path.exists():
                raise
            raise SpanDamaged(self, str(error)) from error

    def _block(self, number: int) -> tuple[int, Block]:
        found = self._one("SELECT id, data FROM blocks WHERE id = ?", (number,))
        if found is None:
            raise FormatError(f"{self.path.name} misses block {number}")
        return found

    def _one(self, sql: str, values: tuple[int | bytes, ...]) -> tuple[int, Block] | None:
        with self._lock:
            if self._connection is None:
                self._connection = connect(self.path)
            row = self._connection.execute(sql, values).fetchone()
        _OPEN.use(self)
        return None if row is None else (row[0], postings.decode(row[1]))

    def _blocks(
        self, connection: sqlite3.Connection, partition: int, chosen: Filter, low: bytes
    ) -> Iterator[Block]:
        """Blocks that may hold matching subjects from `low` on; at least one."""
        extent = self.extents[partition]
        first = _before(connection, partition, low) or extent.block_first
        stop = extent.block_last
        if chosen.prefix:
            # Behind all that starts with the prefix: a literal's next subject, or `a.` -> `a/`.
            prefix = chosen.prefix
            end = prefix + b"\0" if chosen.literal else prefix[:-1] + bytes([prefix[-1] + 1])
            stop = _before(connection, partition, end) or extent.block_first
        return _decoded(connection, first, max(first, stop))


class _OpenSpans:
    """Bounds how many spans are open; the longest unused is closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._order: OrderedDict[Span, None] = OrderedDict()

    def use(self, span: Span) -> None:
        with self._lock:
            self._order[span] = None
            self._order.move_to_end(span)
            too_many = len(self._order) > self._limit
            oldest = next(iter(self._order))
        if too_many:
            oldest.close()

    def forget(self, span: Span) -> None:
        with self._lock:
            self._order.pop(span, None)


_OPEN: Final = _OpenSpans(OPEN_SPANS_MAX)


def open_spans(directory: Path) -> tuple[list[Span], list[str]]:
    """Every intact span by sequence, and why others could not be opened.

    Removes those, and what is unfinished or covered by another.
    """
    for unfinished in directory.glob(f"subjects-*{TEMPORARY_SUFFIX}"):
        unfinished.unlink(missing_ok=True)
    paths = {path: SpanName.parse(path.name) for path in directory.glob("subjects-*.sqlite")}
    named = [(name.first, -name.last, -name.edition, path) for path, name in paths.items() if name]
    spans: list[Span] = []
    damages: list[str] = []
    for first, _, _, path in sorted(named):
        if not spans or first > spans[-1].name.last:
            try:
                spans.append(Span(path))
                continue
            except SpanDamaged as damage:
                damages.append(str(damage))
        path.unlink(missing_ok=True)
    return spans, damages


def _before(connection: sqlite3.Connection, partition: int, subject: bytes) -> int | None:
    """The last block that starts with a lesser subject; it may hold this one too."""
    row = connection.execute(_BEFORE, (partition, subject)).fetchone()
    return None if row is None else int(row[0])


def _decoded(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Block]:
    rows = connection.execute("SELECT data FROM blocks WHERE id BETWEEN ? AND ?", (first, last))
    for (data,) in rows:
        yield postings.decode(data)


def _first_from(block: Block, subject: bytes, start: int) -> int | None:
    low, high = block.find(subject)
    ends = block.firsts[low:high] + block.lengths[low:high]
    index = low + int(np.searchsorted(ends, start, "right"))
    return max(start, int(block.firsts[index])) if index < high else None
