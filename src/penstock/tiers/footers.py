"""The end of a Parquet object: what it says of itself."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.bodies import ObjectRef
from penstock.host.child import Child, ChildFailed
from penstock.model.errors import FormatError, RunInvalid
from penstock.objects import ObjectMissing, ObjectStore

TAIL_BYTES: Final = 64 << 10
"""Read first; nearly every footer is in it."""
MAGIC: Final = b"PAR1"
_FOOTER_END_BYTES: Final = 8
_ATTEMPTS: Final = 2


async def footer(store: ObjectStore, ref: ObjectRef) -> bytes:
    """The footer of an object that somebody else laid into the bucket, its length and the magic
    behind it; raises RunInvalid.
    """
    try:
        info = await store.head(ref.key)
    except ObjectMissing as error:
        raise RunInvalid(str(error)) from None
    if info.size_bytes != ref.size_bytes or (ref.etag and info.etag not in (None, ref.etag)):
        raise RunInvalid(f"object {ref.key} is not the one that was staged")
    found = await stored_footer(store, ref.key, ref.size_bytes)
    if found is None:
        raise RunInvalid(f"object {ref.key} is not a Parquet file")
    return found


async def stored_footer(store: ObjectStore, key: str, size_bytes: int) -> bytes | None:
    """The same of an object of this size; None when it is not a Parquet file."""
    size = min(size_bytes, TAIL_BYTES)
    tail = await store.get(key, size_bytes - size, size)
    length = int.from_bytes(tail[-_FOOTER_END_BYTES:-4], "little") + _FOOTER_END_BYTES
    if not tail.endswith(MAGIC) or length > size_bytes:
        return None
    if length > size:
        tail = await store.get(key, size_bytes - length, length)
    return tail[-length:]


async def check_foreign_footer(child: Child, tail: bytes) -> None:
    """Raises FormatError when the footer of another writer's object cannot be used.

    A child process reads it first: at some footers the Parquet library ends its process.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await child.call(read_footer, tail)
            return
        except ChildFailed as failure:
            if child.closed:
                raise
            if attempt == _ATTEMPTS:
                raise FormatError(f"its footer cannot be read: {failure}") from None


def read_footer(tail: bytes) -> None:
    """Read all of a footer that is used later. Raises FormatError, or ends the process."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + tail))
        metadata.schema.to_arrow_schema()
        for index in range(metadata.num_row_groups):
            _read_group(metadata.row_group(index), metadata.num_columns)
    except (OSError, ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise FormatError(f"its footer cannot be read: {error}") from None


def _read_group(group: pq.RowGroupMetaData, columns: int) -> None:
    if group.num_columns != columns or group.num_rows < 0 or group.total_byte_size < 0:
        raise FormatError("a row group of its footer is damaged")
    for place in range(columns):
        chunk = group.column(place)
        if min(chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values) < 0:
            raise FormatError("a column of its footer is damaged")
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            _ = statistics.min, statistics.max, chunk.dictionary_page_offset
