"""Objects in the bucket: self-describing Parquet files that any tool can read.

Rows are sorted by partition and offset. The columns are `partition`, `offset`, `timestamp`, then
`subject`, `headers`, `payload` or the columns of a typed topic. Only types that every engine
supports are used: unsigned integers are stored in the next larger signed type (uint64 as decimal),
times in microseconds UTC. The file's metadata holds an `ObjectFacts` under the key `penstock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.paths import topic_directory
from penstock.formats.postings import Int64s
from penstock.model.batch import ENVELOPE, Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, Offset, PartitionId, PartitionRange

OBJECT_VERSION: Final = 1
ROW_GROUP_ROWS: Final = 128 << 10
ROW_GROUP_BYTES: Final = 16 << 20
_FULL: Final = 7 / 8
"""Share of a row group at which it is written, so that the next rows do not leave a small second
row group.
"""
METADATA_KEY: Final = b"penstock"
SUFFIX: Final = ".parquet"

_LEAD: Final = ("partition", "offset", "timestamp")
SUBJECT_COLUMNS: Final = ("partition", "offset", "subject")
SUBJECT_COLUMN: Final = 3
"""Index of the subject column; the columns before it are small."""
_SUBJECT: Final = pa.field("subject", pa.string(), nullable=False)
_ENCODINGS: Final = dict.fromkeys(("offset", "timestamp"), "DELTA_BINARY_PACKED")
_RAW_ENCODINGS: Final = dict.fromkeys(("headers", "payload"), "DELTA_LENGTH_BYTE_ARRAY")
"""Stores lengths apart from bytes: a little smaller, and faster for bytes that do not compress."""
_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


class ObjectFacts(msgspec.Struct, frozen=True):
    """The facts of an object in its own metadata."""

    version: int
    topic: str
    ranges: list[PartitionRange]
    rows: int
    first_timestamp: int
    last_timestamp: int
    epoch: int
    first_frame: int
    next_frame: int
    typed: bool
    schema: bytes = b""
    """Arrow IPC schema of a typed topic's own columns, before unsigned types were widened."""


def object_key(
    topic: TopicName, created_us: int, ranges: Sequence[PartitionRange], unique: str
) -> str:
    """The key of a new object; the creation time comes first, so that listings are in its order."""
    partitions = [r.partition for r in ranges]
    first, last = min(r.first for r in ranges), max(r.next for r in ranges) - 1
    span = f"p{min(partitions)}-{max(partitions)}"
    name = f"data-{created_us:017d}-{span}-{first}-{last}-{unique}{SUFFIX}"
    return f"topics/{topic_directory(topic)}/{name}"


def topic_prefix(topic: TopicName) -> str:
    """The prefix of the keys of a topic's objects."""
    return f"topics/{topic_directory(topic)}/"


def staged_prefix(topic: TopicName) -> str:
    """The prefix of the keys of objects that other engines stage for a link."""
    return f"{topic_prefix(topic)}staged-"


class ObjectWriter:
    """Writes an object row group by row group; rows must come sorted by partition and offset."""

    def __init__(self, sink: pa.NativeFile, schema: pa.Schema, typed: bool) -> None:
        self._sink = sink
        self._writer = pq.ParquetWriter(
            self._sink,
            schema.remove_metadata(),
            compression="zstd",
            use_dictionary=[name for name in ("subject",) if name in schema.names],
            column_encoding=_ENCODINGS if typed else _ENCODINGS | _RAW_ENCODINGS,
            write_statistics=[*_LEAD] if typed else [*_LEAD, "subject"],
            write_page_checksum=True,
            store_schema=False,
            coerce_timestamps="us",
        )
        self._held: list[pa.Table] = []
        """Rows that do not fill a row group yet."""

    @property
    def size(self) -> int:
        """Bytes written so far, without rows that wait for their row group."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Add rows in stored types."""
        if table.num_rows:
            self._held.append(table.replace_schema_metadata(None))
        rows = sum(held.num_rows for held in self._held)
        size = sum(held.nbytes for held in self._held)
        if rows >= ROW_GROUP_ROWS * _FULL or size >= ROW_GROUP_BYTES * _FULL:
            self._flush()

    def finish(self, facts: ObjectFacts) -> None:
        """Write the remaining rows and the metadata; the sink stays open."""
        self._flush()
        self._writer.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(facts)})
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            table = pa.concat_tables(self._held)
            self._writer.write_table(table, row_group_size=_rows_per_group(table))
            self._held = []


def encode_table(table: pa.Table, facts: ObjectFacts) -> bytes:
    """A whole object of rows that are in stored types and order."""
    sink = pa.BufferOutputStream()
    writer = ObjectWriter(sink, table.schema, facts.typed)
    writer.write(table)
    writer.finish(facts)
    return bytes(sink.getvalue())


