"""Builds the span of a sealed WAL file, or of known subjects, in the child process.

A build depends on its arguments only, so one that is lost is repeated.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.formats import batches, bodies, link_subjects, postings
from penstock.formats.bodies import LinkBody
from penstock.formats.frames import FRAME_HEADER_BYTES, Codec, Kind
from penstock.formats.postings import Int64s, Postings
from penstock.formats.scan import IntactFrame
from penstock.host.disk import Disk
from penstock.log.files.scans import scan_file
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.rebuild import Recalled
from penstock.log.subjects.span import SpanName, SpanWriter
from penstock.model.columns import Columns
from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.units import PartitionRange


def apply(
    directory: Path, name: SpanName, wal: Path, end: int | None, topic_subject: bytes
) -> Path:
    """Write the span of one sealed WAL file and return its path; damaged frames are left out."""
    return _write(directory, name, _read(wal, end, topic_subject))


def apply_pieces(directory: Path, name: SpanName, pieces: dict[int, list[Piece]]) -> Path:
    """Write the span of a WAL file from pieces with one subject each, and return its path."""
    found: dict[int, Postings] = {}
    for partition, parts in pieces.items():
        gatherer = _Gatherer()
        for first, messages, subject in parts:
            assert isinstance(subject, bytes)
            gatherer.add_range(first, messages, subject)
        found[partition] = gatherer.entries()
    return _write(directory, name, found)


def apply_recalled(directory: Path, name: SpanName, recalled: dict[int, list[Recalled]]) -> Path:
    """Write the span of rows that were read from objects and return its path."""
    found: dict[int, Postings] = {}
    for partition, parts in recalled.items():
        gatherer = _Gatherer()
        for part in parts:
            gatherer.add_rows(part.offsets, part.subjects)
        found[partition] = gatherer.entries()
    return _write(directory, name, found)


def _write(directory: Path, name: SpanName, found: dict[int, Postings]) -> Path:
    writer = SpanWriter(directory, name, level=0)
    try:
        for partition, entries in sorted(found.items()):
            writer.add(partition, entries)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Gatherer:
    """Gathers the subjects of one partition, frame by frame in file order."""

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

    def entries(self) -> Postings:
        singles = sum(map(len, self._columns))
        return postings.arrange(
            Postings(
                pa.concat_arrays([*self._columns, pa.array(self._names, pa.binary())]),
                np.concatenate([*self._offsets, np.array(self._firsts, np.int64)]),
                np.concatenate([np.ones(singles, np.int64), np.array(self._lengths, np.int64)]),
            )
        )


def _read(wal: Path, end: int | None, topic_subject: bytes) -> dict[int, Postings]:
    """Entries of every partition of a WAL file's first `end` bytes."""
    try:
        scanned = scan_file(Disk(), wal, end, 0)
    except VersionUnknown:
        raise
    except FormatError:
        # No frame can be recognised, so no message of this file can be read either.
        return {}
    gatherers: defaultdict[int, _Gatherer] = defaultdict(_Gatherer)
    data = pa.py_buffer(scanned.data)
    for found in scanned.found:
        for (partition, first, stop), subject in _subjects(found, data, topic_subject):
            if isinstance(subject, bytes):
                gatherers[partition].add_range(first, stop - first, subject)
            else:
                gatherers[partition].add_column(first, subject)
    return {partition: gatherer.entries() for partition, gatherer in gatherers.items()}


def _subjects(
    found: IntactFrame, data: pa.Buffer, topic_subject: bytes
) -> list[tuple[PartitionRange, bytes | pa.BinaryArray]]:
    """The offsets of a batch or link and their subjects; rows have the topic's subject."""
    header = found.header
    try:
        if header.kind == Kind.LINK:
            start = found.position + FRAME_HEADER_BYTES
            link = bodies.decode(LinkBody, memoryview(data)[start : start + header.body_bytes])
            return [
                (extent, topic_subject if own is None else own)
                for extent, own in link_subjects.parts(link)
            ]
        if header.kind != Kind.BATCH:
            return []
        extent = PartitionRange(header.partition, header.first_offset, header.next_offset)
        if header.codec != Codec.PACKED:
            return [(extent, topic_subject)]
        content = batches.decode(header, data, found.position).content
    except FormatError:
        return []
    assert isinstance(content, Columns)
    return [(extent, content.subject)]
