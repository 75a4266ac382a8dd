"""The part of etcd's v3 protocol that Penstock speaks, described here and built at run time.

Names and numbers are etcd's (rpc.proto, kv.proto); fields we neither send nor read are left out.
How a field is written is told in formats/protobuf.py.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.formats import protobuf
from penstock.formats.protobuf import Method

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

_CLASSES: Final = protobuf.classes("penstock.etcd", MESSAGES)


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
