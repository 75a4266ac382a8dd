"""Read messages back from objects: by ranges, checked, and off the event loop.

A read fetches the footer (kept for the next reads), chooses row groups by their statistics, fetches
their bytes and decodes them in a thread. Every page carries a checksum; the footer's checksum, the
size and the store's version of the object must be those the manifest recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import objects as form
from penstock.formats.objects import ObjectFacts, Range
from penstock.host.threads import Workers
from penstock.model.batch import Batch
from penstock.model.errors import FormatError, PenstockError
from penstock.model.units import Offset, PartitionId
from penstock.objects.interface import ObjectDamaged as FooterDamaged
from penstock.objects.interface import (
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.tiers.entries import ObjectEntry

FOOTERS_KEPT: Final = 256
_MAGIC: Final = b"PAR1"


class ObjectDamaged(PenstockError):
    """An object is not what the manifest says, or its bytes are damaged."""

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
    """Reads the objects of one store."""

    def __init__(self, store: ObjectStore, threads: Workers) -> None:
        self._store = store
        self._threads = threads
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, ObjectFacts]] = OrderedDict()

    async def read(
        self, entry: ObjectEntry, span: Range, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        """A batch from `offset` on, about `bytes_max`; none when the rest of the range is empty.

        Raises ObjectDamaged, or what the store raises.
        """
        metadata, facts = await self._footer(entry, span)
        groups = form.row_groups(metadata, span.partition, offset)
        while groups:
            chosen = _upto(metadata, groups, bytes_max)
            groups = groups[len(chosen) :]
            start, stop = _bytes_of(metadata, chosen)
            data = await self._stretch(entry, span, start, stop - start)
            source = _Stretch(entry.size, start, data)
            batch = await self._threads.run(
                self._decode, entry, span, offset, metadata, facts, source, chosen, not groups
            )
            # A row group that two partitions share may end before the offset that is asked for.
            if batch is not None:
                return [batch]
        return []

    async def _stretch(self, entry: ObjectEntry, span: Range, start: int, size: int) -> bytes:
        try:
            return await self._store.get(entry.object_id, start, size)
        except (ObjectMissing, StoreUnavailable):
            raise
        except ObjectStoreError:
            # Short, perhaps: then it is not the object whose footer we have.
            self._footers.pop(entry.object_id, None)
            await self._check(entry, span)
            raise

    def _decode(
        self,
        entry: ObjectEntry,
        span: Range,
        offset: Offset,
        metadata: pq.FileMetaData,
        facts: ObjectFacts,
        source: _Stretch,
        groups: list[int],
        last: bool,
    ) -> Batch | None:
        try:
            file = pq.ParquetFile(
                pa.PythonFile(source, mode="r"),
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = file.read_row_groups(groups, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(entry, span, str(error)) from error
        next_ = span.next if last else _end_of(table, span.partition, offset)
        return form.decode(table, facts, PartitionId(span.partition), offset, Offset(next_))

    async def _footer(self, entry: ObjectEntry, span: Range) -> tuple[pq.FileMetaData, ObjectFacts]:
        known = self._footers.get(entry.object_id)
        if known is not None:
            self._footers.move_to_end(entry.object_id)
            return known
        await self._check(entry, span)
        start, size, crc = entry.size - entry.footer_bytes, entry.footer_bytes, entry.footer_crc32c
        try:
            tail = await self._store.get(entry.object_id, start, size, crc32c=crc)
            # A file of magic and footer alone: Parquet would read more of the real one.
            footer = pa.BufferReader(_MAGIC + tail)
            metadata = await self._threads.run(pq.read_metadata, footer)
            facts = form.facts_of(metadata)
        except (OSError, pa.ArrowException, FormatError, FooterDamaged) as error:
            raise _damaged(entry, span, str(error)) from error
        self._footers[entry.object_id] = (metadata, facts)
        while len(self._footers) > FOOTERS_KEPT:
            self._footers.popitem(last=False)
        return metadata, facts

    async def _check(self, entry: ObjectEntry, span: Range) -> None:
        info = await self._store.head(entry.object_id)
        if info.size_bytes != entry.size or (entry.etag and info.etag not in (None, entry.etag)):
            raise _damaged(entry, span, "it is not the object the manifest names")


def _damaged(entry: ObjectEntry, span: Range, cause: str) -> ObjectDamaged:
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


def _bytes_of(metadata: pq.FileMetaData, groups: list[int]) -> tuple[int, int]:
    """First byte and end of the column chunks of these row groups."""
    start, stop = metadata.serialized_size + (1 << 62), 0
    for index in groups:
        group = metadata.row_group(index)
        for column in range(group.num_columns):
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
