"""The part of etcd's v3 API that Penstock uses: the messages and calls that etcd.proto declares."""

from __future__ import annotations

from typing import Any, Final

from penstock.formats import protobuf

COMPARE_EQUAL: Final = 0
COMPARE_TARGETS: Final = {"version": 0, "create_revision": 1, "mod_revision": 2, "value": 3}
EVENT_DELETE: Final = 1

_MESSAGES, _METHODS = protobuf.load("penstock.metadata.etcd", "etcd.binpb")

RANGE: Final = _METHODS["Range"]
PUT: Final = _METHODS["Put"]
DELETE_RANGE: Final = _METHODS["DeleteRange"]
TXN: Final = _METHODS["Txn"]
LEASE_GRANT: Final = _METHODS["LeaseGrant"]
LEASE_REVOKE: Final = _METHODS["LeaseRevoke"]
LEASE_KEEP_ALIVE: Final = _METHODS["LeaseKeepAlive"]
WATCH: Final = _METHODS["Watch"]
AUTHENTICATE: Final = _METHODS["Authenticate"]


def message(kind: str, /, **fields: Any) -> Any:
    """A new message."""
    return _MESSAGES[kind](**fields)
