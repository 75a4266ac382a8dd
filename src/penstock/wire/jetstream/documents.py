"""The replies of the JetStream API, as JSON: `type` first, keys in the order of nats-server.

Times are texts (see `times`); configurations are the results of `shown` or `listed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.levels import API_LEVEL
from penstock.wire.jetstream.stream_config import SubjectTransform
from penstock.wire.jetstream.times import ZERO_TIME

NAMES_LIMIT: Final = 1024
"""The most names in one reply."""
LIST_LIMIT: Final = 256
"""The most infos in one reply."""
SUBJECTS_LIMIT: Final = 100_000
"""The most subjects in one stream info."""

_API: Final = "io.nats.jetstream.api.v1."
_ADVISORY: Final = "io.nats.jetstream.advisory.v1."
_NO_PAGE: Final = {"total": 0, "offset": 0, "limit": 0}
_BESIDE_ERROR: Final[dict[str, dict[str, Any]]] = {
    "stream_info_response": _NO_PAGE,
    "stream_names_response": _NO_PAGE | {"streams": None},
    "stream_list_response": _NO_PAGE | {"streams": []},
    "consumer_names_response": _NO_PAGE | {"consumers": []},
    "consumer_list_response": _NO_PAGE | {"consumers": []},
    "stream_purge_response": {"purged": 0},
    "consumer_pause_response": {"paused": False, "pause_until": ZERO_TIME},
    "consumer_reset_response": {"reset_seq": 0},
}


class StreamState(Struct):
    """The messages of a stream, in numbers."""

    messages: int
    bytes: int
    first_seq: int
    first_ts: str
    last_seq: int
    last_ts: str
    num_subjects: int | UnsetType = UNSET
    subjects: dict[str, int] | UnsetType = UNSET
    num_deleted: int | UnsetType = UNSET
    deleted: list[int] | UnsetType = UNSET
    consumer_count: int = 0


class ClusterInfo(Struct):
    """The server of a stream."""

    leader: str


class SourceInfo(Struct, kw_only=True):
    """The progress of a mirror, or of one source of a stream."""

    name: str
    lag: int
    seq: int | UnsetType = UNSET
    """The sequence of the last message copied; for sources only."""
    active: int
    """Nanoseconds since the last message from the origin; -1 means never."""
    error: dict[str, Any] | UnsetType = UNSET
    filter_subject: str | UnsetType = UNSET
    subject_transforms: tuple[SubjectTransform, ...] | UnsetType = UNSET


class StreamInfo(Struct):
    """The STREAM.INFO document."""

    config: dict[str, Any]
    created: str
    state: StreamState
    cluster: ClusterInfo | UnsetType = UNSET
    mirror: SourceInfo | UnsetType = UNSET
    sources: list[SourceInfo] | UnsetType = UNSET
    ts: str = ZERO_TIME


class SequenceInfo(Struct):
    """A consumer sequence and a stream sequence."""

    consumer_seq: int
    stream_seq: int
    last_active: str | UnsetType = UNSET


class PriorityGroup(Struct):
    """A priority group of a consumer, and its pinned client."""

    group: str
    pinned_client_id: str | UnsetType = UNSET
    pinned_ts: str | UnsetType = UNSET


class ConsumerInfo(Struct):
    """The CONSUMER.INFO document."""

    stream_name: str
    name: str
    created: str
    config: dict[str, Any]
    delivered: SequenceInfo
    ack_floor: SequenceInfo
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_pending: int
    push_bound: bool | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    pause_remaining: int | UnsetType = UNSET
    ts: str = ZERO_TIME
    priority_groups: list[PriorityGroup] | UnsetType = UNSET


class Usage(Struct):
    """The usage of an account."""

    memory: int
    storage: int
    streams: int
    consumers: int
    requests: int
    errors: int


class StoredMessage(Struct, omit_defaults=True):
    """A stored message; headers and data become base64."""

    subject: str
    seq: int
    hdrs: bytes = b""
    data: bytes = b""
    time: str = ""


def reply(response: str, *parts: Struct | Mapping[str, Any]) -> bytes:
    """A reply of this type: the fields of all parts in their order."""
    document: dict[str, Any] = {"type": _API + response}
    for part in parts:
        document |= msgspec.to_builtins(part) if isinstance(part, Struct) else part
    return msgspec.json.encode(document)


def error_reply(response: str, error: ApiError) -> bytes:
    """An error reply, with the fields that clients expect beside the error."""
    return reply(response, {"error": error.document()}, _BESIDE_ERROR.get(response, {}))


def success(response: str) -> bytes:
    return reply(response, {"success": True})


def stream_info(info: StreamInfo, subjects: int = 0, offset: int = 0, limit: int = 0) -> bytes:
    """Reply to STREAM.INFO; `offset` and `limit` page the subjects in the state."""
    page = {"total": subjects, "offset": offset, "limit": limit}
    return reply("stream_info_response", page, info)


def names(kind: str, found: Sequence[str], offset: int) -> bytes:
    """Reply to NAMES: the names from `offset` on; `kind` is `stream` or `consumer`."""
    start = min(max(offset, 0), len(found))
    page: list[str] | None = list(found[start : start + NAMES_LIMIT])
    if not page and kind == "stream":
        page = None
    fields = {"total": len(found), "offset": start, "limit": NAMES_LIMIT, f"{kind}s": page}
    return reply(f"{kind}_names_response", fields)


def infos(
    kind: str, page: Sequence[StreamInfo] | Sequence[ConsumerInfo], total: int, offset: int
) -> bytes:
    """Reply to LIST; `page` are the infos from `offset` on, at most LIST_LIMIT."""
    fields = {"total": total, "offset": offset, "limit": LIST_LIMIT, f"{kind}s": page}
    return reply(f"{kind}_list_response", fields)


def account_info(usage: Usage) -> bytes:
    """Reply to INFO; an account has no limits."""
    unlimited = dict.fromkeys(
        (
            "max_memory",
            "max_storage",
            "max_streams",
            "max_consumers",
            "max_ack_pending",
            "memory_max_stream_bytes",
            "storage_max_stream_bytes",
        ),
        -1,
    )
    fields = {
        "memory": usage.memory,
        "storage": usage.storage,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "streams": usage.streams,
        "consumers": usage.consumers,
        "limits": unlimited | {"max_bytes_required": False},
        "api": {"level": API_LEVEL, "total": usage.requests, "errors": usage.errors},
    }
    return reply("account_info_response", fields)


def advisory(kind: str, number: str, timestamp: str, **fields: Any) -> bytes:
    """An advisory, such as `max_deliver`, with its id."""
    event = {"type": _ADVISORY + kind, "id": number, "timestamp": timestamp, **fields}
    return msgspec.json.encode(event)
