"""Schemas of typed topics: named columns of scalar types.

A column is written as `name:type`; `?` after the type marks it as nullable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from penstock.model.batch import ENVELOPE
from penstock.model.errors import SchemaInvalid

TYPES: Final[dict[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
}
COLUMNS_MAX: Final = 1000
COLUMN_NAME_CHARACTERS_MAX: Final = 255

_ALIASES: Final = {
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (32, 64)},
    "utf8": "string",
    "boolean": "bool",
}
_NAMES: Final = {type_: name for name, type_ in TYPES.items()}


def field(text: str) -> pa.Field:
    """Parse `name:type` or `name:type?`; raises SchemaInvalid."""
    name, colon, kind = text.rpartition(":")
    if not colon:
        raise SchemaInvalid(f"column {text!r} must be written name:type, such as id:int64")
    return column(name, kind.removesuffix("?"), nullable=kind.endswith("?"))


def column(name: str, kind: str, nullable: bool = False) -> pa.Field:
    """The column with this name and type name; raises SchemaInvalid."""
    lowered = kind.lower()
    type_ = TYPES.get(_ALIASES.get(lowered, lowered))
    if type_ is None:
        raise SchemaInvalid(f"column {name!r} has the unknown type {kind!r}; known: {known()}")
    return pa.field(name, type_, nullable)


def type_name(type_: pa.DataType) -> str:
    """The name of a column type."""
    return _NAMES[type_]


def known() -> str:
    """The names of all types, for error messages."""
    return ", ".join(TYPES)


def schema(fields: Iterable[pa.Field]) -> pa.Schema:
    """The schema of these columns; raises SchemaInvalid when their number or a name is invalid."""
    columns = list(fields)
    if not 1 <= len(columns) <= COLUMNS_MAX:
        raise SchemaInvalid(f"a typed topic has 1 to {COLUMNS_MAX} columns, not {len(columns)}")
    seen: set[str] = set()
    for item in columns:
        _check_name(item.name)
        folded = item.name.casefold()
        if folded in seen:
            raise SchemaInvalid(f"column {item.name!r} is there twice (upper and lower case alike)")
        seen.add(folded)
    return pa.schema(columns)


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= COLUMN_NAME_CHARACTERS_MAX or not name.isprintable():
        rule = f"1 to {COLUMN_NAME_CHARACTERS_MAX} printable characters"
        raise SchemaInvalid(f"column name {name!r} must be {rule}")
    if name.startswith("__"):
        raise SchemaInvalid(f"column {name!r}: names that start with '__' belong to Penstock")
    if name.casefold() in ENVELOPE.names:
        raise SchemaInvalid(f"column {name!r}: this name belongs to the envelope of every message")
