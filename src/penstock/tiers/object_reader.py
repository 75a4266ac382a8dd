"""Read messages back from objects: by ranges, checked, and off the event loop.

A read fetches the footer (kept for the next reads), chooses row groups by their statistics, fetches
their bytes and decodes them in a thread. Every page carries a checksum; the size and the store's
version of the object must be those the manifest recorded.
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
from penstock.objects.interface import ObjectStore
from penstock.tiers.entries import ObjectEntry

FOOTER_BYTES: Final = 64 << 10
FOOTERS_KEPT: Final = 256


class ObjectDamaged(PenstockError):
    """An object is not what the manifest says, or its bytes are damaged."""

    def __init__(self, object_id: str, partition: int, first: int, next_: int, cause: str) -> None:
        super().__init__(
            f"object {object_id}, partition {partition}, offsets {first} to {next_ - 1}: {cause}"
        )
        self.object_id, self.partition, self.first, self.next = object_id, partition, first, next_
        self.cause = cause


class _Ranges:
    """A file of which only some stretches are here; enough for a reader that asks for those."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0
        self._stretches: list[tuple[int, bytes]] = []
        self.closed = False

    def add(self, start: int, data: bytes) -> None:
        self._stretches.append((start, data))

    def read(self, size: int = -1) -> bytes:
        start = self._position
        stop = self._size if size < 0 else min(start + size, self._size)
        for first, data in self._stretches:
            if first <= start and stop <= first + len(data):
                self._position = stop
                return data[start - first : stop - first]
        raise OSError(f"bytes {start} to {stop} were not fetched")

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
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, ObjectFacts, bytes]] = OrderedDict()

    async def read(
        self, entry: ObjectEntry, span: Range, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        """A batch from `offset` on, about `bytes_max`; none when the rest of the range is empty.

        Raises ObjectDamaged, or what the store raises.
        """
        metadata, facts, tail = await self._footer(entry, span)
        groups = form.row_groups(metadata, span.partition, offset)
        chosen = _upto(metadata, groups, bytes_max)
        if not chosen:
            return []
        source = _Ranges(entry.size)
        source.add(entry.size - len(tail), tail)
        start, stop = _bytes_of(metadata, chosen)
        source.add(start, await self._store.get(entry.object_id, start, stop - start))
        last = chosen[-1] == groups[-1]
        return await self._threads.run(
            self._decode, entry, span, offset, metadata, facts, source, chosen, last
        )

    def _decode(
        self,
        entry: ObjectEntry,
        span: Range,
        offset: Offset,
        metadata: pq.FileMetaData,
        facts: ObjectFacts,
        source: _Ranges,
        groups: list[int],
        last: bool,
    ) -> list[Batch]:
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
        batch = form.decode(table, facts, PartitionId(span.partition), offset, Offset(next_))
        return [] if batch is None else [batch]

    async def _footer(
        self, entry: ObjectEntry, span: Range
    ) -> tuple[pq.FileMetaData, ObjectFacts, bytes]:
        known = self._footers.get(entry.object_id)
        if known is not None:
            self._footers.move_to_end(entry.object_id)
            return known
        info = await self._store.head(entry.object_id)
        if info.size_bytes != entry.size or (entry.etag and info.etag not in (None, entry.etag)):
            raise _damaged(entry, span, "it is not the object the manifest names")
        size = min(FOOTER_BYTES, entry.size)
        while True:
            tail = await self._store.get(entry.object_id, entry.size - size, size)
            needed = int.from_bytes(tail[-8:-4], "little") + 8
            if needed <= size or size == entry.size:
                break
            size = min(needed, entry.size)
        source = _Ranges(entry.size)
        source.add(entry.size - len(tail), tail)
        try:
            metadata = await self._threads.run(pq.read_metadata, pa.PythonFile(source, mode="r"))
            facts = form.facts_of(metadata)
        except (OSError, pa.ArrowException, FormatError) as error:
            raise _damaged(entry, span, str(error)) from error
        self._footers[entry.object_id] = (metadata, facts, tail)
        while len(self._footers) > FOOTERS_KEPT:
            self._footers.popitem(last=False)
        return metadata, facts, tail


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
