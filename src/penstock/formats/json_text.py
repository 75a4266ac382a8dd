"""Encodes Arrow columns as JSON text, whole columns at a time.

The text of every row ends in a comma, so that the joined texts are the content of a JSON list
except for the last comma. Numbers have their shortest form, so that 1.0 may become 1, which is the
same number in JSON. NaN and infinities become null, binary values base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PIECE_BYTES: Final = 4 << 20
"""Approximate size of the text that is built at a time."""

FEW: Final = 64
"""Largest number of rows that are encoded one by one."""

_ENCODER: Final = msgspec.json.Encoder()
_NO_NUMBERS: Final = frozenset((None, "nan", "-nan", "inf", "-inf"))
_STRING: Final = pa.string()
_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_SPACE: Final = 0x20
_QUOTE: Final = pa.scalar('"', _STRING)
_NOTHING: Final = pa.scalar("", _STRING)
_NULLS_TOLD: Final = pc.JoinOptions("replace", "null")

Piece: TypeAlias = "str | pa.StringArray"
"""A part of the text of every row: a text that all rows share, or a column of texts."""


def text(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Encode rows as JSON objects, each followed by a comma, in pieces of about PIECE_BYTES."""
    lead = sum(len(name.encode()) + 24 for name in rows.schema.names) + 3
    write = _few if len(rows) <= FEW else _rows
    for start, count in parts(rows, lead):
        yield write(rows.slice(start, count))


def quoted(text: str) -> str:
    """The text as a JSON string."""
    return msgspec.json.encode(text).decode()


def joined(pieces: Iterable[Piece], count: int) -> bytes:
    """Join the pieces of every row; null becomes `null`. At least one piece is a column."""
    if not count:
        return b""
    text = pc.binary_join_element_wise(*_merged(pieces), _NOTHING, options=_NULLS_TOLD)
    return bytes(value_bytes(text))


def value_bytes(array: pa.StringArray | pa.BinaryArray) -> memoryview:
    """The bytes of all values in order."""
    _, offsets, values = array.buffers()
    if values is None:
        return memoryview(b"")
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(values)[ends[array.offset] : ends[array.offset + len(array)]]


def parts(rows: pa.RecordBatch | pa.Array, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and length of slices whose text has about PIECE_BYTES; a slice is at least one row."""
    count = len(rows)
    size = max(1, count * PIECE_BYTES // max(row_bytes * count + rows.nbytes, 1))
    for start in range(0, count, size):
        yield start, min(size, count - start)


def text_pieces(array: pa.StringArray) -> list[Piece]:
    """A column of texts as JSON strings."""
    octets = np.frombuffer(value_bytes(array), np.uint8)
    if (octets < _SPACE).any() and _has_rare(octets):
        return [_one_by_one(array)]
    for plain, escaped in _ESCAPES:
        if (octets == ord(plain)).any():
            array = pc.replace_substring(array, plain, escaped)
    if array.null_count:
        return [pc.binary_join_element_wise(_QUOTE, array, _QUOTE, _NOTHING)]
    return ['"', array, '"']


def base64_pieces(array: pa.BinaryArray) -> list[Piece]:
    """A column of bytes as JSON strings, value by value, as Arrow has no kernel for base64."""
    values = array.to_pylist()
    texts = [None if value is None else base64.b64encode(value).decode() for value in values]
    return text_pieces(pa.array(texts, _STRING))


def _few(batch: pa.RecordBatch) -> bytes:
    """Encode few rows one by one, which takes less time than Arrow kernels take to start."""
    names, columns = batch.schema.names, [_plain(column) for column in batch.columns]
    rows = zip(*columns, strict=True) if columns else [()] * len(batch)
    return b"".join([_ENCODER.encode(dict(zip(names, row, strict=True))) + b"," for row in rows])


def _plain(column: pa.Array) -> list[object]:
    if not pa.types.is_floating(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    texts = column.cast(_STRING).to_pylist()
    return [None if text in _NO_NUMBERS else msgspec.Raw(text) for text in texts]


def _rows(batch: pa.RecordBatch) -> bytes:
    pieces: list[Piece] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces += [f"{',' if pieces else '{'}{quoted(name)}:", *_value_pieces(column)]
    if not pieces:
        return b"{}," * int(batch.num_rows)
    return joined([*pieces, "},"], batch.num_rows)


def _value_pieces(column: pa.Array) -> list[Piece]:
    type_ = column.type
    if type_ == _STRING:
        return text_pieces(column)
    if type_ == pa.binary():
        return base64_pieces(column)
    if pa.types.is_floating(type_):
        finite = pc.is_finite(column)
        if pc.any(pc.invert(finite)).as_py():
            column = pc.if_else(finite, column, pa.scalar(None, type_))
    return [column.cast(_STRING)]


def _has_rare(octets: npt.NDArray[np.uint8]) -> bool:
    """Whether there are control characters without a short escape sequence."""
    controls = np.unique(octets[octets < _SPACE])
    return not set(controls.tolist()) <= {9, 10, 13}


def _one_by_one(array: pa.StringArray) -> pa.StringArray:
    return pa.array([None if v is None else quoted(v) for v in array.to_pylist()], _STRING)


def _merged(pieces: Iterable[Piece]) -> list[pa.StringScalar | pa.StringArray]:
    """Merge neighbouring texts, as every argument of a join costs a copy of all rows."""
    merged: list[pa.StringScalar | pa.StringArray] = []
    for same, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        if same:
            merged.append(_literal("".join(group)))
        else:
            merged.extend(group)
    return merged


def _literal(text: str) -> pa.StringScalar:
    # With an explicit type, as Arrow takes 25 times as long to infer it.
    return pa.scalar(text, _STRING)
