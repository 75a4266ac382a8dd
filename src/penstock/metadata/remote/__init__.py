"""The catalog and the offsets of another broker, over gRPC.

`RemoteAdmin` and `RemoteOffsets` implement the interfaces of `penstock.metadata.catalog` by calls
over one connection, a `RemoteCalls`. The gRPC server shares with them the conversion of messages
(`to_message`, `from_message` and its kin) and of errors (`status_of`).
"""

from penstock.metadata.remote.admin import RemoteAdmin
from penstock.metadata.remote.calls import RemoteCalls
from penstock.metadata.remote.errors import CallStatus, status_of
from penstock.metadata.remote.offsets import RemoteOffsets
from penstock.metadata.remote.values import (
    from_message,
    read_offset,
    read_page,
    read_partition_value,
    read_time,
    to_location,
    to_message,
    to_time,
)

__all__ = [
    "CallStatus",
    "RemoteAdmin",
    "RemoteCalls",
    "RemoteOffsets",
    "from_message",
    "read_offset",
    "read_page",
    "read_partition_value",
    "read_time",
    "status_of",
    "to_location",
    "to_message",
    "to_time",
]
