"""Partition values: the value of the partition column, which all rows of a partition share."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.model.errors import PartitionInvalid

Plain: TypeAlias = bool | int | str | bytes

INTEGER_DIGITS_MAX: Final = 20
"""Digits of the largest 64-bit integer; Python refuses to parse thousands of digits."""

_INTEGERS: Final[dict[str, tuple[pa.DataType, int, int]]] = {
    **{
        f"Int{b}": (getattr(pa, f"int{b}")(), -(1 << b - 1), (1 << b - 1) - 1)
        for b in (8, 16, 32, 64)
    },
    **{f"UInt{b}": (getattr(pa, f"uint{b}")(), 0, (1 << b) - 1) for b in (8, 16, 32, 64)},
}
_TYPES: Final[dict[str, pa.DataType]] = {
    **{kind: facts[0] for kind, facts in _INTEGERS.items()},
    "String": pa.string(),
    "Bytes": pa.binary(),
    "Boolean": pa.bool_(),
}
_KINDS: Final = {type_: kind for kind, type_ in _TYPES.items()}


class PartitionValue(NamedTuple):
    """A value with its kind: `Int64` 7 and `UInt64` 7 belong to different partitions."""

    kind: str
    value: Plain

    def __str__(self) -> str:
        """The plain value, for display; bytes are base64."""
        if isinstance(self.value, bytes):
            return base64.b64encode(self.value).decode()
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        return str(self.value)

    @property
    def type(self) -> pa.DataType:
        return _TYPES[self.kind]

    def to_json(self) -> dict[str, object]:
        """The tagged form, such as {"Int64": 7}."""
        return {self.kind: list(self.value) if isinstance(self.value, bytes) else self.value}


def kind_of(type_: pa.DataType) -> str | None:
    """The kind of the values of a column type; None if it cannot be a partition column."""
    return _KINDS.get(type_)


def of_plain(type_: pa.DataType, value: object) -> PartitionValue:
    """The partition value for a value that was read from a column of this type."""
    kind = _KINDS[type_]
    return of_json({kind: list(value) if isinstance(value, bytes) else value})


def of_json(tagged: object) -> PartitionValue:
    """Parse the tagged form, such as {"Int64": 7}; raises PartitionInvalid."""
    if not isinstance(tagged, dict) or len(tagged) != 1:
        raise PartitionInvalid(
            f"partition value {shown(tagged)} must be an object with one kind, "
            f'such as {{"Int64": 7}}'
        )
    ((kind, value),) = tagged.items()
    if kind not in _TYPES:
        raise PartitionInvalid(
            f"partition value has the unknown kind {kind!r}; known: {', '.join(_TYPES)}"
        )
    plain = _plain(kind, value)
    if plain is None:
        raise PartitionInvalid(f"partition value {shown(value)} is not of the kind {kind}")
    return PartitionValue(kind, plain)


def of_text(type_: pa.DataType, text: str) -> PartitionValue:
    """Parse the text that `str` returns, for a column of this type; raises PartitionInvalid."""
    kind = _KINDS[type_]
    value: object = text
    if kind in _INTEGERS:
        digits = text.removeprefix("-")
        read = digits.isdecimal() and digits.isascii() and len(digits) <= INTEGER_DIGITS_MAX
        value = int(text) if read else None
    elif kind == "Boolean":
        value = {"true": True, "false": False}.get(text.lower())
    elif kind == "Bytes":
        try:
            value = list(base64.b64decode(text, validate=True))
        except binascii.Error:
            value = None
    plain = _plain(kind, value)
    if plain is None:
        raise PartitionInvalid(f"partition value {text[:200]!r} is not of the kind {kind}")
    return PartitionValue(kind, plain)


def shown(value: object) -> str:
    """A value of a request as JSON, shortened, for an error message."""
    return json.dumps(value, default=str)[:200]


def _plain(kind: str, value: object) -> Plain | None:
    if kind == "Boolean":
        return value if isinstance(value, bool) else None
    if kind == "String":
        return value if isinstance(value, str) else None
    if kind == "Bytes":
        octets = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 255
            for item in value
        )
        return bytes(value) if octets and isinstance(value, list) else None
    _, lowest, highest = _INTEGERS[kind]
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest:
        return value
    return None
