"""Read messages back from objects: by ranges, checked, and off the event loop.

A read fetches the footer (kept for the next reads), chooses row groups by their statistics, or by
the place of their rows, fetches their bytes and decodes them in a thread. Every page carries a
checksum; the footer's checksum, the size and the store's version of the object must be those the
manifest recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.formats import objects as form
from penstock.formats.objects import ObjectFacts
from penstock.formats.postings import Int64s
from penstock.host.child import Child
from penstock.host.threads import WorkerThreads
from penstock.model.batch import Batch
from penstock.model.errors import FormatError, PenstockError
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.objects import ObjectDamaged as FooterDamaged
from penstock.objects import ObjectMissing, ObjectStore, ObjectStoreError, StoreUnavailable
from penstock.tiers import linked
from penstock.tiers.entries import ObjectEntry
from penstock.tiers.footers import MAGIC, check_foreign_footer, stored_footer

FOOTERS_KEPT: Final = 256

_Footer = tuple[pq.FileMetaData, ObjectFacts | None]
"""Of an object and what it says of itself; linked ones say nothing."""


class ObjectDamaged(PenstockError):
    """An object is not what the manifest says, or its bytes are damaged."""

    code = "object_rows_damaged"

    def __init__(self, object_id: str, partition: int, first: int, next_: int, cause: str) -> None:
        super().__init__(
            f"object {object_id}, partition {partition}, offsets {first} to {next_ - 1}: {cause}"
        )
        self.object_id, self.partition, self.first, self.next = object_id, partition, first, next_
        self.cause = cause


class _Stretch:
    """A file of which only a stretch is here; enough for a reader that asks for that."""

    def __init__(self, size: int, first: int, data: bytes) -> None:
        self._size, self._first, self._data = size, first, data
        self._position = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        start, first = self._position, self._first
        stop = self._size if size < 0 else min(start + size, self._size)
        if not first <= start <= stop <= first + len(self._data):
            raise OSError(f"bytes {start} to {stop} were not fetched")
        self._position = stop
        return self._data[start - first : stop - first]

    def seek(self, position: int, whence: int = 0) -> int:
        origin = {0: 0, 1: self._position, 2: self._size}[whence]
        self._position = origin + position
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class ObjectReader:
    """Reads the objects of one topic; rows of linked ones get `subject`."""

    def __init__(
        self, store: ObjectStore, threads: WorkerThreads, child: Child, subject: bytes
    ) -> None:
        """`child` is the first to read footers of other writers."""
        self._store = store
        self._threads, self._child = threads, child
        self._subject = subject
        self._footers: OrderedDict[str, _Footer] = OrderedDict()

    async def read(
        self, entry: ObjectEntry, span: PartitionRange, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        """A batch from `offset` on, about `bytes_max`; none when the rest of the range is empty.

        Raises ObjectDamaged, or what the store raises.
        """
        metadata, facts = await self._footer(entry, span)
        if facts is None:
            return await self._read_linked(entry, span, offset, bytes_max, metadata)
        groups = form.row_groups(metadata, span.partition, offset)
        while groups:
            chosen = _upto(metadata, groups, bytes_max)
            groups = groups[len(chosen) :]
            table = await self._rows(entry, span, metadata, chosen)
            batch = await self._threads.run(_decode, table, facts, span, offset, not groups)
            # A row group that two partitions share may end before the offset that is asked for.
            if batch is not None:
                return [batch]
        return []

    async def subjects(
        self, entry: ObjectEntry, span: PartitionRange, offset: Offset
    ) -> tuple[Int64s, pa.BinaryArray, int]:
        """Offsets and subjects of raw messages from `offset` on, and where to go on.

        Only the columns up to the subject are fetched. Raises like `read`.
        """
        metadata, facts = await self._footer(entry, span)
        if facts is None:
            return await self._linked_subjects(entry, span, offset, metadata)
        groups, width = form.row_groups(metadata, span.partition, offset), form.SUBJECT_COLUMN + 1
        for group in groups:
            table = await self._rows(entry, span, metadata, [group], form.SUBJECT_COLUMNS, width)
            offsets, subjects = form.subjects_of(table, span.partition, offset, span.next)
            if len(offsets):
                last = group == groups[-1]
                return offsets, subjects, span.next if last else int(offsets[-1]) + 1
        return np.empty(0, np.int64), pa.array([], pa.binary()), span.next

    async def _linked_subjects(
        self, entry: ObjectEntry, span: PartitionRange, offset: Offset, metadata: pq.FileMetaData
    ) -> tuple[Int64s, pa.BinaryArray, int]:
        """The same of one row group of a linked object; none when it has no subjects."""
        place, row = linked.subject_place(metadata), offset - span.first
        groups, first = linked.row_groups(metadata, row)
        if place is None or not groups:
            return np.empty(0, np.int64), pa.array([], pa.binary()), span.next
        table = await self._rows(entry, span, metadata, groups[:1], ["subject"], place + 1)
        column = table.slice(row - first).combine_chunks().column("subject").chunk(0)
        subjects = linked.subjects(column, self._subject)
        next_ = offset + len(subjects)
        return np.arange(offset, next_), subjects, next_

    async def look(self, entry: ObjectEntry) -> ObjectEntry:
        """The entry of a linked object with what only the object itself tells.

        Raises ObjectDamaged when it is not what the link says, or what the store raises.
        """
        span = entry.ranges[0]
        etag = await self._check(entry, span)
        tail = await self._tail(entry, span)
        footer = pa.BufferReader(MAGIC + tail)
        try:
            await self.check_footer(tail)
            metadata = await self._threads.run(pq.read_metadata, footer)
        except (OSError, pa.ArrowException, FormatError) as error:
            raise _damaged(entry, span, str(error)) from error
        if metadata.num_rows != entry.rows:
            cause = f"it has {metadata.num_rows} rows and the link says {entry.rows}"
            raise _damaged(entry, span, cause)
        return msgspec.structs.replace(
            entry,
            etag=etag,
            footer_bytes=len(tail),
            footer_crc32c=crc32c(tail),
        )

    async def check_footer(self, tail: bytes) -> None:
        """Raises FormatError when the footer of another writer's object cannot be used."""
        await check_foreign_footer(self._child, tail)

    async def _tail(self, entry: ObjectEntry, span: PartitionRange) -> bytes:
        """The footer of an object, its length and the magic behind it."""
        footer = await stored_footer(self._store, entry.object_id, entry.size)
        if footer is None:
            raise _damaged(entry, span, "it is not a Parquet file")
        return footer

    async def _read_linked(
        self,
        entry: ObjectEntry,
        span: PartitionRange,
        offset: Offset,
        bytes_max: int,
        metadata: pq.FileMetaData,
    ) -> list[Batch]:
        row = offset - span.first
        groups, first = linked.row_groups(metadata, row)
        chosen = _upto(metadata, groups, bytes_max)
        table = await self._rows(entry, span, metadata, chosen)
        batch = await self._threads.run(
            linked.decode, entry, table.slice(row - first), self._subject, offset
        )
        return [] if batch is None else [batch]

    async def _rows(
        self,
        entry: ObjectEntry,
        span: PartitionRange,
        metadata: pq.FileMetaData,
        groups: list[int],
        columns: Sequence[str] | None = None,
        width: int | None = None,
    ) -> pa.Table:
        """The rows of these groups, or columns that are among the first `width`; damaged bytes are
        fetched once more: it may have happened on the way.
        """
        start, stop = _bytes_of(metadata, groups, width)

        async def fetch() -> pa.Table:
            data = await self._stretch(entry, span, start, stop - start)
            source = _Stretch(entry.size, start, data)
            return await self._threads.run(_table, entry, span, metadata, source, groups, columns)

        try:
            return await fetch()
        except ObjectDamaged:
            return await fetch()

    async def _stretch(
        self, entry: ObjectEntry, span: PartitionRange, start: int, size: int
    ) -> bytes:
        try:
            return await self._store.get(entry.object_id, start, size)
        except (ObjectMissing, StoreUnavailable):
            raise
        except ObjectStoreError:
            # Short, perhaps: then it is not the object whose footer we have.
            self._footers.pop(entry.object_id, None)
            await self._check(entry, span)
            raise

    async def _footer(self, entry: ObjectEntry, span: PartitionRange) -> _Footer:
        known = self._footers.get(entry.object_id)
        if known is not None:
            self._footers.move_to_end(entry.object_id)
            return known
        if entry.linked and not entry.footer_bytes:
            entry = await self.look(entry)
        else:
            await self._check(entry, span)
        start, size, crc = entry.size - entry.footer_bytes, entry.footer_bytes, entry.footer_crc32c
        try:
            tail = await self._store.get(entry.object_id, start, size, crc32c=crc)
            # A file of magic and footer alone: Parquet would read more of the real one.
            footer = pa.BufferReader(MAGIC + tail)
            metadata = await self._threads.run(pq.read_metadata, footer)
            facts = None if entry.linked else form.facts_of(metadata)
        except (OSError, pa.ArrowException, FormatError, FooterDamaged) as error:
            raise _damaged(entry, span, str(error)) from error
        self._footers[entry.object_id] = (metadata, facts)
        while len(self._footers) > FOOTERS_KEPT:
            self._footers.popitem(last=False)
        return metadata, facts

    async def _check(self, entry: ObjectEntry, span: PartitionRange) -> str | None:
        """The store's version of the object; raises ObjectDamaged when it is another one."""
        info = await self._store.head(entry.object_id)
        if info.size_bytes != entry.size or (entry.etag and info.etag not in (None, entry.etag)):
            raise _damaged(entry, span, "it is not the object the manifest names")
        return info.etag


