"""The stored records of tenants, namespaces, topics and partition values, as readable JSON."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from penstock.metadata.interface import MetadataEntry, Revision
from penstock.model import names, partition_value, schema
from penstock.model.errors import FormatError, PenstockError, VersionUnknown
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import (
    Durability,
    NamespaceInfo,
    TenantInfo,
    Topic,
    TopicSpec,
)
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds

RECORD_VERSION: Final = 1


class TopicState(Enum):
    """Whether a topic exists or is being deleted."""

    ACTIVE = "active"
    DELETING = "deleting"


class StoredTopic(NamedTuple):
    """A topic, its state and the revision of its record."""

    topic: Topic
    state: TopicState
    revision: Revision


class TenantRecord(msgspec.Struct, frozen=True):
    """The record of a tenant."""

    tenant: str
    created_us: int
    version: int = RECORD_VERSION


class NamespaceRecord(msgspec.Struct, frozen=True):
    """The record of a namespace."""

    name: str
    """`tenant/namespace`."""
    store: str
    created_us: int
    version: int = RECORD_VERSION


class FieldRecord(msgspec.Struct, frozen=True):
    """A column of a typed topic."""

    name: str
    type: str
    nullable: bool


class RetentionRecord(msgspec.Struct, frozen=True):
    """The retention limits of a topic; null is no limit."""

    age_seconds_max: float | None = None
    bytes_max: int | None = None
    messages_max: int | None = None


class TopicRecord(msgspec.Struct, frozen=True):
    """The record of a topic."""

    name: str
    """`tenant/namespace/id`."""
    fields: list[FieldRecord] | None
    partition_column: str | None
    durability: str
    retention: RetentionRecord
    unique: str
    created_us: int
    state: str
    first_offset: int = 0
    version: int = RECORD_VERSION


class PartitionRecord(msgspec.Struct, frozen=True):
    """The record of a partition's value, in its tagged form."""

    value: dict[str, object]
    version: int = RECORD_VERSION


class _Version(msgspec.Struct):
    version: int


_T = TypeVar("_T")


def encode_tenant(info: TenantInfo) -> bytes:
    return msgspec.json.encode(TenantRecord(info.tenant, info.created_us))


def decode_tenant(entry: MetadataEntry) -> TenantInfo:
    record = _decode(entry, TenantRecord)
    return TenantInfo(record.tenant, Microseconds(record.created_us))


def encode_namespace(info: NamespaceInfo) -> bytes:
    return msgspec.json.encode(NamespaceRecord(str(info.name), info.store, info.created_us))


def decode_namespace(entry: MetadataEntry) -> NamespaceInfo:
    record = _decode(entry, NamespaceRecord)
    name = _read(entry, lambda: names.namespace(record.name))
    return NamespaceInfo(name, Microseconds(record.created_us), record.store)


def encode_topic(topic: Topic, state: TopicState) -> bytes:
    spec = topic.spec
    fields = None
    if spec.schema is not None:
        fields = [FieldRecord(f.name, schema.type_name(f.type), f.nullable) for f in spec.schema]
    record = TopicRecord(
        name=str(spec.name),
        fields=fields,
        partition_column=spec.partition_column,
        durability=spec.durability.value,
        retention=RetentionRecord(*astuple(spec.retention)),
        first_offset=spec.first_offset,
        unique=topic.unique,
        created_us=topic.created_us,
        state=state.value,
    )
    return msgspec.json.encode(record)


def decode_topic(entry: MetadataEntry) -> StoredTopic:
    record = _decode(entry, TopicRecord)
    return _read(entry, lambda: _stored_topic(record, entry.mod_revision))


def encode_partition(value: PartitionValue) -> bytes:
    return msgspec.json.encode(PartitionRecord(value.to_json()))


def decode_partition(entry: MetadataEntry) -> PartitionValue:
    record = _decode(entry, PartitionRecord)
    return _read(entry, lambda: partition_value.of_json(record.value))


def _stored_topic(record: TopicRecord, revision: Revision) -> StoredTopic:
    fields = None
    if record.fields is not None:
        fields = schema.schema(schema.column(f.name, f.type, f.nullable) for f in record.fields)
    spec = TopicSpec(
        names.topic(record.name),
        fields,
        record.partition_column,
        Durability(record.durability),
        TopicRetention(*astuple(record.retention)),
        record.first_offset,
    )
    topic = Topic(spec, record.unique, Microseconds(record.created_us))
    return StoredTopic(topic, TopicState(record.state), revision)


def _decode(entry: MetadataEntry, kind: type[_T]) -> _T:
    """Decode a record; raises FormatError, and VersionUnknown for any later version."""
    version = _read(entry, lambda: msgspec.json.decode(entry.value, type=_Version)).version
    if version > RECORD_VERSION:
        raise VersionUnknown(f"the record {entry.key}", version, RECORD_VERSION)
    return _read(entry, lambda: msgspec.json.decode(entry.value, type=kind))


def _read(entry: MetadataEntry, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (msgspec.DecodeError, PenstockError, ValueError) as error:
        raise FormatError(f"the record {entry.key} is damaged: {error}") from error