def encode(batches: Sequence[Batch], facts: ObjectFacts) -> bytes:
    """A whole object of batches of one kind, sorted by partition and offset."""
    table = storable(batches)
    return encode_table(stored_schema(facts).empty_table() if table is None else table, facts)


def storable(batches: Sequence[Batch]) -> pa.Table | None:
    """The messages as rows of an object; None if there are no messages."""
    tables = [_storable(batch) for batch in batches if batch.messages]
    return pa.Table.from_batches(tables) if tables else None


def facts_of(metadata: pq.FileMetaData) -> ObjectFacts:
    """The facts in the metadata of an object; raises FormatError for other Parquet files."""
    raw = (metadata.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise FormatError("a Parquet file, but not an object of Penstock")
    try:
        facts = msgspec.json.decode(raw, type=ObjectFacts)
    except msgspec.DecodeError as error:
        raise FormatError(f"the object's own description is damaged: {error}") from error
    if facts.version > OBJECT_VERSION:
        raise VersionUnknown("the object", facts.version, OBJECT_VERSION)
    return facts


def row_groups(metadata: pq.FileMetaData, partition: int, offset: int) -> list[int]:
    """Row groups that may hold rows of the partition from `offset` on, in order."""
    columns = {metadata.schema.column(i).name: i for i in range(len(_LEAD))}
    matching = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        partitions = group.column(columns["partition"]).statistics
        offsets = group.column(columns["offset"]).statistics
        if not partitions.min <= partition <= partitions.max:
            continue
        if partitions.min == partitions.max and offsets.max < offset:
            continue
        matching.append(index)
    return matching


def decode(
    table: pa.Table, facts: ObjectFacts, partition: PartitionId, first: Offset, next_: Offset
) -> Batch | None:
    """The rows of a partition from `first` up to, not including, `next_` as one batch.

    `table` holds rows of the object in stored order. Returns None if there are no such rows.
    """
    if not table.num_rows:
        return None
    low, high = _row_range(table, partition, first, next_)
    rows = table.slice(low, high - low).combine_chunks()
    if not rows.num_rows:
        return None
    stamps = rows.column("timestamp").chunk(0).view(pa.int64())
    return Batch(
        partition,
        first,
        next_ - first,
        Microseconds(stamps[0].as_py()),
        _content(rows, facts),
        stamps,
        rows.column("offset").to_numpy() - first,
    )


def subjects_of(
    table: pa.Table, partition: int, first: int, next_: int
) -> tuple[Int64s, pa.BinaryArray]:
    """Offsets and subjects of raw messages of one partition; `table` has SUBJECT_COLUMNS."""
    low, high = _row_range(table, partition, first, next_)
    rows = table.slice(low, high - low)
    return rows.column("offset").to_numpy(), _one_chunk(rows.column("subject").cast(pa.binary()))


def _row_range(table: pa.Table, partition: int, first: int, next_: int) -> tuple[int, int]:
    """First and next row with these offsets of the partition, in a table in stored order."""
    partitions = table.column("partition").to_numpy()
    low, high = np.searchsorted(partitions, (partition, partition + 1)).tolist()
    offsets = table.column("offset").slice(low, high - low).to_numpy()
    start, stop = np.searchsorted(offsets, (first, next_)).tolist()
    return low + start, low + stop


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _rows_per_group(table: pa.Table) -> int:
    row_bytes = max(table.nbytes // max(table.num_rows, 1), 1)
    return int(max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // row_bytes)))


def _storable(batch: Batch) -> pa.RecordBatch:
    rows = batch.to_arrow()
    if not isinstance(batch.content, Columns):
        fields = [field.with_type(_WIDER.get(field.type, field.type)) for field in rows.schema]
        return rows.cast(pa.schema(fields)) if fields != list(rows.schema) else rows
    return rows.set_column(3, _SUBJECT, rows.column("subject").cast(pa.string()))


def _content(rows: pa.Table, facts: ObjectFacts) -> Columns | pa.RecordBatch:
    if not facts.typed:
        headers = rows.column("headers").chunk(0)
        return Columns(
            rows.column("subject").chunk(0).cast(pa.binary()),
            rows.column("payload").chunk(0),
            None if headers.null_count == len(headers) else headers.fill_null(b""),
        )
    schema = pa.ipc.read_schema(pa.py_buffer(facts.schema))
    typed = rows.select(schema.names).cast(schema)
    return typed.to_batches()[0]


def stored_schema(facts: ObjectFacts) -> pa.Schema:
    """The columns of an object, in stored order and types."""
    fields = [ENVELOPE.field(name) for name in _LEAD]
    if facts.typed:
        own = pa.ipc.read_schema(pa.py_buffer(facts.schema))
        fields += [field.with_type(_WIDER.get(field.type, field.type)) for field in own]
    else:
        fields += [_SUBJECT, ENVELOPE.field("headers"), ENVELOPE.field("payload")]
    return pa.schema(fields)
