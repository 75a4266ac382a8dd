"""Everything a client can ask of a broker, as conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa

from penstock.client.exchange import BrokerRefused, Conversation, Request, ask
from penstock.client.results import Fetched, Message, Pushed
from penstock.client.rows import table_of
from penstock.formats import api
from penstock.formats.consumer_api import ConsumerList, ConsumerReply
from penstock.model import names, partition_value, schema
from penstock.model.errors import PartitionInvalid, RunInvalid
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue

FETCH_METADATA: Final = b"penstock"
PUSH_BYTES: Final = 4 << 20
"""Larger tables are pushed in several requests of about this size."""

_FOUND: Final = 200
_T = TypeVar("_T", bound=msgspec.Struct)


# -- tenants, namespaces, topics


def create_tenant(tenant: str) -> Conversation[api.TenantReply]:
    return (yield from _post("/v1/tenants", api.CreateTenant(tenant), api.TenantReply))


def list_tenants() -> Conversation[list[api.TenantReply]]:
    return (yield from _pages("/v1/tenants", api.TenantList, "tenants"))


def delete_tenant(tenant: str) -> Conversation[None]:
    yield from ask(Request("DELETE", f"/v1/tenants/{quote(tenant, '')}"))


def create_namespace(name: Namespace, store: str) -> Conversation[api.NamespaceReply]:
    body = api.CreateNamespace(name.namespace, store)
    path = f"/v1/tenants/{name.tenant}/namespaces"
    return (yield from _post(path, body, api.NamespaceReply))


def list_namespaces(tenant: str) -> Conversation[list[api.NamespaceReply]]:
    path = f"/v1/tenants/{quote(tenant, '')}/namespaces"
    return (yield from _pages(path, api.NamespaceList, "namespaces"))


def delete_namespace(name: Namespace) -> Conversation[None]:
    yield from ask(Request("DELETE", f"/v1/{name.full}"))


def create_topic(name: TopicName, body: api.CreateTopic) -> Conversation[api.TopicReply]:
    path = f"/v1/tenants/{name.tenant}/namespaces/{name.namespace}/topics"
    return (yield from _post(path, body, api.TopicReply))


def get_topic(name: TopicName) -> Conversation[api.TopicReply]:
    return msgspec.json.decode(
        (yield from ask(Request("GET", _topic_path(name)))), type=api.TopicReply
    )


def list_topics(namespace: Namespace) -> Conversation[list[api.TopicReply]]:
    return (yield from _pages(f"/v1/{namespace.full}/topics", api.TopicList, "topics"))


def delete_topic(name: TopicName) -> Conversation[None]:
    yield from ask(Request("DELETE", _topic_path(name)))


def list_partitions(name: TopicName) -> Conversation[list[api.PartitionReply]]:
    path = f"{_topic_path(name)}/partitions"
    return (yield from _pages(path, api.PartitionList, "partitions"))


def list_consumers(name: TopicName) -> Conversation[list[ConsumerReply]]:
    """How far the consumers of a topic are."""
    return (yield from _pages(f"{_topic_path(name)}/consumers", ConsumerList, "consumers"))


def get_partition(name: TopicName, value: object) -> Conversation[api.PartitionReply]:
    """The state of one partition, by its plain value."""
    tagged = yield from tag(name, value)
    query = "" if tagged is None else f"?{_partition_query('partition_value', tagged)}"
    body = yield from ask(Request("GET", f"{_topic_path(name)}/partitions{query}"))
    return msgspec.json.decode(body, type=api.PartitionList).partitions[0]


def creation(
    name: TopicName,
    fields: Sequence[str] | None,
    partition_column: str | None,
    durability: str,
    retention: api.RetentionLimits | None,
) -> api.CreateTopic:
    """What `create_topic` sends."""
    return api.CreateTopic(
        name.topic,
        None if fields is None else list(fields),
        partition_column,
        cast(Any, durability),
        retention or api.RetentionLimits(),
    )


# -- push


def push(name: TopicName, data: object, value: object) -> Conversation[list[Pushed]]:
    """Push rows; `value` is the plain partition value, None to divide by the column."""
    topic = yield from get_topic(name)
    tagged = _tagged(topic, value)
    pushed: list[Pushed] = []
    for piece in pieces(table_of(data, schema_of(topic))):
        pushed += yield from push_table(name, piece, tagged)
    return pushed


def push_table(
    name: TopicName, table: pa.Table, tagged: PartitionValue | None
) -> Conversation[list[Pushed]]:
    """Push one table in one request; raises BrokerRefused if any part of it was not stored."""
    query = {"namespace": f"{name.tenant}/{name.namespace}", "topic": name.topic}
    if tagged is not None:
        query["partition"] = msgspec.json.encode(tagged.to_json()).decode()
    path = f"/v1/push?{urlencode(query)}"
    body = yield from ask(Request("POST", path, arrow_stream(table), api.ARROW_STREAM))
    results = msgspec.json.decode(body, type=api.PushReply).batches
    for result in results:
        if isinstance(result, api.PushError):
            raise BrokerRefused(_FOUND, result.message)
    return [
        Pushed(result.start_offset, result.end_offset, result.partition or None)
        for result in results
        if isinstance(result, api.PushSuccess)
    ]


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The table in order, in parts of about PUSH_BYTES."""
    rows_max = max(1, PUSH_BYTES * table.num_rows // max(table.nbytes, 1))
    for start in range(0, table.num_rows, rows_max):
        yield table.slice(start, rows_max)


def arrow_stream(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return cast(bytes, sink.getvalue().to_pybytes())


# -- fetch


def fetch(
    name: TopicName, offset: int, value: object, limits: Mapping[str, int | None]
) -> Conversation[Fetched]:
    """Messages of one partition as a table."""
    tagged = yield from tag(name, value)
    request = fetch_request(name, offset, tagged, limits, api.ARROW_STREAM)
    stream = pa.ipc.open_stream(pa.py_buffer((yield from ask(request))))
    table = stream.read_all()
    told = msgspec.json.decode(table.schema.metadata[FETCH_METADATA])
    if told["_tag"] == "error":
        raise BrokerRefused(_FOUND, told["message"])
    table = table.replace_schema_metadata(None)
    return Fetched(told["topic"], told["start_offset"], told["end_offset"], table)


def fetch_json(
    name: TopicName, offset: int, tagged: PartitionValue | None, limits: Mapping[str, int | None]
) -> Conversation[api.FetchSuccess | api.FetchError]:
    """The broker's own words about one partition."""
    body = yield from ask(fetch_request(name, offset, tagged, limits, api.JSON))
    return msgspec.json.decode(body, type=api.FetchReply).topics[0]


def fetch_request(
    name: TopicName,
    offset: int,
    tagged: PartitionValue | None,
    limits: Mapping[str, int | None],
    accept: str,
) -> Request:
    given = {key: limit for key, limit in limits.items() if limit is not None}
    body: dict[str, Any] = {
        "namespace": f"{name.tenant}/{name.namespace}",
        "topics": [
            {
                "topic": name.topic,
                "offset": offset,
                "partition_value": None if tagged is None else tagged.to_json(),
            }
        ],
        **given,
    }
    wait_seconds = min(given.get("timeout_ms", 0), 60_000) / 1000
    encoded = msgspec.json.encode(body)
    return Request("POST", "/v1/fetch", encoded, api.JSON, accept, wait_seconds)


def get(name: TopicName, value: object, query: Mapping[str, str | int]) -> Conversation[Message]:
    """One message by offset, last by subject, or next by subject from an offset on."""
    tagged = yield from tag(name, value)
    asked = urlencode(query)
    if tagged is not None:
        asked += f"&{_partition_query('partition_value', tagged)}"
    place = f"{name.tenant}/{name.namespace}/{quote(name.topic, '')}"
    fields = msgspec.json.decode(
        (yield from ask(Request("GET", f"/v1/topics/{place}/messages?{asked}"))),
        type=dict[str, Any],
    )
    return Message(fields.pop("offset"), fields)


def limits(
    timeout_ms: int | None, min_messages: int | None, max_messages: int | None
) -> dict[str, int | None]:
    """Limits of a fetch; None leaves one to the broker."""
    return {"timeout_ms": timeout_ms, "min_messages": min_messages, "max_messages": max_messages}


def resolve(name: TopicName, offset: int | str, value: object) -> Conversation[int]:
    """An offset as a number: `earliest` and `latest` are what they are now."""
    if isinstance(offset, int):
        return offset
    if offset not in ("earliest", "latest"):
        raise RunInvalid(f"offset {offset!r} must be a number, earliest or latest")
    state = yield from get_partition(name, value)
    return state.start_offset if offset == "earliest" else state.next_offset


def choice(
    offset: int | None,
    last_by_subject: str | None,
    next_by_subject: str | None,
    start: int | None,
) -> dict[str, str | int]:
    """Which message `get` wants; exactly one way of naming it."""
    ways: dict[str, str | int | None] = {
        "offset": offset,
        "last_by_subject": last_by_subject,
        "next_by_subject": next_by_subject,
    }
    given = {key: value for key, value in ways.items() if value is not None}
    if len(given) != 1:
        raise RunInvalid(f"give one of {', '.join(ways)}")
    if start is not None:
        if next_by_subject is None:
            raise RunInvalid("a start goes with next_by_subject only")
        given["from"] = start
    return given


# -- partition values and schemas


def tag(name: TopicName, value: object) -> Conversation[PartitionValue | None]:
    """A plain partition value with the kind of the topic's partition column."""
    if value is None or isinstance(value, PartitionValue):
        return value
    return _tagged((yield from get_topic(name)), value)


def tag_text(name: TopicName, text: str | None) -> Conversation[PartitionValue | None]:
    """The same for a value that was typed in."""
    if text is None:
        return None
    type_ = partition_type((yield from get_topic(name)))
    if type_ is None:
        return PartitionValue("String", text)
    return partition_value.of_text(type_, text)


def schema_of(topic: api.TopicReply) -> pa.Schema | None:
    """The columns of a typed topic; None for raw messages."""
    if topic.fields is None:
        return None
    return pa.schema([schema.column(f.name, f.type, f.nullable) for f in topic.fields])


def partition_type(topic: api.TopicReply) -> pa.DataType | None:
    """Type of the topic's partition column, None when it has none."""
    if topic.partition_column is None:
        return None
    columns = schema_of(topic)
    return pa.string() if columns is None else columns.field(topic.partition_column).type


def _tagged(topic: api.TopicReply, value: object) -> PartitionValue | None:
    if value is None or isinstance(value, PartitionValue):
        return value
    type_ = partition_type(topic)
    if type_ is None:
        raise PartitionInvalid(f"topic {topic.name} is not partitioned; leave the value out")
    return partition_value.of_plain(type_, value)


def _partition_query(key: str, tagged: PartitionValue) -> str:
    return urlencode({key: msgspec.json.encode(tagged.to_json()).decode()})


# -- details


def _topic_path(name: TopicName) -> str:
    namespace = names.Namespace(name.tenant, name.namespace)
    return f"/v1/{namespace.full}/topics/{quote(name.topic, '')}"


def _post(path: str, body: msgspec.Struct, kind: type[_T]) -> Conversation[_T]:
    reply = yield from ask(Request("POST", path, msgspec.json.encode(body)))
    return msgspec.json.decode(reply, type=kind)


def _pages(path: str, kind: type[msgspec.Struct], field: str) -> Conversation[list[Any]]:
    items: list[Any] = []
    token = ""
    while True:
        query = urlencode(
            {"page_size": 1000, "page_token": token} if token else {"page_size": 1000}
        )
        page: Any = msgspec.json.decode(
            (yield from ask(Request("GET", f"{path}?{query}"))), type=kind
        )
        items += cast(Sequence[Any], getattr(page, field))
        token = page.next_page_token
        if not token:
            return items
