"""Codec `arrow`: rows of a typed topic as one Arrow IPC stream, schema included."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from crc32c import crc32c

from penstock.formats.frames import JOINED_CHECKSUM_BYTES_MIN, Buffer
from penstock.model.errors import FormatError
from penstock.model.run import EncodedRows

_END_BYTES: Final = 8


def encode(rows: pa.RecordBatch) -> list[Buffer]:
    """The pieces of a body that tells its own schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return [memoryview(sink.getvalue())]


def reused(stream: bytes | memoryview, sent: pa.Schema, rows: pa.RecordBatch) -> EncodedRows | None:
    """The body over the bytes of a stream, if it is laid out as we would: our schema, its batch.

    `sent` is the schema that the stream tells, `rows` are all its rows, found in one batch.
    """
    head = sent.serialize().to_pybytes()
    size = len(head) + pa.ipc.get_record_batch_size(rows) + _END_BYTES
    if len(stream) != size or stream[: len(head)] != head:
        return None
    schema, batch = rows.schema.serialize().to_pybytes(), memoryview(stream)[len(head) :]
    large = size >= JOINED_CHECKSUM_BYTES_MIN
    return EncodedRows([schema, batch], crc32c(batch, crc32c(schema)) if large else None)


def decode(count: int, body: pa.Buffer) -> pa.RecordBatch:
    """The rows; raises FormatError when the body is not one record batch of `count` rows."""
    try:
        with pa.ipc.open_stream(body) as reader:
            rows = reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise FormatError(f"not an Arrow IPC stream: {error}") from error
    if rows.num_rows != count:
        raise FormatError(f"the frame announces {count} rows, its body has {rows.num_rows}")
    return rows
