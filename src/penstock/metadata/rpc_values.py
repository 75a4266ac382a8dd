"""What travels over gRPC, as the values the rest of Penstock uses, and back.

The one place that knows both; the door and the remote clients share it. Reading a message that
somebody sent raises NameInvalid, SchemaInvalid, PartitionInvalid or FetchInvalid.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from penstock.formats.rpc import message
from penstock.metadata.admin import PAGE_SIZE_DEFAULT, PageRequest
from penstock.metadata.offsets import AtOwner, InObject, Location, PartitionState
from penstock.model import names, partition_value, schema
from penstock.model.durability import Durability
from penstock.model.errors import FetchInvalid, SchemaInvalid
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import NamespaceInfo, Retention, TenantInfo, Topic, TopicSpec
from penstock.model.units import Microseconds, Offset, PartitionId

_SECOND_US: Final = 1_000_000
_INTEGERS: Final = [f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)]
_FIELDS: Final = {
    kind: f"{kind.lower()}_value" for kind in (*_INTEGERS, "String", "Bytes", "Boolean")
}
_KINDS: Final = {field: kind for kind, field in _FIELDS.items()}


def to_time(moment: Microseconds) -> Any:
    seconds, rest = divmod(moment, _SECOND_US)
    return message("google.protobuf.Timestamp", seconds=seconds, nanos=rest * 1000)


def of_time(time: Any) -> Microseconds:
    return Microseconds(time.seconds * _SECOND_US + time.nanos // 1000)


def of_page(request: Any) -> PageRequest:
    return PageRequest(request.page_size or PAGE_SIZE_DEFAULT, request.page_token)


def to_tenant(info: TenantInfo) -> Any:
    return message("Tenant", name=f"tenants/{info.tenant}", create_time=to_time(info.created_us))


def of_tenant(sent: Any) -> TenantInfo:
    return TenantInfo(names.tenant(sent.name), of_time(sent.create_time))


def to_namespace(info: NamespaceInfo) -> Any:
    return message(
        "Namespace",
        name=info.name.full,
        store=info.store,
        create_time=to_time(info.created_us),
    )


def of_namespace(sent: Any) -> NamespaceInfo:
    return NamespaceInfo(names.namespace(sent.name), of_time(sent.create_time), sent.store)


def to_topic(topic: Topic) -> Any:
    sent = to_spec(topic.spec)
    sent.uid = topic.unique
    sent.create_time.CopyFrom(to_time(topic.created_us))
    return sent


def of_topic(sent: Any) -> Topic:
    spec = of_spec(sent, names.topic(sent.name))
    return Topic(spec, sent.uid, of_time(sent.create_time))


def to_spec(spec: TopicSpec) -> Any:
    """A topic as it is asked for."""
    limits = spec.retention
    return message(
        "Topic",
        name=spec.name.full,
        schema=b"" if spec.schema is None else spec.schema.serialize().to_pybytes(),
        partition_column=spec.partition_column,
        durability=spec.durability.value,
        retention=message(
            "Retention",
            max_age_seconds=limits.age_seconds_max,
            max_bytes=limits.bytes_max,
            max_messages=limits.messages_max,
        ),
    )


def of_spec(sent: Any, name: names.TopicName) -> TopicSpec:
    return TopicSpec(
        name,
        _of_schema(sent.schema) if sent.schema else None,
        sent.partition_column or None,
        _of_durability(sent.durability),
        _of_retention(sent.retention),
    )


def to_value(value: PartitionValue | None) -> Any:
    """None stays None: the field is left out."""
    if value is None:
        return None
    return message("PartitionValue", **{_FIELDS[value.kind]: value.value})


def of_value(sent: Any) -> PartitionValue | None:
    """The field `partition_value` of a message."""
    if not sent.HasField("partition_value"):
        return None
    field = sent.partition_value.WhichOneof("value")
    plain = None if field is None else getattr(sent.partition_value, field)
    return partition_value.of_json(
        {_KINDS.get(field, ""): list(plain) if isinstance(plain, bytes) else plain}
    )


def of_offset(offset: int) -> Offset:
    if offset < 0:
        raise FetchInvalid(f"offset {offset} must be at least 0")
    return Offset(offset)


def to_location(location: Location | None) -> Any:
    if location is None:
        return message("OffsetLocationResponse")
    extent = {
        "partition_id": location.partition,
        "first_offset": location.first,
        "next_offset": location.next,
    }
    if isinstance(location, AtOwner):
        owner = message("AtOwner", **extent, address=location.address)
        return message("OffsetLocationResponse", at_owner=owner)
    found = message("InObject", **extent, entry=location.entry, deleted=location.deleted)
    return message("OffsetLocationResponse", in_object=found)


def of_location(sent: Any) -> Location | None:
    kind = sent.WhichOneof("location")
    if kind is None:
        return None
    found = getattr(sent, kind)
    extent = PartitionId(found.partition_id), Offset(found.first_offset), Offset(found.next_offset)
    if kind == "at_owner":
        return AtOwner(*extent, found.address)
    return InObject(*extent, found.entry, found.deleted)


def to_partition(state: PartitionState) -> Any:
    return message(
        "Partition",
        partition_value=to_value(state.value),
        partition_id=state.partition,
        start_offset=state.start,
        next_offset=state.next,
        messages=state.messages,
    )


def of_partition(sent: Any) -> PartitionState:
    return PartitionState(
        of_value(sent),
        PartitionId(sent.partition_id),
        Offset(sent.start_offset),
        Offset(sent.next_offset),
        sent.messages,
    )


def _of_schema(data: bytes) -> pa.Schema:
    try:
        columns = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise SchemaInvalid(f"the schema is not an Arrow IPC schema: {error}") from None
    known = set(schema.TYPES.values())
    for column in columns:
        if column.type not in known:
            raise SchemaInvalid(
                f"column {column.name!r} has the type {column.type}; known: {schema.known()}"
            )
    return schema.schema(pa.field(c.name, c.type, c.nullable) for c in columns)


def _of_durability(text: str) -> Durability:
    known = {level.value: level for level in Durability} | {"": Durability.FSYNC}
    if text not in known:
        levels = ", ".join(level.value for level in Durability)
        raise SchemaInvalid(f"durability {text!r} is unknown; known: {levels}")
    return known[text]


def _of_retention(sent: Any) -> Retention:
    limits = (sent.max_age_seconds, sent.max_bytes, sent.max_messages)
    # Written so that a NaN is refused too.
    if not all(limit >= 0 for limit in limits):
        raise SchemaInvalid("the limits of a topic's retention must be at least 0, which is none")
    return Retention(*(limit or None for limit in limits))
