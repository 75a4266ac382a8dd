"""Converts pushed Arrow tables to the columns of a topic and divides them by partition.

All work is per column. A column may have another width than the topic's if every value fits, and a
nullable column may be missing. Functions raise FormatError, which names the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.header_block import BLOCK_PATTERN
from penstock.formats.json_rows import VALUES_MAX, Fixed
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.limits import RUN_BYTES_MAX, SUBJECT_BYTES_MAX
from penstock.model.partition_value import Plain

ROWS_MAX: Final = 1 << 24
"""Rows of one push."""
PARTITIONS_MAX: Final = 10_000
"""Partitions that the rows of one push may belong to."""

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_RAW_COLUMNS: Final = ("payload", "subject", "headers")
_SUBJECT: Final = r"\A[^.\x00-\x20\x7f]+(?:\.[^.\x00-\x20\x7f]+)*\z"
_WILDCARD: Final = r"(?:\A|\.)[*>](?:\.|\z)"
_VIEW_BYTES: Final = 16

_T = TypeVar("_T", Columns, pa.RecordBatch)


def typed(table: pa.Table, schema: pa.Schema, fixed: Fixed | None = None) -> pa.RecordBatch:
    """The rows of a typed topic; all rows have the value of the `fixed` column, if given."""
    _check(table, schema.names)
    absent = [name for name in schema.names if name not in table.column_names]
    if len(absent) * table.num_rows > VALUES_MAX:
        raise FormatError(f"{len(absent)} columns are left out: push fewer rows at a time")
    columns = []
    for field in schema:
        if fixed is not None and field.name == fixed.column:
            columns.append(_repeated(table, field, fixed.value))
        elif field.name in table.column_names:
            columns.append(_cast(field.name, table.column(field.name), field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
        if columns[-1].null_count and not field.nullable:
            raise FormatError(f"column {field.name!r} must not be null or left out")
    return pa.record_batch(columns, schema=schema)


def raw(table: pa.Table, subject: str, only: bool = False) -> Columns:
    """Raw messages from the column `payload` and the optional columns `subject` and `headers`.

    Rows without a subject get `subject`; with `only`, rows may have no other subject.
    """
    _check(table, _RAW_COLUMNS)
    if "payload" not in table.column_names:
        raise FormatError("column 'payload' is missing")
    payload = _cast("payload", table.column("payload"), _BINARY)
    if payload.null_count:
        raise FormatError("column 'payload' must not be null")
    headers = None
    if "headers" in table.column_names:
        headers = _headers(_cast("headers", table.column("headers"), _BINARY))
    if "subject" not in table.column_names:
        return Columns(subject.encode(), payload, headers)
    subjects = _cast("subject", table.column("subject"), _STRING).fill_null(subject)
    return Columns(_subjects(subjects, subject if only else None), payload, headers)


def divided(content: _T, keys: pa.Array) -> Iterator[tuple[Plain, _T]]:
    """Divide rows by their keys: each value in order of its first row, with its rows in order."""
    encoded = keys.dictionary_encode()
    values, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    if len(values) == 1:
        yield values[0], content
        return
    if len(values) > PARTITIONS_MAX:
        raise FormatError(
            f"rows of {len(values)} partitions in one push, the limit is {PARTITIONS_MAX}"
        )
    together = content.take(pa.array(np.argsort(codes, kind="stable")))
    start = 0
    for value, count in zip(values, np.bincount(codes).tolist(), strict=True):
        yield value, together.slice(start, count)
        start += count


def _check(table: pa.Table, known: list[str] | tuple[str, ...]) -> None:
    """Check names and numbers of columns, rows and bytes before any work."""
    names = table.column_names
    if strange := set(names) - set(known):
        raise FormatError(
            f"there is no column {min(strange)!r} in this topic; known: {', '.join(known)}"
        )
    if len(set(names)) != len(names):
        raise FormatError("a column is there twice")
    if table.num_rows > ROWS_MAX:
        raise FormatError(f"{table.num_rows} rows in one push, the limit is {ROWS_MAX}")
    if table.nbytes > RUN_BYTES_MAX:
        raise FormatError(f"{table.nbytes} bytes in one push, the limit is {RUN_BYTES_MAX}")


def _repeated(table: pa.Table, field: pa.Field, value: Plain) -> pa.Array:
    expected = pa.repeat(pa.scalar(value, field.type), table.num_rows)
    if field.name in table.column_names:
        values = _cast(field.name, table.column(field.name), field.type)
        if not values.equals(expected):
            raise FormatError(f"column {field.name!r} has other values than that of the partition")
    return expected


def _cast(name: str, column: pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    if not _may_cast(column.type, type_):
        raise FormatError(f"column {name!r} is of type {column.type}, which does not fit {type_}")
    if _view_bytes(column) > RUN_BYTES_MAX:
        raise FormatError(f"column {name!r} has more than {RUN_BYTES_MAX} bytes")
    try:
        chunks = (column if column.type == type_ else column.cast(type_)).chunks
    except pa.ArrowInvalid as error:
        raise FormatError(f"column {name!r}: {error}") from None
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else _none(type_)


def _none(type_: pa.DataType) -> pa.Array:
    return pa.array([], type_)


def _may_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps the meaning of every value that it accepts."""
    if types.is_null(source) or source == target:
        return True
    if types.is_integer(target):
        return bool(types.is_integer(source))
    if types.is_floating(target):
        return bool(types.is_integer(source) or types.is_floating(source))
    if target == _STRING:
        return _is_text(source)
    return target == _BINARY and (_is_text(source) or _is_bytes(source))


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_fixed_size_binary(type_)
        or types.is_binary_view(type_)
    )


