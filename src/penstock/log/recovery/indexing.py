"""Brings the subject index up to date with what the WAL files hold already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from penstock.formats import batches, bodies
from penstock.formats.bodies import LinkBody
from penstock.formats.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, Kind
from penstock.formats.scan import IntactFrame
from penstock.log.reading.collect import Cursor
from penstock.log.reading.local_files import LocalFiles
from penstock.log.subjects.index import SubjectIndex
from penstock.log.subjects.span_catalog import SealedFile

READ_BYTES: Final = 8 << 20
"""Bytes of the active file that are read and indexed together."""


async def index_files(index: SubjectIndex, local: LocalFiles) -> None:
    """Index the files that were written before this start.

    New sealed files get a span on disk. The last file is indexed in memory: it is still written, or
    has no successor yet, so a span of it would be incomplete.
    """
    *finished, last = local.all()
    await index.catch_up([SealedFile(file.path, file.sequence, file.end) for file in finished])
    if index.covers(last.sequence):
        return
    cursor = Cursor(last.header.first_frame, last.sequence, FILE_HEADER_BYTES)
    while True:
        collected = await local.collect(cursor, READ_BYTES, lambda gap: True)
        for batch in collected.batches:
            index.note(batch)
        for frame in collected.links:
            index.note_link(frame.link)
        if collected.cursor == cursor:
            return
        cursor = collected.cursor


def index_frames(index: SubjectIndex, data: bytes, frames: Iterable[IntactFrame]) -> None:
    """Index frames of the last file, whose bytes are `data`."""
    for position, header in frames:
        if header.kind == Kind.BATCH:
            index.note(batches.decode(header, pa.py_buffer(data), position))
        elif header.kind == Kind.LINK:
            start = position + FRAME_HEADER_BYTES
            index.note_link(bodies.decode(LinkBody, data[start : start + header.body_bytes]))
