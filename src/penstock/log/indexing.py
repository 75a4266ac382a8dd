"""Bring the subject index up to date with what the log holds already."""

from __future__ import annotations

from typing import Final

from penstock.formats.extents import Extent, link_extents
from penstock.formats.frames import FILE_HEADER_BYTES
from penstock.log.cache import Tail
from penstock.log.collect import Cursor
from penstock.log.files import ActiveFile
from penstock.log.local import LocalFiles
from penstock.log.subjects.index import SubjectIndex
from penstock.log.subjects.spans import SealedFile
from penstock.model.batch import OffsetRange
from penstock.model.units import Offset, PartitionId

READ_BYTES: Final = 8 << 20
"""Read at a time when the index takes in the active file."""

MEMORY_BYTES_MAX: Final = 32 << 20
"""A memory topic's index is made anew from the cache when it is larger."""


async def index_files(index: SubjectIndex, local: LocalFiles, active: ActiveFile) -> None:
    """Take in files written before this start: the finished ones that are new, and the active."""
    finished = [file for file in local.all() if file is not active.file]
    await index.catch_up([SealedFile(file.path, file.sequence, file.end) for file in finished])
    cursor = Cursor(active.file.header.first_frame, active.file.sequence, FILE_HEADER_BYTES)
    while True:
        found = await local.collect(cursor, READ_BYTES, lambda gap: True)
        for batch in found.batches:
            index.note(batch)
        for extent in (extent for link in found.links for extent in link_extents(link)):
            index_rows(index, extent)
        if found.cursor == cursor:
            return
        cursor = found.cursor


def index_rows(index: SubjectIndex, extent: Extent) -> None:
    """Take in rows that lie in objects."""
    given = OffsetRange(Offset(extent.first), Offset(extent.next))
    index.note_rows(PartitionId(extent.partition), given)


def bound_memory(index: SubjectIndex, tail: Tail) -> None:
    """Forget the subjects of messages that have left the cache, when the index is large."""
    if index.nbytes > MEMORY_BYTES_MAX:
        index.forget()
        for batch in tail.batches():
            index.note(batch)
