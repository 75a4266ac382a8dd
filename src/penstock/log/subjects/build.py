"""Build the span of a sealed WAL file, or of what others know, in the child process.

It needs nothing else, so a build that is lost is simply done again.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.formats import batches, postings
from penstock.formats.extents import extents
from penstock.formats.frames import Codec, Kind
from penstock.formats.postings import Entries, Int64s
from penstock.formats.scan import Found
from penstock.host.disk import Disk
from penstock.log.scans import scan_file
from penstock.log.subjects.file import SpanName, SpanWriter
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.rebuild import Recalled
from penstock.model.columns import Columns
from penstock.model.errors import FormatError, VersionUnknown


def apply(
    directory: Path, name: SpanName, wal: Path, end: int | None, topic_subject: bytes
) -> Path:
    """Write the span of one sealed WAL file and return its path; damaged frames are left out."""
    return _write(directory, name, _read(wal, end, topic_subject))


def apply_pieces(directory: Path, name: SpanName, pieces: dict[int, list[Piece]]) -> Path:
    """Write the span of a WAL file from what is known of it, and return its path.

    The messages of every piece share a subject.
    """
    found: dict[int, Entries] = {}
    for partition, parts in pieces.items():
        gatherer = _Gatherer()
        for first, messages, subject in parts:
            assert isinstance(subject, bytes)
            gatherer.add_range(first, messages, subject)
        found[partition] = gatherer.entries()
    return _write(directory, name, found)


def apply_recalled(directory: Path, name: SpanName, recalled: dict[int, list[Recalled]]) -> Path:
    """Write the span of rows that were read from objects and return its path."""
    found: dict[int, Entries] = {}
    for partition, parts in recalled.items():
        gatherer = _Gatherer()
        for part in parts:
            gatherer.add_rows(part.offsets, part.subjects)
        found[partition] = gatherer.entries()
    return _write(directory, name, found)


def _write(directory: Path, name: SpanName, found: dict[int, Entries]) -> Path:
    writer = SpanWriter(directory, name, level=0)
    try:
        for partition, entries in sorted(found.items()):
            writer.add(partition, entries)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Gatherer:
    """Subjects of one partition, frame by frame in file order."""

    def __init__(self) -> None:
        self._columns: list[pa.BinaryArray] = []
        self._offsets: list[Int64s] = []
        self._names: list[bytes] = []
        self._firsts: list[int] = []
        self._lengths: list[int] = []
        self._next = -1

    def add_column(self, first: int, subjects: pa.BinaryArray) -> None:
        self.add_rows(np.arange(first, first + len(subjects)), subjects)

    def add_rows(self, offsets: Int64s, subjects: pa.BinaryArray | bytes) -> None:
        if isinstance(subjects, bytes):
            subjects = pa.repeat(pa.scalar(subjects, pa.binary()), len(offsets))
        self._columns.append(subjects)
        self._offsets.append(offsets)

    def add_range(self, first: int, count: int, subject: bytes) -> None:
        if self._names and self._names[-1] == subject and self._next == first:
            self._lengths[-1] += count
        else:
            self._names.append(subject)
            self._firsts.append(first)
            self._lengths.append(count)
        self._next = first + count

    def entries(self) -> Entries:
        singles = sum(map(len, self._columns))
        return postings.arrange(
            Entries(
                pa.concat_arrays([*self._columns, pa.array(self._names, pa.binary())]),
                np.concatenate([*self._offsets, np.array(self._firsts, np.int64)]),
                np.concatenate([np.ones(singles, np.int64), np.array(self._lengths, np.int64)]),
            )
        )


def _read(wal: Path, end: int | None, topic_subject: bytes) -> dict[int, Entries]:
    """Entries of every partition of a WAL file's first `end` bytes."""
    try:
        scanned = scan_file(Disk(), wal, end, 0)
    except VersionUnknown:
        raise
    except FormatError:
        # No frame can be told, so no message of this file can be read either.
        return {}
    gatherers: defaultdict[int, _Gatherer] = defaultdict(_Gatherer)
    data = pa.py_buffer(scanned.data)
    for found in scanned.found:
        subject = _subject(found, data, topic_subject)
        if isinstance(subject, pa.BinaryArray):
            gatherers[found.header.partition].add_column(found.header.first_offset, subject)
        elif subject is not None:
            for partition, first, stop in extents(found.header, scanned.body(found)):
                gatherers[partition].add_range(first, stop - first, subject)
    return {partition: gatherer.entries() for partition, gatherer in gatherers.items()}


def _subject(found: Found, data: pa.Buffer, topic_subject: bytes) -> bytes | pa.BinaryArray | None:
    """The subjects of a batch or link, None for anything else; rows carry the topic's subject."""
    if found.header.kind not in (Kind.BATCH, Kind.LINK):
        return None
    if found.header.codec != Codec.PACKED:
        return topic_subject
    try:
        content = batches.decode(found.header, data, found.position).content
    except FormatError:
        return None
    assert isinstance(content, Columns)
    return content.subject
