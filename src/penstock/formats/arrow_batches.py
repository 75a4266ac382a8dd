"""The Arrow answer to a fetch, read back as the batches it was made from.

One IPC stream for a topic: what the answer says of it is JSON in the metadata of the schema, its
rows are messages behind the first columns of the envelope. Offsets may have holes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.formats.arrow_stream import NOTE
from penstock.model.batch import ENVELOPE, Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId


class Answer(NamedTuple):
    """One topic's answer: an error, or batches in offset order, perhaps none."""

    error: str | None
    batches: list[Batch]


def read(body: bytes, schema: pa.Schema | None) -> Answer:
    """The answer for a topic with these columns, None for a raw one; raises FormatError."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            note = msgspec.json.decode((stream.schema.metadata or {})[NOTE], type=dict[str, Any])
            if note["_tag"] == "error":
                return Answer(str(note["message"]), [])
            return Answer(None, [_batch(rows, schema) for rows in stream if rows.num_rows])
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
        _raw(rows) if schema is None else _typed(rows, schema),
        timestamps,
        None if count == len(offsets) else np.asarray(offsets - first),
    )


def _raw(rows: pa.RecordBatch) -> Columns:
    headers = rows.column("headers")
    return Columns(
        rows.column("subject"),
        rows.column("payload"),
        None if headers.null_count == len(headers) else headers.fill_null(b""),
    )


def _typed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    lead = len(list(ENVELOPE)[:3])
    if rows.schema.names[lead:] != schema.names:
        raise ValueError(f"its columns are {', '.join(rows.schema.names[lead:])}")
    return pa.record_batch(rows.columns[lead:], schema=schema)
