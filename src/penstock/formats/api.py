"""The JSON of the HTTP door: what requests and replies hold, for the door and for clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

ARROW_STREAM = "application/vnd.apache.arrow.stream"
JSON = "application/json"

Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Limit = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class PushBatch(Struct, forbid_unknown_fields=True):
    """Rows of one partition of one topic."""

    topic: str
    data: Raw
    """A list of rows; what they look like depends on the topic."""
    partition: Any = None
    """The tagged partition value, such as {"Int64": 7}."""


class PushRequest(Struct, forbid_unknown_fields=True):
    """POST /v1/push."""

    namespace: str
    batches: list[PushBatch]


class PushSuccess(Struct, tag_field="_tag", tag="success"):
    """The offsets the rows got, both inclusive."""

    start_offset: int
    end_offset: int
    partition: Any = UNSET
    """Told only where the broker divided an Arrow stream by the partition column."""


class PushError(Struct, tag_field="_tag", tag="error"):
    """Why a batch was not stored."""

    message: str
    partition: Any = UNSET


class PushReply(Struct):
    """One result for every batch, in request order."""

    batches: list[PushSuccess | PushError]


class FetchTopic(Struct, forbid_unknown_fields=True):
    """Where to fetch from."""

    topic: str
    offset: Offset
    partition_value: Any = None


class FetchRequest(Struct, forbid_unknown_fields=True):
    """POST /v1/fetch; what is left out has a default."""

    namespace: str
    topics: list[FetchTopic]
    timeout_ms: int | UnsetType = UNSET
    min_messages: int | UnsetType = UNSET
    max_messages: int | UnsetType = UNSET


class FetchSuccess(Struct, tag_field="_tag", tag="success"):
    """Messages of one partition; without any, both offsets are the one asked for."""

    topic: str
    partition_value: Any
    start_offset: int
    end_offset: int
    messages: Raw
    """A list of JSON objects."""


class FetchError(Struct, tag_field="_tag", tag="error"):
    """Why nothing could be fetched there."""

    topic: str
    partition_value: Any
    message: str


class FetchReply(Struct):
    """One result for every topic, in request order."""

    topics: list[FetchSuccess | FetchError]


class Field(Struct, forbid_unknown_fields=True):
    """A column of a typed topic."""

    name: str
    type: str
    nullable: bool = False


class RetentionLimits(Struct, forbid_unknown_fields=True):
    """Limits of a topic; null is none."""

    max_age_seconds: Annotated[float, Meta(gt=0)] | None = None
    max_bytes: Limit | None = None
    max_messages: Limit | None = None


class CreateTenant(Struct, forbid_unknown_fields=True):
    """POST /v1/tenants."""

    tenant: str


class TenantReply(Struct):
    """A tenant."""

    name: str
    created: str


class CreateNamespace(Struct, forbid_unknown_fields=True):
    """POST /v1/tenants/{tenant}/namespaces."""

    namespace: str
    store: str = ""


class NamespaceReply(Struct):
    """A namespace."""

    name: str
    created: str
    store: str = ""


class CreateTopic(Struct, forbid_unknown_fields=True):
    """POST /v1/tenants/{tenant}/namespaces/{namespace}/topics; without fields it is raw."""

    topic: str
    fields: list[str | Field] | None = None
    """Columns, as `name:type` or as objects."""
    partition_column: str | None = None
    durability: Literal["memory", "fsync", "cloud"] = "fsync"
    retention: RetentionLimits = msgspec.field(default_factory=RetentionLimits)


class TopicReply(Struct):
    """A topic."""

    name: str
    fields: list[Field] | None
    partition_column: str | None
    durability: str
    retention: RetentionLimits
    created: str


class PartitionReply(Struct):
    """A partition of a topic as it is now."""

    partition_value: Any
    partition_id: int
    start_offset: int
    next_offset: int
    messages: int


class TenantList(Struct):
    """A page of tenants."""

    tenants: list[TenantReply]
    next_page_token: str = ""


class NamespaceList(Struct):
    """A page of namespaces."""

    namespaces: list[NamespaceReply]
    next_page_token: str = ""


class TopicList(Struct):
    """A page of topics."""

    topics: list[TopicReply]
    next_page_token: str = ""


class PartitionList(Struct):
    """A page of partitions."""

    partitions: list[PartitionReply]
    next_page_token: str = ""


class ErrorReply(Struct):
    """Every error that concerns a request as a whole."""

    message: str
