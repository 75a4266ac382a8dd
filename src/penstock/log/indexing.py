"""Bring the subject index up to date with what the log holds already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from penstock.formats import batches, bodies, link_subjects
from penstock.formats.bodies import Link
from penstock.formats.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, Kind
from penstock.formats.scan import Found
from penstock.log.cache import Tail
from penstock.log.collect import Cursor
from penstock.log.local import LocalFiles
from penstock.log.subjects.index import SubjectIndex
from penstock.log.subjects.spans import SealedFile
from penstock.model.batch import OffsetRange
from penstock.model.units import Offset, PartitionId

READ_BYTES: Final = 8 << 20
"""Read at a time when the index takes in the active file."""

MEMORY_BYTES_MAX: Final = 32 << 20
"""A memory topic's index is made anew from the cache when it is larger."""


async def index_files(index: SubjectIndex, local: LocalFiles) -> None:
    """Take in files written before this start: what is new on disk, the last one in memory.

    That one has no successor yet, or is written: a span of it would be made too early.
    """
    *finished, last = local.all()
    await index.catch_up([SealedFile(file.path, file.sequence, file.end) for file in finished])
    if index.covers(last.sequence):
        return
    cursor = Cursor(last.header.first_frame, last.sequence, FILE_HEADER_BYTES)
    while True:
        found = await local.collect(cursor, READ_BYTES, lambda gap: True)
        for batch in found.batches:
            index.note(batch)
        for frame in found.links:
            index_link(index, frame.link)
        if found.cursor == cursor:
            return
        cursor = found.cursor


def index_frames(index: SubjectIndex, data: bytes, frames: Iterable[Found]) -> None:
    """Take in frames of the last file."""
    for position, header in frames:
        if header.kind == Kind.BATCH:
            index.note(batches.decode(header, pa.py_buffer(data), position))
        elif header.kind == Kind.LINK:
            start = position + FRAME_HEADER_BYTES
            index_link(index, bodies.decode(Link, data[start : start + header.body_bytes]))


def index_link(index: SubjectIndex, link: Link) -> None:
    """Take in rows that lie in objects."""
    for extent, subjects in link_subjects.parts(link):
        given = OffsetRange(Offset(extent.first), Offset(extent.next))
        index.note_rows(PartitionId(extent.partition), given, subjects)


def bound_memory(index: SubjectIndex, tail: Tail) -> None:
    """Forget the subjects of messages that have left the cache, when the index is large."""
    if index.nbytes > MEMORY_BYTES_MAX:
        index.forget()
        for batch in tail.batches():
            index.note(batch)
