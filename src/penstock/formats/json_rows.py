"""Decodes JSON rows of typed topics to Arrow, strictly, with a decoder per schema.

Every column must have a value of its JSON type and within its range, unless it is nullable. Values
of binary columns are base64. Unknown and repeated keys are errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType

from penstock.formats.json_text import value_bytes
from penstock.model.errors import FormatError
from penstock.model.partition_value import Plain

SCHEMAS_MAX: Final = 512
"""Decoders that are cached, the most recently used ones."""

VALUES_MAX: Final = 1 << 24
"""Rows times columns of one batch; a row of nulls only is 3 bytes of text."""

SHORT_BYTES: Final = 4 << 10
"""Largest text for which a plain loop is faster than a NumPy call."""

_STRING: Final = pa.string()
_UINT64_MAX: Final = (1 << 64) - 1
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_TYPES: Final[dict[pa.DataType, Any]] = {
    **{
        getattr(pa, f"int{bits}")(): Annotated[
            int, Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)
        ]
        for bits in (8, 16, 32, 64)
    },
    **{
        getattr(pa, f"uint{bits}")(): Annotated[int, Meta(ge=0, le=(1 << bits) - 1)]
        for bits in (8, 16, 32)
    },
    pa.uint64(): Annotated[int, Meta(ge=0)],
    pa.float32(): Annotated[float, Meta(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)],
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
}
_ESCAPED_COLONS: Final = (b"\\u003a", b"\\u003A")
_PLACE: Final = re.compile(r"(?s)(.*) - at `\$\[(\d+)\](.*)`")


class Fixed(NamedTuple):
    """A column whose value all rows share, so that it is not in the rows."""

    column: str
    value: Plain


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    values: Callable[[Any], Any]
    """Returns the column's value of a decoded row."""
    nullable: bool
    key_colons: int
    """Colons that the column adds to the text of a row: one, and those in its name."""


class _RowType(NamedTuple):
    """The decoder of a schema."""

    decoder: msgspec.json.Decoder[Any]
    columns: list[_Column]
    colons_in_names: bool


def rows(schema: pa.Schema, data: bytes, fixed: Fixed | None = None) -> pa.RecordBatch:
    """Decode a JSON list of rows; raises FormatError, which names row and column."""
    pushed = schema if fixed is None else schema.remove(schema.get_field_index(fixed.column))
    most = data.count(b"{")
    if most * len(schema) > VALUES_MAX:
        raise FormatError(
            f"{most} rows of {len(schema)} columns: at most {VALUES_MAX} values fit one batch"
        )
    kind = _row_type(pushed)
    items = decode(kind.decoder, data)
    arrays: dict[str, pa.Array] = {}
    key_colons = 0
    for column in kind.columns:
        arrays[column.name], present = _array(column, list(map(column.values, items)))
        key_colons += present * column.key_colons
    if _may_repeat_key(data, kind, key_colons, arrays):
        _refuse_repeated_key(data)
    if fixed is not None:
        type_ = schema.field(fixed.column).type
        arrays[fixed.column] = pa.repeat(pa.scalar(fixed.value, type_), len(items))
    return pa.record_batch([arrays[name] for name in schema.names], schema=schema)


def decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> list[Any]:
    """Decode a list of rows; raises FormatError."""
    try:
        items: list[Any] = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(_with_place_first(str(error))) from None
    except RecursionError:
        raise FormatError("data is nested too deeply") from None
    return items


def repeated_key(data: bytes) -> tuple[int, str] | None:
    """Index and key of the first object in a valid JSON list that has a key twice.

    This takes longer than to decode the list, so call it only if a repeated key is likely.
    """
    # The values of numbers do not matter, and Python refuses integers of many digits.
    objects = json.loads(data, object_pairs_hook=_Pairs, parse_int=len, parse_float=len)
    for number, pairs in enumerate(objects):
        if not isinstance(pairs, _Pairs):
            continue
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                return number, name
            seen.add(name)
    return None


class _Pairs(list[Any]):
    """The members of a JSON object."""


def _refuse_repeated_key(data: bytes) -> None:
    repeated = repeated_key(data)
    if repeated is not None:
        raise FormatError(f"data[{repeated[0]}].{repeated[1]}: the key is there twice")


def _may_repeat_key(
    data: bytes, kind: _RowType, key_colons: int, arrays: dict[str, pa.Array]
) -> bool:
    """Whether the text has more colons than its keys and values explain, or escaped ones.

    Only the last value of a repeated key is in a column; the other values leave extra colons.
    """
    others = _count_colons(data) - key_colons
    if others != (sum(map(_colons_within, arrays.values())) if others else 0):
        return True
    return bool(others or kind.colons_in_names) and _has_escaped_colon(data)


@lru_cache(maxsize=SCHEMAS_MAX)
def _row_type(schema: pa.Schema) -> _RowType:
    """The row type of a schema. Its fields are c0, c1..., as column names may be no attributes."""
    fields: list[Any] = []
    columns: list[_Column] = []
    for index, column in enumerate(schema):
        name, kind = f"c{index}", _TYPES[column.type]
        nullable = (name, kind | None | UnsetType, UNSET)
        fields.append(nullable if column.nullable else (name, kind))
        colons = 1 + column.name.count(":")
        get = attrgetter(name)
        columns.append(_Column(column.name, column.type, get, column.nullable, colons))
    row = msgspec.defstruct(
        "Row",
        fields,
        rename={f"c{index}": name for index, name in enumerate(schema.names)},
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
    )
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]
    return _RowType(decoder, columns, any(column.key_colons > 1 for column in columns))


def _array(column: _Column, values: list[Any]) -> tuple[pa.Array, int]:
    """The values of a column, and the number of rows that have one."""
    present = len(values)
    if column.nullable and (absent := values.count(UNSET)):
        values = [None if value is UNSET else value for value in values]
        present -= absent
    try:
        return pa.array(values, column.type), present
    except OverflowError:
        row = next(n for n, value in enumerate(values) if (value or 0) > _UINT64_MAX)
        sentence = f"data[{row}].{column.name}: Expected `int` <= {_UINT64_MAX}"
        raise FormatError(sentence) from None


def _colons_within(texts: pa.Array) -> int:
    return _count_colons(value_bytes(texts)) if texts.type == _STRING else 0


def _count_colons(text: bytes | memoryview) -> int:
    if len(text) <= SHORT_BYTES:
        return bytes(text).count(b":")
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(":")))


def _has_escaped_colon(data: bytes) -> bool:
    return b"\\" in data and any(escaped in data for escaped in _ESCAPED_COLONS)


def _with_place_first(sentence: str) -> str:
    """A message of msgspec with the place of the error in front."""
    match = _PLACE.fullmatch(sentence)
    return sentence if match is None else f"data[{match[2]}]{match[3]}: {match[1]}"
