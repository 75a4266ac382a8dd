"""Reads and checks the footer of a Parquet object, which contains its metadata."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.bodies import ObjectRef
from penstock.host.child import Child, ChildFailed
from penstock.model.errors import FormatError, RunInvalid
from penstock.objects import ObjectMissing, ObjectStore

TAIL_BYTES: Final = 64 << 10
"""How much to read first; it contains nearly every footer."""
PARQUET_MAGIC: Final = b"PAR1"
_FOOTER_END_BYTES: Final = 8
_ATTEMPTS: Final = 2


async def read_staged_footer(
    store: ObjectStore, ref: ObjectRef, tail_bytes: int = TAIL_BYTES
) -> bytes:
    """The footer, its length and the magic number of an object that another engine wrote.

    Raises RunInvalid if the object is missing, is not the one that was staged, or no Parquet file.
    """
    try:
        info = await store.head(ref.key)
    except ObjectMissing as error:
        raise RunInvalid(str(error)) from None
    if info.size_bytes != ref.size_bytes or (ref.etag and info.etag not in (None, ref.etag)):
        raise RunInvalid(f"object {ref.key} is not the one that was staged")
    footer = await read_footer(store, ref.key, ref.size_bytes, tail_bytes)
    if footer is None:
        raise RunInvalid(f"object {ref.key} is not a Parquet file")
    return footer


async def read_footer(
    store: ObjectStore, key: str, size_bytes: int, tail_bytes: int = TAIL_BYTES
) -> bytes | None:
    """The footer, its length and the magic number of an object; None if it is no Parquet file."""
    size = min(size_bytes, tail_bytes)
    tail = await store.get(key, size_bytes - size, size)
    length = int.from_bytes(tail[-_FOOTER_END_BYTES:-4], "little") + _FOOTER_END_BYTES
    if not tail.endswith(PARQUET_MAGIC) or length > size_bytes:
        return None
    if length > size:
        tail = await store.get(key, size_bytes - length, length)
    return tail[-length:]


async def check_foreign_footer(child: Child, footer: bytes) -> None:
    """Raises FormatError if the footer of another engine's object cannot be used.

    The child process parses it first: some footers crash the process that parses them.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await child.call(parse_footer, footer)
            return
        except ChildFailed as failure:
            if child.closed:
                raise
            if attempt == _ATTEMPTS:
                raise FormatError(f"its footer cannot be read: {failure}") from None


def parse_footer(footer: bytes) -> None:
    """Parse all parts of a footer that readers use; raises FormatError, or crashes the process."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + footer))
        metadata.schema.to_arrow_schema()
        for index in range(metadata.num_row_groups):
            _parse_group(metadata.row_group(index), metadata.num_columns)
    except (OSError, ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise FormatError(f"its footer cannot be read: {error}") from None


def _parse_group(group: pq.RowGroupMetaData, columns: int) -> None:
    if group.num_columns != columns or group.num_rows < 0 or group.total_byte_size < 0:
        raise FormatError("a row group of its footer is damaged")
    for index in range(columns):
        chunk = group.column(index)
        if min(chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values) < 0:
            raise FormatError("a column of its footer is damaged")
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            _ = statistics.min, statistics.max, chunk.dictionary_page_offset
