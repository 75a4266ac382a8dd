"""Bodies of batch frames: codec `packed` for raw messages, codec `arrow` for typed topics.

Codec `arrow` is an Arrow IPC stream with one record batch; the schema is part of it.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from penstock.formats import packed
from penstock.formats.frames import (
    FRAME_HEADER_BYTES,
    JOINED_CHECKSUM_BYTES_MIN,
    Buffer,
    Codec,
    Flag,
    FrameHeader,
    Kind,
)
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.run import EncodedRows
from penstock.model.units import Microseconds, Offset, PartitionId

_END_BYTES: Final = 8
_INT64: Final = struct.Struct("<q")

TIMESTAMP_COLUMN: Final = "__timestamp"
"""Last column of rows with timestamps of their own; no user's column may have such a name."""


def encode(
    content: Columns | pa.RecordBatch, timestamps: pa.Int64Array | None
) -> tuple[Codec, int, list[Buffer]]:
    """The codec, the flags and the pieces of the body of a batch."""
    if isinstance(content, Columns):
        flags, pieces = packed.encode(content, timestamps)
        return Codec.PACKED, flags, pieces
    if timestamps is None:
        return Codec.ARROW, 0, encode_rows(content)
    stamped = content.append_column(TIMESTAMP_COLUMN, timestamps)
    return Codec.ARROW, Flag.TIMESTAMPS, encode_rows(stamped)


def decode(header: FrameHeader, data: pa.Buffer, position: int) -> Batch:
    """The batch of the intact frame at `position` of `data`, without a copy; raises FormatError."""
    body = data.slice(position + FRAME_HEADER_BYTES, header.body_bytes)
    timestamps = None
    content: Columns | pa.RecordBatch
    if header.codec == Codec.PACKED:
        content, timestamps = packed.decode(header.flags, header.entries, body)
    elif header.codec == Codec.ARROW:
        content = _decode_rows(header.entries, body)
        if header.flags & Flag.TIMESTAMPS:
            content, timestamps = _unstamped(content)
    else:
        raise FormatError(f"a batch has the unknown codec {header.codec}: upgrade this Penstock")
    return Batch(
        PartitionId(header.partition),
        Offset(header.first_offset),
        header.entries,
        Microseconds(header.first_timestamp),
        content,
        timestamps,
    )


def last_timestamp(header: FrameHeader, body: Buffer) -> int:
    """The timestamp of the last message of a batch frame; other kinds have one timestamp."""
    if header.kind != Kind.BATCH or not header.flags & Flag.TIMESTAMPS:
        return header.first_timestamp
    if header.codec == Codec.PACKED:
        return int(_INT64.unpack_from(body, _INT64.size * (header.entries - 1))[0])
    _, timestamps = _unstamped(_decode_rows(header.entries, pa.py_buffer(body)))
    return int(timestamps[-1].as_py())


def _unstamped(content: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Int64Array]:
    if content.schema.names[-1:] != [TIMESTAMP_COLUMN]:
        raise FormatError(f"rows with timestamps of their own have no column {TIMESTAMP_COLUMN}")
    return content.drop_columns([TIMESTAMP_COLUMN]), content.column(TIMESTAMP_COLUMN)


def encode_rows(rows: pa.RecordBatch) -> list[Buffer]:
    """The body of rows, as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return [memoryview(sink.getvalue())]


def body_over_stream(
    stream: bytes | memoryview, sent: pa.Schema, rows: pa.RecordBatch
) -> EncodedRows | None:
    """The body built from the record batch in a received stream, if its layout is that of a body.

    `sent` is the schema in the stream, `rows` are all its rows as one record batch.
    """
    head = sent.serialize().to_pybytes()
    size = len(head) + pa.ipc.get_record_batch_size(rows) + _END_BYTES
    if len(stream) != size or stream[: len(head)] != head:
        return None
    schema, batch = rows.schema.serialize().to_pybytes(), memoryview(stream)[len(head) :]
    large = size >= JOINED_CHECKSUM_BYTES_MIN
    return EncodedRows([schema, batch], crc32c(batch, crc32c(schema)) if large else None)


def _decode_rows(count: int, body: pa.Buffer) -> pa.RecordBatch:
    """The rows of a body; raises FormatError unless it is one record batch of `count` rows."""
    try:
        with pa.ipc.open_stream(body) as reader:
            rows = reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise FormatError(f"not an Arrow IPC stream: {error}") from error
    if rows.num_rows != count:
        raise FormatError(f"the frame announces {count} rows, its body has {rows.num_rows}")
    return rows
