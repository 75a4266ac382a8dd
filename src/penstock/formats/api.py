"""JSON requests and replies of the HTTP API, for the server and for clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.model.retention import TopicRetention

ARROW_STREAM = "application/vnd.apache.arrow.stream"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Limit = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class PushBatch(Struct, forbid_unknown_fields=True):
    """Rows of one partition of one topic."""

    topic: str
    data: Raw
    """A list of rows, in the form of a raw or a typed topic."""
    partition: Any = None
    """The tagged partition value, such as {"Int64": 7}."""


class PushRequest(Struct, forbid_unknown_fields=True):
    """POST /v1/push."""

    namespace: str
    batches: list[PushBatch]


class PushSuccess(Struct, tag_field="_tag", tag="success"):
    """The first and last offset of the rows."""

    start_offset: int
    end_offset: int
    partition: Any = UNSET
    """Present only if the broker divided an Arrow stream by the partition column."""


class TopicOwner(Struct):
    """The broker that owns a topic, in errors with the code `owned_elsewhere`."""

    broker: str
    address: str
    """Host and port of its HTTP server."""


class PushError(Struct, tag_field="_tag", tag="error"):
    """Why a batch was not stored."""

    message: str
    code: str = ""
    """The stable identifier of the error; empty in replies of older brokers."""
    owner: TopicOwner | UnsetType = UNSET
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
    """POST /v1/fetch."""

    namespace: str
    topics: list[FetchTopic]
    timeout_ms: int | UnsetType = UNSET
    min_messages: int | UnsetType = UNSET
    max_messages: int | UnsetType = UNSET


class FetchSuccess(Struct, tag_field="_tag", tag="success"):
    """Messages of one partition; without messages both offsets are the requested one."""

    topic: str
    partition_value: Any
    start_offset: int
    end_offset: int
    messages: Raw
    """A list of JSON objects."""


class FetchError(Struct, tag_field="_tag", tag="error"):
    """Why a topic or partition could not be fetched."""

    topic: str
    partition_value: Any
    message: str
    code: str = ""
    """The stable identifier of the error; empty in replies of older brokers."""
    owner: TopicOwner | UnsetType = UNSET


class FetchReply(Struct):
    """One result for every topic, in request order."""

    topics: list[FetchSuccess | FetchError]


class Field(Struct, forbid_unknown_fields=True):
    """A column of a typed topic."""

    name: str
    type: str
    nullable: bool = False


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
    """POST /v1/tenants/{tenant}/namespaces/{namespace}/topics; raw if there are no fields."""

    topic: str
    fields: list[str | Field] | None = None
    """Columns, as `name:type` or as objects."""
    partition_column: str | None = None
    durability: Literal["memory", "fsync", "cloud"] = "fsync"
    retention: TopicRetention = TopicRetention()


class TopicReply(Struct):
    """A topic."""

    name: str
    fields: list[Field] | None
    partition_column: str | None
    durability: str
    retention: TopicRetention
    created: str


class PartitionReply(Struct):
    """The current state of a partition."""

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
    """An error of a whole request."""

    message: str
    code: str = ""
    """The stable identifier of the error; empty in replies of older brokers."""
    owner: TopicOwner | UnsetType = UNSET


class ConsumerReply(Struct):
    """A consumer of a topic, or of one of its partitions."""

    name: str
    partition_id: int
    kind: Literal["pull", "push"]
    next_offset: int
    """All offsets of the partition below it are committed."""
    delivered_offset: int
    """The offset after the last one that was delivered."""
    settled_offset: int
    """The ack floor: no offset below it will be delivered again."""
    pending: int
    """Messages that match its filters and were never delivered."""
    ack_pending: int
    """Messages in flight: delivered and not settled."""
    deliveries: int
    """Deliveries so far, redeliveries included."""
    redelivered: int
    """Messages in flight that were delivered more than once."""
    given_up: int
    """Messages that were delivered as often as allowed and never settled."""
    waiting: int
    """Pull requests that wait for messages."""
    paused: bool


class ConsumerList(Struct):
    """A page of consumers, in order of partition and name."""

    consumers: list[ConsumerReply]
    next_page_token: str = ""