def _view_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of all values of a column of views; many views may share the same bytes."""
    if not (types.is_string_view(column.type) or types.is_binary_view(column.type)):
        return 0
    size = 0
    for chunk in column.chunks:
        views = chunk.buffers()[1]
        if views is not None:
            lengths = np.frombuffer(views, np.int32)[:: _VIEW_BYTES // 4]
            size += int(lengths[chunk.offset : chunk.offset + len(chunk)].sum(dtype=np.int64))
    return size


def _headers(blocks: pa.BinaryArray) -> pa.BinaryArray | None:
    blocks = blocks.fill_null(b"")
    present = pc.not_equal(pc.binary_length(blocks), 0)
    if not pc.any(present).as_py():
        return None
    valid = pc.match_substring_regex(blocks, BLOCK_PATTERN)
    if not pc.all(pc.or_(valid, pc.invert(present))).as_py():
        raise FormatError("column 'headers': a value is not a header block (NATS/1.0...)")
    return blocks


def _subjects(subjects: pa.StringArray, only: str | None) -> bytes | pa.BinaryArray:
    if len(subjects) and pc.all(pc.equal(subjects, subjects[0])).as_py():
        single = subjects.slice(0, 1)
        check_subjects(single, only)
        return str(single[0]).encode()
    check_subjects(subjects, only)
    return subjects.cast(_BINARY)


def check_subjects(subjects: pa.StringArray, only: str | None = None) -> None:
    """Raise FormatError unless all are valid subjects and, with `only`, equal to it."""
    if only is not None and not pc.all(pc.equal(subjects, pa.scalar(only, _STRING))).as_py():
        raise FormatError(f"column 'subject' has other values than that of the partition, {only!r}")
    fine = pc.and_(
        pc.match_substring_regex(subjects, _SUBJECT),
        pc.invert(pc.match_substring_regex(subjects, _WILDCARD)),
    )
    fine = pc.and_(fine, pc.less_equal(pc.binary_length(subjects), SUBJECT_BYTES_MAX))
    if not pc.all(fine, min_count=0).as_py():
        bad = subjects.filter(pc.invert(fine))[0].as_py()
        raise FormatError(f"column 'subject': {bad[:200]!r} is not a subject")
