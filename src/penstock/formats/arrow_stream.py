"""Arrow IPC streams of pushes and fetches.

Streams of clients are not trusted: their buffers are validated before they are read. They may be
neither compressed nor dictionary-encoded, and the number of rows is limited by the bytes received.
So received bytes limit the memory; limits of the schema and the number of batches limit the time.

The reply to a fetch is one stream per topic. Its rows are messages after the first columns of the
envelope; the schema's metadata holds the facts of the reply as JSON. Offsets may have gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.model.batch import ENVELOPE, Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.limits import MESSAGES_PER_BYTE_MAX
from penstock.model.schema import COLUMNS_MAX
from penstock.model.units import Microseconds, Offset, PartitionId

SCHEMA_BYTES_MAX: Final = 1 << 20
"""Size of the schema of a stream, with its metadata."""
STREAM_BATCHES_MAX: Final = 4096
"""Record batches of a stream; each takes many microseconds, even with few rows."""

NOTE: Final = b"penstock"
"""Key in the metadata of the schema of the facts of a reply."""

_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_MESSAGE_HEADER: Final = 2
_RECORD_BATCH_COMPRESSION: Final = 3


def read(body: bytes | memoryview) -> pa.Table:
    """The rows of a stream that a client sent, without a copy; raises FormatError."""
    buffer = pa.py_buffer(body)
    try:
        _check_messages(buffer)
        stream = pa.ipc.open_stream(buffer)
        if len(stream.schema) > COLUMNS_MAX:
            raise FormatError(f"{len(stream.schema)} columns, the limit is {COLUMNS_MAX}")
        table = stream.read_all()
        if table.num_rows > MESSAGES_PER_BYTE_MAX * len(buffer):
            raise FormatError(f"{table.num_rows} rows in a stream of {len(buffer)} bytes")
        table.validate(full=True)
        # Error messages may quote these, so that they must be UTF-8.
        _ = [(field.name, str(field.type)) for field in table.schema]
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        raise FormatError(f"not a valid Arrow IPC stream: {_first_line(error)}") from None
    return table


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], note: bytes) -> bytes:
    """A stream of these batches, with `note` in the metadata of its schema."""
    sink = pa.BufferOutputStream()
    noted = schema.with_metadata({NOTE: note})
    with pa.ipc.new_stream(sink, noted) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _check_messages(buffer: pa.Buffer) -> None:
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(buffer)):
        if number > STREAM_BATCHES_MAX:
            raise FormatError(f"more than {STREAM_BATCHES_MAX} record batches in one stream")
        if message.type == "schema" and len(message.metadata) > SCHEMA_BYTES_MAX:
            raise FormatError(f"the schema has more than {SCHEMA_BYTES_MAX} bytes")
        if message.type == "dictionary":
            raise FormatError("dictionary-encoded columns are not taken: send plain ones")
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise FormatError("compressed Arrow streams are not taken: send plain ones")


def _is_compressed(message: memoryview) -> bool:
    """Whether the record batch of a message names a compression; its bytes are a FlatBuffer."""
    (root,) = _I32.unpack_from(message)
    position = root + _field(message, root, _MESSAGE_HEADER)
    (distance,) = _I32.unpack_from(message, position)
    return _field(message, position + distance, _RECORD_BATCH_COMPRESSION) != 0


def _field(message: memoryview, table: int, index: int) -> int:
    """Position of a field relative to its FlatBuffer table; 0 if the field is missing."""
    (back,) = _I32.unpack_from(message, table)
    start = table - back
    (size,) = _U16.unpack_from(message, start)
    slot = 4 + 2 * index
    return 0 if slot >= size else int(_U16.unpack_from(message, start + slot)[0])


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


class FetchReplyBatches(NamedTuple):
    """The reply to a fetch of one topic: an error, or batches in order of offsets."""

    error: str | None
    batches: list[Batch]


def read_fetch_reply(body: bytes, schema: pa.Schema | None) -> FetchReplyBatches:
    """Decode the reply for a topic with this schema, None for a raw topic; raises FormatError."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            note = msgspec.json.decode((stream.schema.metadata or {})[NOTE], type=dict[str, Any])
            if note["_tag"] == "error":
                return FetchReplyBatches(str(note["message"]), [])
            return FetchReplyBatches(
                None, [_batch(rows, schema) for rows in stream if rows.num_rows]
            )
    except (pa.ArrowException, OSError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise FormatError(f"not the answer to a fetch: {error}") from None


def _batch(rows: pa.RecordBatch, schema: pa.Schema | None) -> Batch:
    offsets = rows.column("offset").to_numpy()
    first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0]) + 1
    timestamps = rows.column("timestamp").view(pa.int64())
    return Batch(
        PartitionId(rows.column("partition")[0].as_py()),
        Offset(first),
        count,
        Microseconds(timestamps[0].as_py()),
        _raw_columns(rows) if schema is None else _typed_rows(rows, schema),
        timestamps,
        None if count == len(offsets) else np.asarray(offsets - first),
    )


def _raw_columns(rows: pa.RecordBatch) -> Columns:
    headers = rows.column("headers")
    return Columns(
        rows.column("subject"),
        rows.column("payload"),
        None if headers.null_count == len(headers) else headers.fill_null(b""),
    )


def _typed_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    lead = len(list(ENVELOPE)[:3])
    if rows.schema.names[lead:] != schema.names:
        raise ValueError(f"its columns are {', '.join(rows.schema.names[lead:])}")
    return pa.record_batch(rows.columns[lead:], schema=schema)
