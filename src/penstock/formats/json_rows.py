"""Rows of JSON to Arrow: strict, by a type that is made once for every schema.

A column's value must be there unless the column is nullable, of its JSON type and within the range
of the column's; a binary column takes base64 text; a field that is no column is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from penstock.model.errors import FormatError
from penstock.model.partition_value import Plain

SCHEMAS_MAX: Final = 512
"""How many schemas' types are kept; one more makes the longest unused be made again."""

VALUES_MAX: Final = 1 << 24
"""Rows times columns of one batch: a row that leaves all its columns out is 3 bytes of text."""

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
_PLACE: Final = re.compile(r"(?s)(.*) - at `\$\[(\d+)\](.*)`")


class Fixed(NamedTuple):
    """A column that is not in the rows because all of them share its value."""

    column: str
    value: Plain


def rows(schema: pa.Schema, data: bytes, fixed: Fixed | None = None) -> pa.RecordBatch:
    """The rows of a JSON list of objects; raises FormatError, which names row and column."""
    told = schema if fixed is None else schema.remove(schema.get_field_index(fixed.column))
    most = data.count(b"{")
    if most * len(schema) > VALUES_MAX:
        raise FormatError(
            f"{most} rows of {len(schema)} columns: at most {VALUES_MAX} values fit one batch"
        )
    items = decode(_decoder(told), data)
    columns = {name: _column(told, index, items) for index, name in enumerate(told.names)}
    if fixed is not None:
        type_ = schema.field(fixed.column).type
        columns[fixed.column] = pa.repeat(pa.scalar(fixed.value, type_), len(items))
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> list[Any]:
    """What a decoder of a list of rows makes of it; raises FormatError."""
    try:
        items: list[Any] = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(_told(str(error))) from None
    except RecursionError:
        raise FormatError("data is nested too deeply") from None
    return items


@lru_cache(maxsize=SCHEMAS_MAX)
def _decoder(schema: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Its fields are c0, c1...: a column may be called what no attribute can be."""
    fields: list[Any] = []
    for index, column in enumerate(schema):
        kind = _TYPES[column.type]
        nullable = (f"c{index}", kind | None, None)
        fields.append(nullable if column.nullable else (f"c{index}", kind))
    row = msgspec.defstruct(
        "Row",
        fields,
        rename={f"c{index}": name for index, name in enumerate(schema.names)},
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
    )
    return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]


def _column(schema: pa.Schema, index: int, items: list[Any]) -> pa.Array:
    values = list(map(attrgetter(f"c{index}"), items))
    try:
        return pa.array(values, schema.field(index).type)
    except OverflowError:
        row = next(n for n, value in enumerate(values) if (value or 0) > _UINT64_MAX)
        name = schema.field(index).name
        raise FormatError(f"data[{row}].{name}: Expected `int` <= {_UINT64_MAX}") from None


def _told(sentence: str) -> str:
    """What msgspec says, with the place in front."""
    match = _PLACE.fullmatch(sentence)
    return sentence if match is None else f"data[{match[2]}]{match[3]}: {match[1]}"
