"""The gRPC services of a broker: their messages and calls, as docs/penstock.proto has them.

How a field is written is told in formats/protobuf.py.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.formats import protobuf
from penstock.formats.protobuf import Method

PACKAGE: Final = "penstock.v1"
EMPTY: Final = "google.protobuf.Empty"
_TIME: Final = "google.protobuf.Timestamp"
_PAGE: Final = "page_size:{}:int32 page_token:{}:string"

MESSAGES: Final = {
    "Tenant": f"name:1:string create_time:2:{_TIME}",
    "CreateTenantRequest": "tenant_id:1:string tenant:2:Tenant",
    "GetTenantRequest": "name:1:string",
    "ListTenantsRequest": _PAGE.format(1, 2),
    "ListTenantsResponse": "tenants:1:*Tenant next_page_token:2:string",
    "DeleteTenantRequest": "name:1:string",
    "Namespace": f"name:1:string store:2:string create_time:3:{_TIME}",
    "CreateNamespaceRequest": "parent:1:string namespace_id:2:string namespace:3:Namespace",
    "GetNamespaceRequest": "name:1:string",
    "ListNamespacesRequest": "parent:1:string " + _PAGE.format(2, 3),
    "ListNamespacesResponse": "namespaces:1:*Namespace next_page_token:2:string",
    "DeleteNamespaceRequest": "name:1:string",
    "Retention": "max_age_seconds:1:double max_bytes:2:int64 max_messages:3:int64",
    "Topic": "name:1:string schema:2:bytes partition_column:3:string durability:4:string"
    f" retention:5:Retention uid:6:string create_time:7:{_TIME}",
    "CreateTopicRequest": "parent:1:string topic_id:2:string topic:3:Topic",
    "GetTopicRequest": "name:1:string",
    "ListTopicsRequest": "parent:1:string " + _PAGE.format(2, 3),
    "ListTopicsResponse": "topics:1:*Topic next_page_token:2:string",
    "DeleteTopicRequest": "name:1:string",
    "PartitionValue": "value/int8_value:1:int32 value/int16_value:2:int32 value/int32_value:3:int32"
    " value/int64_value:4:int64 value/uint8_value:5:uint32 value/uint16_value:6:uint32"
    " value/uint32_value:7:uint32 value/uint64_value:8:uint64 value/string_value:9:string"
    " value/bytes_value:10:bytes value/boolean_value:11:bool",
    "OffsetLocationRequest": "topic:1:string partition_value:2:PartitionValue offset:3:int64"
    f" deadline:4:{_TIME}",
    "OffsetLocationResponse": "location/in_object:1:InObject location/at_owner:2:AtOwner",
    "InObject": "partition_id:1:int32 first_offset:2:int64 next_offset:3:int64 entry:4:bytes"
    " deleted:5:bytes",
    "AtOwner": "partition_id:1:int32 first_offset:2:int64 next_offset:3:int64 address:4:string",
    "GetPartitionRequest": "topic:1:string partition_value:2:PartitionValue",
    "ListPartitionsRequest": "parent:1:string " + _PAGE.format(2, 3),
    "ListPartitionsResponse": "partitions:1:*Partition next_page_token:2:string",
    "Partition": "partition_value:1:PartitionValue partition_id:2:int32 start_offset:3:int64"
    " next_offset:4:int64 messages:5:int64",
    "ErrorFacts": "error:1:string facts:2:*string",
}

SERVICES: Final = {
    "Admin": {
        "CreateTenant": "Tenant",
        "GetTenant": "Tenant",
        "ListTenants": "ListTenantsResponse",
        "DeleteTenant": EMPTY,
        "CreateNamespace": "Namespace",
        "GetNamespace": "Namespace",
        "ListNamespaces": "ListNamespacesResponse",
        "DeleteNamespace": EMPTY,
        "CreateTopic": "Topic",
        "GetTopic": "Topic",
        "ListTopics": "ListTopicsResponse",
        "DeleteTopic": EMPTY,
    },
    "OffsetRegistry": {
        "OffsetLocation": "OffsetLocationResponse",
        "GetPartition": "Partition",
        "ListPartitions": "ListPartitionsResponse",
    },
}
"""By service, its calls and what each answers with; a request is named after its call."""

ERROR_FACTS: Final = "penstock-error-bin"
"""The trailing metadata of a call that failed: an `ErrorFacts`."""

_CLASSES: Final = protobuf.classes(PACKAGE, MESSAGES)

METHODS: Final = {
    name: Method(f"/{PACKAGE}.{service}/{name}", _CLASSES[f"{name}Request"], _CLASSES[response])
    for service, calls in SERVICES.items()
    for name, response in calls.items()
}
"""Every call by its name."""


def message(kind: str, /, **fields: Any) -> Any:
    """A new message; a field that is given None is left unset."""
    return _CLASSES[kind](**fields)


def parse(kind: str, data: bytes) -> Any:
    """Read a message; raises google.protobuf's DecodeError."""
    return _CLASSES[kind].FromString(data)
