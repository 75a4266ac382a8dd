"""Batches as frame bodies: which codec a batch takes, and the way back."""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from penstock.formats import packed, rows
from penstock.formats.frames import FRAME_HEADER_BYTES, Buffer, Codec, Flag, FrameHeader, Kind
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId

_INT64: Final = struct.Struct("<q")

TIMESTAMP_COLUMN: Final = "__timestamp"
"""Rows with timestamps of their own carry them in a last column; users' names cannot start like
this.
"""


def encode(
    content: Columns | pa.RecordBatch, timestamps: pa.Int64Array | None
) -> tuple[Codec, int, list[Buffer]]:
    """Codec, flags and body: raw messages are packed, rows of a typed topic are Arrow."""
    if isinstance(content, Columns):
        flags, pieces = packed.encode(content, timestamps)
        return Codec.PACKED, flags, pieces
    if timestamps is None:
        return Codec.ARROW, 0, rows.encode(content)
    stamped = content.append_column(TIMESTAMP_COLUMN, timestamps)
    return Codec.ARROW, Flag.TIMESTAMPS, rows.encode(stamped)


def decode(header: FrameHeader, data: pa.Buffer, position: int) -> Batch:
    """The batch of the intact frame at `position` of `data`, over the same bytes."""
    body = data.slice(position + FRAME_HEADER_BYTES, header.body_bytes)
    timestamps = None
    content: Columns | pa.RecordBatch
    if header.codec == Codec.PACKED:
        content, timestamps = packed.decode(header.flags, header.entries, body)
    elif header.codec == Codec.ARROW:
        content = rows.decode(header.entries, body)
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
    """The timestamp of the last message of a batch, that of the frame for other kinds."""
    if header.kind != Kind.BATCH or not header.flags & Flag.TIMESTAMPS:
        return header.first_timestamp
    if header.codec == Codec.PACKED:
        return int(_INT64.unpack_from(body, _INT64.size * (header.entries - 1))[0])
    _, timestamps = _unstamped(rows.decode(header.entries, pa.py_buffer(body)))
    return int(timestamps[-1].as_py())


def _unstamped(content: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Int64Array]:
    if content.schema.names[-1:] != [TIMESTAMP_COLUMN]:
        raise FormatError(f"rows with timestamps of their own have no column {TIMESTAMP_COLUMN}")
    return content.drop_columns([TIMESTAMP_COLUMN]), content.column(TIMESTAMP_COLUMN)
