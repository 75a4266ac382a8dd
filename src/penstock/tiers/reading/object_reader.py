"""Reads messages back from objects: by byte ranges, verified, and outside the event loop.

A read fetches the footer (cached for later reads), chooses row groups by their statistics or by row
numbers, fetches their bytes and decodes them in a thread. Every page has a checksum; the footer's
checksum, the size and the store's version of the object must be those in the manifest.
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
from penstock.objects import (
    ObjectDamaged,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.reading import linked_objects
from penstock.tiers.reading.footers import PARQUET_MAGIC, check_foreign_footer, read_footer

FOOTERS_MAX: Final = 256
"""How many footers are cached for each topic."""

_Footer = tuple[pq.FileMetaData, ObjectFacts | None]
"""The metadata of an object, and the facts that it states about itself; None if it was linked."""


class ObjectRowsDamaged(PenstockError):
    """An object differs from its manifest entry, or its bytes are damaged."""

    code = "object_rows_damaged"

    def __init__(self, object_id: str, partition: int, first: int, next_: int, cause: str) -> None:
        super().__init__(
            f"object {object_id}, partition {partition}, offsets {first} to {next_ - 1}: {cause}"
        )
        self.object_id, self.partition, self.first, self.next = object_id, partition, first, next_
        self.cause = cause

    @classmethod
    def of_entry(cls, entry: ObjectEntry, cause: str) -> ObjectRowsDamaged:
        """All offsets of an object are damaged."""
        return cls(entry.object_id, 0, entry.start_offset, entry.end_offset + 1, cause)


class _PartialFile:
    """A file object with only one byte range of an object; reads outside of it raise OSError."""

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
    """Reads the objects of one topic."""

    def __init__(
        self,
        store: ObjectStore,
        threads: WorkerThreads,
        child: Child,
        subject: bytes,
        footers_max: int = FOOTERS_MAX,
    ) -> None:
        """Rows of linked objects get `subject`; `child` parses the footers of other engines."""
        self._store = store
        self._threads, self._child = threads, child
        self._subject = subject
        self._footers: OrderedDict[str, _Footer] = OrderedDict()
        self._footers_max = footers_max

    async def read(
        self, entry: ObjectEntry, span: PartitionRange, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        """A batch of about `bytes_max` from `offset` on; none if no message follows in the range.

        Raises ObjectRowsDamaged, or what the store raises.
        """
        metadata, facts = await self._footer(entry, span)
        if facts is None:
            return await self._read_linked(entry, span, offset, bytes_max, metadata)
        groups = form.row_groups(metadata, span.partition, offset)
        while groups:
            chosen = _neighbours_within(metadata, groups, bytes_max)
            groups = groups[len(chosen) :]
            table = await self._rows(entry, span, metadata, chosen)
            batch = await self._threads.run(_decode, table, facts, span, offset, not groups)
            # A row group with two partitions may end before the requested offset.
            if batch is not None:
                return [batch]
        return []

    async def subjects(
        self, entry: ObjectEntry, span: PartitionRange, offset: Offset
    ) -> tuple[Int64s, pa.BinaryArray, int]:
        """Offsets and subjects of raw messages from `offset` on, and the next offset to read.

        Only the columns up to the subject are fetched. Raises ObjectRowsDamaged, or what the store
        raises.
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
        """Offsets and subjects in one row group of a linked object; none without subjects."""
        column_index, row = linked_objects.subject_column_index(metadata), offset - span.first
        groups, first = linked_objects.row_groups(metadata, row)
        if column_index is None or not groups:
            return np.empty(0, np.int64), pa.array([], pa.binary()), span.next
        table = await self._rows(entry, span, metadata, groups[:1], ["subject"], column_index + 1)
        column = table.slice(row - first).combine_chunks().column("subject").chunk(0)
        subjects = linked_objects.subjects(column, self._subject)
        next_ = offset + len(subjects)
        return np.arange(offset, next_), subjects, next_

    async def inspect_linked(self, entry: ObjectEntry) -> ObjectEntry:
        """The entry of a linked object, completed with facts from the object itself.

        Raises ObjectRowsDamaged if the object differs from the link, or what the store raises.
        """
        span = entry.ranges[0]
        etag = await self._check(entry, span)
        footer = await read_footer(self._store, entry.object_id, entry.size)
        if footer is None:
            raise _damaged(entry, span, "it is not a Parquet file")
        file = pa.BufferReader(PARQUET_MAGIC + footer)
        try:
            await self.check_footer(footer)
            metadata = await self._threads.run(pq.read_metadata, file)
        except (OSError, pa.ArrowException, FormatError) as error:
            raise _damaged(entry, span, str(error)) from error
        if metadata.num_rows != entry.rows:
            cause = f"it has {metadata.num_rows} rows and the link says {entry.rows}"
            raise _damaged(entry, span, cause)
        return msgspec.structs.replace(
            entry,
            etag=etag,
            footer_bytes=len(footer),
            footer_crc32c=crc32c(footer),
        )

    async def check_footer(self, footer: bytes) -> None:
        """Raises FormatError if the footer of another engine's object cannot be used."""
        await check_foreign_footer(self._child, footer)

    async def _read_linked(
        self,
        entry: ObjectEntry,
        span: PartitionRange,
        offset: Offset,
        bytes_max: int,
        metadata: pq.FileMetaData,
    ) -> list[Batch]:
        row = offset - span.first
        groups, first = linked_objects.row_groups(metadata, row)
        chosen = _neighbours_within(metadata, groups, bytes_max)
        table = await self._rows(entry, span, metadata, chosen)
        batch = await self._threads.run(
            linked_objects.decode, entry, table.slice(row - first), self._subject, offset
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
        """The rows of these groups, of all `columns` or of some among the first `width`.

        Damaged bytes are fetched once more: the transfer may have damaged them.
        """
        start, stop = _bytes_of(metadata, groups, width)

        async def fetch() -> pa.Table:
            data = await self._get_range(entry, span, start, stop - start)
            source = _PartialFile(entry.size, start, data)
            return await self._threads.run(
                _read_rows, entry, span, metadata, source, groups, columns
            )

        try:
            return await fetch()
        except ObjectRowsDamaged:
            return await fetch()

    async def _get_range(
        self, entry: ObjectEntry, span: PartitionRange, start: int, size: int
    ) -> bytes:
        try:
            return await self._store.get(entry.object_id, start, size)
        except (ObjectMissing, StoreUnavailable):
            raise
        except ObjectStoreError:
            # If the range is short, the object is not the one whose footer is cached.
            self._footers.pop(entry.object_id, None)
            await self._check(entry, span)
            raise

    async def _footer(self, entry: ObjectEntry, span: PartitionRange) -> _Footer:
        known = self._footers.get(entry.object_id)
        if known is not None:
            self._footers.move_to_end(entry.object_id)
            return known
        if entry.linked and not entry.footer_bytes:
            entry = await self.inspect_linked(entry)
        else:
            await self._check(entry, span)
        start, size, crc = entry.size - entry.footer_bytes, entry.footer_bytes, entry.footer_crc32c
        try:
            footer = await self._store.get(entry.object_id, start, size, crc32c=crc)
            # A file with only the magic number and the footer: Parquet would read more of others.
            file = pa.BufferReader(PARQUET_MAGIC + footer)
            metadata = await self._threads.run(pq.read_metadata, file)
            facts = None if entry.linked else form.facts_of(metadata)
        except (OSError, pa.ArrowException, FormatError, ObjectDamaged) as error:
            raise _damaged(entry, span, str(error)) from error
        self._footers[entry.object_id] = (metadata, facts)
        while len(self._footers) > self._footers_max:
            self._footers.popitem(last=False)
        return metadata, facts

    async def _check(self, entry: ObjectEntry, span: PartitionRange) -> str | None:
        """The store's version of the object; raises ObjectRowsDamaged if it was replaced."""
        info = await self._store.head(entry.object_id)
        if info.size_bytes != entry.size or (entry.etag and info.etag not in (None, entry.etag)):
            raise _damaged(entry, span, "it is not the object the manifest names")
        return info.etag


def _decode(
    table: pa.Table, facts: ObjectFacts, span: PartitionRange, offset: Offset, last: bool
) -> Batch | None:
    next_ = span.next if last else _end_of(table, span.partition, offset)
    return form.decode(table, facts, PartitionId(span.partition), offset, Offset(next_))


def _read_rows(
    entry: ObjectEntry,
    span: PartitionRange,
    metadata: pq.FileMetaData,
    source: _PartialFile,
    groups: list[int],
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows of these groups; runs in a thread."""
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


def _damaged(entry: ObjectEntry, span: PartitionRange, cause: str) -> ObjectRowsDamaged:
    return ObjectRowsDamaged(entry.object_id, span.partition, span.first, span.next, cause)


def _neighbours_within(metadata: pq.FileMetaData, groups: list[int], bytes_max: int) -> list[int]:
    """The first row group, and as many direct successors as fit into `bytes_max`."""
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
    """The byte range of the first `columns` column chunks, or of all, of these row groups."""
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
    """The offset after the last row of the partition in the table."""
    last = offset
    for batch in table.select(["partition", "offset"]).to_batches():
        rows = batch.filter(pa.compute.equal(batch.column("partition"), partition))
        if rows.num_rows:
            last = max(last, rows.column("offset")[-1].as_py() + 1)
    return last
