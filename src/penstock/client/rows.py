"""Conversion of rows, payloads and data frames to Arrow tables that a broker accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.formats import header_block
from penstock.model.errors import RunInvalid

if TYPE_CHECKING:
    import pyarrow as pa

RAW_FIELDS: Final = ("subject", "headers", "payload")


def table_of(data: object, schema: pa.Schema | None) -> pa.Table:
    """Convert rows, payloads, an Arrow table or batch, or a data frame to a table.

    `schema` is that of a typed topic, None for raw messages. Headers of raw messages are pairs of
    texts or an encoded header block. Raises RunInvalid.
    """
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, bytes | str | Mapping):
        data = [data]
    if not isinstance(data, Sequence):
        raise RunInvalid(
            f"cannot push a {type(data).__name__}; use rows, payloads, an Arrow table or a frame"
        )
    return _typed(data, schema) if schema is not None else _raw(data)


def _typed(rows: Sequence[object], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    known = set(schema.names)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RunInvalid(f"row {number} is a {type(row).__name__}, not a mapping of columns")
        if unknown := row.keys() - known:
            raise RunInvalid(f"row {number} has no such column: {', '.join(sorted(unknown))}")
    present = pa.schema([f for f in schema if any(f.name in cast(Any, row) for row in rows)])
    try:
        return pa.Table.from_pylist(list(rows), present)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise RunInvalid(f"rows do not fit the topic's columns: {error}") from None


def _raw(messages: Sequence[object]) -> pa.Table:
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        row: dict[str, Any] = (
            dict(message) if isinstance(message, Mapping) else {"payload": message}
        )
        if unknown := row.keys() - set(RAW_FIELDS):
            raise RunInvalid(f"message {number} has no such field: {', '.join(sorted(unknown))}")
        payload = row.get("payload")
        if not isinstance(payload, bytes | str):
            raise RunInvalid(f"message {number} needs a payload of bytes or text")
        row["payload"] = payload.encode() if isinstance(payload, str) else payload
        if not isinstance(headers := row.get("headers"), bytes | None):
            row["headers"] = header_block.encode((key, value) for key, value in headers)
        rows.append(row)
    try:
        table = pa.Table.from_pylist(rows, _raw_schema())
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RunInvalid(f"messages do not fit subject, headers and payload: {error}") from None
    unused = [name for name in ("subject", "headers") if table.column(name).null_count == len(rows)]
    return table.drop_columns(unused)


def _raw_schema() -> pa.Schema:
    """Columns of raw messages in a push; a message without a subject gets the topic's id."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("subject", pa.string()),
            pa.field("headers", pa.binary()),
            pa.field("payload", pa.binary(), nullable=False),
        ]
    )
