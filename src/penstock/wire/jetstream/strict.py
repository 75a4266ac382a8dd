"""Strict parsing of request bodies: unknown fields and wrong types are refused with the error texts
of nats-server. `null` is equal to a missing field, except for a choice.

The title of a field's `Meta` names its type in the error text. With a replacement field in braces
it is the whole text, which receives the JSON that was found instead.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from penstock.model.times import parse_time
from penstock.wire.jetstream.errors import BAD_JSON, ApiError

_T = TypeVar("_T", bound=Struct)

_MIN: Final = -(1 << 63)
_MAX: Final = (1 << 63) - 1
Int64 = Annotated[int, Meta(title="int64", ge=_MIN, le=_MAX)]
Int = Annotated[int, Meta(title="int", ge=_MIN, le=_MAX)]
Uint64 = Annotated[int, Meta(title="uint64", ge=0, le=_MAX)]
Duration = Annotated[int, Meta(title="time.Duration", ge=_MIN, le=_MAX)]
"""Nanoseconds."""
Time = Annotated[str, Meta(title="time.Time")]
"""RFC 3339; stored as the request has it."""

CHOICE: Final = "can not unmarshal {}"
_NAMES: Final[dict[Any, str]] = {str: "string", bool: "bool", int: "int", dict: "map[string]string"}
_NUMBERS: Final = frozenset({"int64", "int", "uint64", "time.Duration"})
_AT: Final = re.compile(r"`\$(.*)`\Z")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_BYTE: Final = re.compile(r"\(byte (\d+)\)\Z")
_EXPECTED_BY_CAUSE: Final = {
    "object keys must be strings": "beginning of object key string",
    "trailing comma in object": "beginning of object key string",
    "invalid character": "beginning of value",
}
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")


def read(body: bytes, kind: type[_T], type_name: str) -> _T:
    """Parse a document; an empty body or `null` is an empty document. Raises ApiError."""
    raw = _json(body) if body else None
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        raise BAD_JSON.error(
            f"json: cannot unmarshal {_shape(raw)} into Go value of type server.{type_name}"
        )
    cleaned = _cleaned(raw, kind)
    try:
        return msgspec.convert(cleaned, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), cleaned, kind, type_name) from None


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise BAD_JSON.error(_json_error_text(str(error), body)) from None
    except (UnicodeDecodeError, RecursionError):
        raise BAD_JSON.error("invalid UTF-8 or nested too deep") from None


def _json_error_text(text: str, body: bytes) -> str:
    """The error text for invalid JSON, as nats-server has it where possible."""
    if "truncated" in text:
        return "unexpected EOF"
    at = _BYTE.search(text)
    for cause, expected in _EXPECTED_BY_CAUSE.items():
        if at is not None and cause in text:
            offset = int(at[1])
            character = body[offset : offset + 1].decode("latin-1")
            return f"invalid character '{character}' looking for {expected} at offset {offset + 1}"
    return text


def _cleaned(raw: dict[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """The document without null fields, except choices. Times are checked here, because they remain
    texts.
    """
    hints = _hints(kind)
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        hint = hints.get(name)
        title = _title(hint)
        if value is None and "{" not in title:
            continue
        if title == "time.Time" and isinstance(value, str):
            _check_time(value)
        inner = _struct(hint)
        fields[name] = _cleaned(value, inner) if inner and isinstance(value, dict) else value
    return fields


def _check_time(text: str) -> None:
    try:
        parse_time(text)
    except ValueError as error:
        raise BAD_JSON.error(str(error)) from None


def _refusal(text: str, raw: Any, kind: type[Struct], type_name: str) -> ApiError:
    unknown = _UNKNOWN.match(text)
    if unknown is not None:
        return BAD_JSON.error(f'json: unknown field "{unknown[1]}"')
    at = _AT.search(text)
    path = [name or index for name, index in _STEP.findall(at[1])] if at else []
    value, title = _value_at(raw, kind, path)
    if "{" in title:
        written = msgspec.json.encode(value).decode()
        quoted = msgspec.json.encode(written).decode() if title == CHOICE else written
        return BAD_JSON.error(title.format(quoted))
    shape = f"number {value}" if _is_number(value) and title in _NUMBERS else _shape(value)
    field = "" if path and path[-1].isdigit() else "Go struct field "
    where = field + ".".join([type_name, *path])
    return BAD_JSON.error(f"json: cannot unmarshal {shape} into {where} of type {title}")


def _value_at(value: Any, hint: Any, path: list[str]) -> tuple[Any, str]:
    """The value at a path of the document, and the name of the expected type."""
    for step in path:
        inner = _struct(hint)
        if inner is not None:
            hint, value = _hints(inner)[step], value[step]
        elif isinstance(value, dict):
            hint, value = str, next(v for v in value.values() if not isinstance(v, str))
        else:
            hint = get_args(_plain(hint))[0]
            value = value[int(step)]
    return value, _title(hint) or _name(hint)


def _name(hint: Any) -> str:
    plain = _plain(hint)
    if get_origin(plain) is tuple:
        element = get_args(plain)[0]
        return f"[]{_title(element) or _name(element)}"
    inner = _struct(hint)
    if inner is not None:
        return f"server.{inner.__name__}"
    return _NAMES.get(get_origin(plain) or plain, "string")


def _shape(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if _is_number(value):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _title(hint: Any) -> str:
    for part in getattr(hint, "__metadata__", ()):
        if isinstance(part, Meta) and part.title:
            return part.title
    return ""


def _plain(hint: Any) -> Any:
    """The type hint without `Annotated` and without `| None`."""
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    if get_origin(hint) in (tuple, dict, Literal, None):
        return hint
    return next(part for part in get_args(hint) if part is not type(None))


def _struct(hint: Any) -> type[Struct] | None:
    plain = _plain(hint) if hint is not None else None
    return plain if isinstance(plain, type) and issubclass(plain, Struct) else None
