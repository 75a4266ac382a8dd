"""Converts between gRPC messages and the values that the rest of Penstock uses.

The gRPC server and the remote clients share one table of fields. Reading a message raises
NameInvalid, SchemaInvalid, PartitionInvalid or FetchInvalid if a field breaks a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from penstock.formats.rpc import MESSAGES, message
from penstock.metadata.catalog.interface import (
    PAGE_SIZE_DEFAULT,
    AtOwner,
    InObject,
    Location,
    PageQuery,
    PartitionState,
)
from penstock.model import names, partition_value, schema
from penstock.model.errors import FetchInvalid, SchemaInvalid
from penstock.model.limits import RETENTION_SECONDS_MAX
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Durability, NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds, Offset

_SECOND_US: Final = 1_000_000
_TIME_SECONDS_MIN: Final = -62_135_596_800
_TIME_SECONDS_MAX: Final = 253_402_300_799
"""The years 1 to 9999."""
_INTEGERS: Final = [f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)]
_VALUE_FIELDS: Final = {
    kind: f"{kind.lower()}_value" for kind in (*_INTEGERS, "String", "Bytes", "Boolean")
}
_VALUE_KINDS: Final = {field: kind for kind, field in _VALUE_FIELDS.items()}

_V = TypeVar("_V")


def to_message(value: Any) -> Any:
    """The message of a value."""
    form = _FORMS[type(value)]
    return MESSAGES[form.message](**_fields(value, form))


def from_message(kind: type[_V], sent: Any, **attributes: Any) -> _V:
    """The value that a message holds; `attributes` replace what it says."""
    for field in _FORMS[kind].fields:
        if field.attribute not in attributes:
            part = getattr(sent, field.name) if field.name else sent
            attributes[field.attribute] = field.read(part)
    return kind(**attributes)


def to_time(time_us: Microseconds) -> Any:
    seconds, microseconds = divmod(time_us, _SECOND_US)
    return message("google.protobuf.Timestamp", seconds=seconds, nanos=microseconds * 1000)


def read_time(time: Any) -> Microseconds:
    """Raises FetchInvalid for a time that google.protobuf.Timestamp does not allow."""
    if not (_TIME_SECONDS_MIN <= time.seconds <= _TIME_SECONDS_MAX and 0 <= time.nanos < 10**9):
        raise FetchInvalid(f"a time of {time.seconds} s and {time.nanos} ns is out of range")
    return Microseconds(time.seconds * _SECOND_US + time.nanos // 1000)


def read_page(request: Any) -> PageQuery:
    """Which page of a list a request is for."""
    return PageQuery(request.page_size or PAGE_SIZE_DEFAULT, request.page_token)


def read_offset(offset: int) -> Offset:
    """Raises FetchInvalid for a negative offset."""
    if offset < 0:
        raise FetchInvalid(f"offset {offset} must be at least 0")
    return Offset(offset)


def to_partition_value(value: PartitionValue | None) -> Any:
    """The message of a partition value; None stays None, and the field is left out."""
    if value is None:
        return None
    return message("PartitionValue", **{_VALUE_FIELDS[value.kind]: value.value})


def read_partition_value(sent: Any) -> PartitionValue | None:
    """The field `partition_value` of a message; None if it is left out."""
    if not sent.HasField("partition_value"):
        return None
    field = sent.partition_value.WhichOneof("value")
    plain = None if field is None else getattr(sent.partition_value, field)
    if isinstance(plain, bytes):
        return PartitionValue("Bytes", plain)
    return partition_value.of_json({_VALUE_KINDS.get(field, ""): plain})


def to_location(location: Location | None) -> Any:
    """The response that names a location, or none."""
    if location is None:
        return message("OffsetLocationResponse")
    field = "at_owner" if isinstance(location, AtOwner) else "in_object"
    return message("OffsetLocationResponse", **{field: to_message(location)})


def read_location(sent: Any) -> Location | None:
    """The location that a response names; None if the offset does not exist yet."""
    match sent.WhichOneof("location"):
        case "at_owner":
            return from_message(AtOwner, sent.at_owner)
        case "in_object":
            return from_message(InObject, sent.in_object)
    return None


# -- the fields of each message


class _Field(NamedTuple):
    """A field of a message, and the attribute of the value that it holds."""

    name: str
    """Empty: `convert` returns fields of the message, and `read` takes the whole message."""
    attribute: str
    convert: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda field: field


class _Form(NamedTuple):
    message: str
    fields: tuple[_Field, ...]


def _fields(value: Any, form: _Form) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in form.fields:
        part = field.convert(getattr(value, field.attribute))
        fields |= {field.name: part} if field.name else part
    return fields


def _schema_bytes(columns: pa.Schema | None) -> bytes:
    return b"" if columns is None else columns.serialize().to_pybytes()


def _read_schema(data: bytes) -> pa.Schema | None:
    if not data:
        return None
    try:
        columns = pa.ipc.read_schema(pa.py_buffer(data))
        _ = columns.names
    except UnicodeDecodeError:
        raise SchemaInvalid("the name of a column is not UTF-8") from None
    except (pa.ArrowException, OSError) as error:
        raise SchemaInvalid(f"the schema is not an Arrow IPC schema: {error}") from None
    known = set(schema.TYPES.values())
    for column in columns:
        if column.type not in known:
            raise SchemaInvalid(
                f"column {column.name!r} has the type {column.type}; known: {schema.known()}"
            )
    return schema.schema(pa.field(c.name, c.type, c.nullable) for c in columns)


def _read_durability(text: str) -> Durability:
    known = {level.value: level for level in Durability} | {"": Durability.FSYNC}
    if text not in known:
        levels = ", ".join(level.value for level in Durability)
        raise SchemaInvalid(f"durability {text!r} is unknown; known: {levels}")
    return known[text]


def _read_retention(sent: Any) -> TopicRetention:
    limits = (sent.max_age_seconds, sent.max_bytes, sent.max_messages)
    # Written so that a NaN is refused too.
    if not all(limit >= 0 for limit in limits):
        raise SchemaInvalid("the limits of a topic's retention must be at least 0, which is none")
    if sent.max_age_seconds > RETENTION_SECONDS_MAX:
        raise SchemaInvalid(f"a topic's max_age_seconds must be at most {RETENTION_SECONDS_MAX}")
    return TopicRetention(*(limit or None for limit in limits))


_CREATED: Final = _Field("create_time", "created_us", to_time, read_time)
_EXTENT: Final = (
    _Field("partition_id", "partition"),
    _Field("first_offset", "first"),
    _Field("next_offset", "next"),
)
_SPEC: Final = _Form(
    "Topic",
    (
        _Field("name", "name", lambda name: name.full, names.topic),
        _Field("schema", "schema", _schema_bytes, _read_schema),
        _Field("partition_column", "partition_column", read=lambda column: column or None),
        _Field("durability", "durability", lambda level: level.value, _read_durability),
        _Field("retention", "retention", msgspec.structs.asdict, _read_retention),
    ),
)
_FORMS: Final[dict[type, _Form]] = {
    TenantInfo: _Form(
        "Tenant", (_Field("name", "tenant", "tenants/{}".format, names.tenant), _CREATED)
    ),
    NamespaceInfo: _Form(
        "Namespace",
        (
            _Field("name", "name", lambda name: name.full, names.namespace),
            _CREATED,
            _Field("store", "store"),
        ),
    ),
    TopicSpec: _SPEC,
    Topic: _Form(
        "Topic",
        (
            _Field(
                "",
                "spec",
                lambda spec: _fields(spec, _SPEC),
                lambda sent: from_message(TopicSpec, sent),
            ),
            _Field("uid", "unique"),
            _CREATED,
        ),
    ),
    PartitionState: _Form(
        "Partition",
        (
            _Field(
                "",
                "value",
                lambda value: {"partition_value": to_partition_value(value)},
                read_partition_value,
            ),
            _Field("partition_id", "partition"),
            _Field("start_offset", "start"),
            _Field("next_offset", "next"),
            _Field("messages", "messages"),
        ),
    ),
    InObject: _Form("InObject", (*_EXTENT, _Field("entry", "entry"), _Field("deleted", "deleted"))),
    AtOwner: _Form("AtOwner", (*_EXTENT, _Field("address", "address"))),
}
