"""The part of etcd's v3 protocol that Penstock speaks, described here and built at run time.

Names and numbers are etcd's (rpc.proto, kv.proto); fields we neither send nor read are left out,
and so is generated code, which would tie us to a version of protobuf. A field is written
`name:number:type`; `*` before a type means repeated, `union/` before a name a member of that oneof,
which is sent even when it is 0. Enumerations travel as int32 does.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MESSAGES: Final = {
    "ResponseHeader": "revision:3:int64",
    "KeyValue": "key:1:bytes create_revision:2:int64 mod_revision:3:int64 version:4:int64"
    " value:5:bytes lease:6:int64",
    "RangeRequest": "key:1:bytes range_end:2:bytes limit:3:int64",
    "RangeResponse": "header:1:ResponseHeader kvs:2:*KeyValue more:3:bool",
    "PutRequest": "key:1:bytes value:2:bytes lease:3:int64",
    "PutResponse": "header:1:ResponseHeader",
    "DeleteRangeRequest": "key:1:bytes range_end:2:bytes",
    "DeleteRangeResponse": "header:1:ResponseHeader deleted:2:int64",
    "RequestOp": "request/request_put:2:PutRequest"
    " request/request_delete_range:3:DeleteRangeRequest",
    "Compare": "result:1:int32 target:2:int32 key:3:bytes target_union/version:4:int64"
    " target_union/create_revision:5:int64 target_union/mod_revision:6:int64"
    " target_union/value:7:bytes",
    "TxnRequest": "compare:1:*Compare success:2:*RequestOp",
    "TxnResponse": "header:1:ResponseHeader succeeded:2:bool",
    "LeaseGrantRequest": "TTL:1:int64",
    "LeaseGrantResponse": "ID:2:int64 TTL:3:int64 error:4:string",
    "LeaseRevokeRequest": "ID:1:int64",
    "LeaseRevokeResponse": "header:1:ResponseHeader",
    "LeaseKeepAliveRequest": "ID:1:int64",
    "LeaseKeepAliveResponse": "ID:2:int64 TTL:3:int64",
    "WatchCreateRequest": "key:1:bytes range_end:2:bytes start_revision:3:int64 fragment:8:bool",
    "WatchRequest": "request_union/create_request:1:WatchCreateRequest",
    "Event": "type:1:int32 kv:2:KeyValue",
    "WatchResponse": "header:1:ResponseHeader watch_id:2:int64 created:3:bool canceled:4:bool"
    " compact_revision:5:int64 cancel_reason:6:string fragment:7:bool events:11:*Event",
    "AuthenticateRequest": "name:1:string password:2:string",
    "AuthenticateResponse": "token:2:string",
}

COMPARE_EQUAL: Final = 0
COMPARE_TARGETS: Final = {"version": 0, "create_revision": 1, "mod_revision": 2, "value": 3}
EVENT_DELETE: Final = 1

_PACKAGE: Final = "penstock.etcd"
_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}


class Method(NamedTuple):
    """A call: its path, and the classes of its request and response."""

    path: str
    request: Any
    response: Any


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock/etcd.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            _add_field(message, *field.split(":"))
    return file


def _add_field(message: Any, name: str, number: str, kind: str) -> None:
    union, _, name = name.rpartition("/")
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    if union:
        if not message.oneof_decl:
            message.oneof_decl.add(name=union)
        field.oneof_index = 0


def _classes() -> dict[str, Any]:
    # A pool of our own: etcd's generated messages may live in the same process.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in MESSAGES
    }


_CLASSES: Final = _classes()


def message(kind: str, /, **fields: Any) -> Any:
    """A new message."""
    return _CLASSES[kind](**fields)


def _method(service: str, name: str) -> Method:
    path = f"/etcdserverpb.{service}/{name}"
    return Method(path, _CLASSES[f"{name}Request"], _CLASSES[f"{name}Response"])


RANGE: Final = _method("KV", "Range")
PUT: Final = _method("KV", "Put")
DELETE_RANGE: Final = _method("KV", "DeleteRange")
TXN: Final = _method("KV", "Txn")
LEASE_GRANT: Final = _method("Lease", "LeaseGrant")
LEASE_REVOKE: Final = _method("Lease", "LeaseRevoke")
LEASE_KEEP_ALIVE: Final = _method("Lease", "LeaseKeepAlive")
WATCH: Final = _method("Watch", "Watch")
AUTHENTICATE: Final = _method("Auth", "Authenticate")