def _decode(
    table: pa.Table, facts: ObjectFacts, span: PartitionRange, offset: Offset, last: bool
) -> Batch | None:
    next_ = span.next if last else _end_of(table, span.partition, offset)
    return form.decode(table, facts, PartitionId(span.partition), offset, Offset(next_))


def _table(
    entry: ObjectEntry,
    span: PartitionRange,
    metadata: pq.FileMetaData,
    source: _Stretch,
    groups: list[int],
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows of these groups, in a thread."""
    try:
        file = pq.ParquetFile(
            pa.PythonFile(source, mode="r"),
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
        )
        return file.read_row_groups(groups, columns)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(entry, span, str(error)) from error


def _damaged(entry: ObjectEntry, span: PartitionRange, cause: str) -> ObjectDamaged:
    return ObjectDamaged(entry.object_id, span.partition, span.first, span.next, cause)


def _upto(metadata: pq.FileMetaData, groups: list[int], bytes_max: int) -> list[int]:
    """At least one row group if there is any, then as many neighbours as fit."""
    chosen: list[int] = []
    size = 0
    for index in groups:
        size += metadata.row_group(index).total_byte_size
        if chosen and (size > bytes_max or index != chosen[-1] + 1):
            break
        chosen.append(index)
    return chosen


def _bytes_of(
    metadata: pq.FileMetaData, groups: list[int], columns: int | None = None
) -> tuple[int, int]:
    """First byte and end of the column chunks of these row groups, or the first of them."""
    start, stop = metadata.serialized_size + (1 << 62), 0
    for index in groups:
        group = metadata.row_group(index)
        for column in range(group.num_columns if columns is None else columns):
            chunk = group.column(column)
            first = chunk.data_page_offset
            if chunk.dictionary_page_offset is not None:
                first = min(first, chunk.dictionary_page_offset)
            start = min(start, first)
            stop = max(stop, first + chunk.total_compressed_size)
    return start, stop


def _end_of(table: pa.Table, partition: int, offset: int) -> int:
    """The offset behind the last row of the partition in the table."""
    last = offset
    for batch in table.select(["partition", "offset"]).to_batches():
        mine = batch.filter(pa.compute.equal(batch.column("partition"), partition))
        if mine.num_rows:
            last = max(last, mine.column("offset")[-1].as_py() + 1)
    return last
