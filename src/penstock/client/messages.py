"""Conversations that push and fetch messages, and the values they return.

pyarrow is imported only by the functions that need it, so that commands start fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, cast
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.admin import get_topic, topic_path
from penstock.client.exchange import BrokerRefused, BrokerRequest, Conversation, ask
from penstock.client.rows import table_of
from penstock.formats import api
from penstock.model.errors import PartitionInvalid, RunInvalid
from penstock.model.names import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.partition_value import PartitionValue

FETCH_METADATA: Final = b"penstock"
PUSH_BYTES: Final = 4 << 20
"""A larger table is pushed in several requests of about this size."""
CHUNKS_MAX: Final = 1000
"""A table of more chunks is combined: a broker accepts a limited number of record batches."""

_OK: Final = 200


class PushedRange(NamedTuple):
    """The offsets of pushed rows in one partition, both inclusive."""

    start_offset: int
    end_offset: int
    partition: dict[str, Any] | None = None
    """The partition's tagged value, if the broker assigned the rows to partitions."""


@dataclass(frozen=True, slots=True)
class FetchedTable:
    """Messages of one partition as rows of a table, possibly none.

    Columns: `partition`, `offset`, `timestamp`, then `subject`, `headers`, `payload`, or those of a
    typed topic.
    """

    topic: str
    start_offset: int
    end_offset: int
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def next_offset(self) -> int:
        """The offset at which the next fetch continues."""
        return self.end_offset + 1 if len(self) else self.start_offset


class FetchedMessage(NamedTuple):
    """One message, or one row of a typed topic."""

    offset: int
    fields: dict[str, Any]
    """The other fields of the message, by name."""


# -- push


def push_rows(name: TopicName, data: object, value: object) -> Conversation[list[PushedRange]]:
    """Push rows to the partition of a plain value, or with None let the broker choose partitions.

    `data` is anything that `table_of` accepts.
    """
    topic = yield from get_topic(name)
    tagged = _tagged(topic, value)
    pushed: list[PushedRange] = []
    for part in table_parts(table_of(data, topic_schema(topic))):
        pushed += yield from push_table(name, part, tagged)
    return pushed


def push_table(
    name: TopicName, table: pa.Table, tagged: PartitionValue | None
) -> Conversation[list[PushedRange]]:
    """Push one table in one request; raises BrokerRefused if any part of it was not stored."""
    query = {"namespace": f"{name.tenant}/{name.namespace}", "topic": name.topic}
    if tagged is not None:
        query["partition"] = msgspec.json.encode(tagged.to_json()).decode()
    path = f"/v1/push?{urlencode(query)}"
    body = yield from ask(BrokerRequest("POST", path, arrow_stream(table), api.ARROW_STREAM))
    results = msgspec.json.decode(body, type=api.PushReply).batches
    for result in results:
        if isinstance(result, api.PushError):
            raise BrokerRefused(_OK, result.message, result.code)
    return [
        PushedRange(result.start_offset, result.end_offset, result.partition or None)
        for result in results
        if isinstance(result, api.PushSuccess)
    ]


def table_parts(table: pa.Table) -> Iterator[pa.Table]:
    """Split a table, in order, into parts of about PUSH_BYTES."""
    rows_max = max(1, PUSH_BYTES * table.num_rows // max(table.nbytes, 1))
    for start in range(0, table.num_rows, rows_max):
        yield table.slice(start, rows_max)


def arrow_stream(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    import pyarrow as pa

    if table.num_columns and table.column(0).num_chunks > CHUNKS_MAX:
        table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return cast(bytes, sink.getvalue().to_pybytes())


# -- fetch


def fetch_table(
    name: TopicName, offset: int, value: object, limits: Mapping[str, int | None]
) -> Conversation[FetchedTable]:
    """Fetch messages of one partition as a table; `limits` are those of `fetch_limits`."""
    import pyarrow as pa

    tagged = yield from tag_partition(name, value)
    request = fetch_request(name, offset, tagged, limits, api.ARROW_STREAM)
    stream = pa.ipc.open_stream(pa.py_buffer((yield from ask(request))))
    table = stream.read_all()
    result = msgspec.json.decode(table.schema.metadata[FETCH_METADATA])
    if result["_tag"] == "error":
        raise BrokerRefused(_OK, result["message"], result.get("code", ""))
    table = table.replace_schema_metadata(None)
    return FetchedTable(result["topic"], result["start_offset"], result["end_offset"], table)


def fetch_json(
    name: TopicName, offset: int, tagged: PartitionValue | None, limits: Mapping[str, int | None]
) -> Conversation[api.FetchSuccess | api.FetchError]:
    """Fetch messages of one partition and return the broker's result as it is."""
    body = yield from ask(fetch_request(name, offset, tagged, limits, api.JSON))
    return msgspec.json.decode(body, type=api.FetchReply).topics[0]


def fetch_request(
    name: TopicName,
    offset: int,
    tagged: PartitionValue | None,
    limits: Mapping[str, int | None],
    accept: str,
) -> BrokerRequest:
    chosen = {key: limit for key, limit in limits.items() if limit is not None}
    body: dict[str, Any] = {
        "namespace": f"{name.tenant}/{name.namespace}",
        "topics": [
            {
                "topic": name.topic,
                "offset": offset,
                "partition_value": None if tagged is None else tagged.to_json(),
            }
        ],
        **chosen,
    }
    wait_seconds = min(chosen.get("timeout_ms", 0), 60_000) / 1000
    encoded = msgspec.json.encode(body)
    return BrokerRequest("POST", "/v1/fetch", encoded, api.JSON, accept, wait_seconds)


def fetch_limits(
    timeout_ms: int | None, min_messages: int | None, max_messages: int | None
) -> dict[str, int | None]:
    """Limits of a fetch; None selects the broker's default."""
    return {"timeout_ms": timeout_ms, "min_messages": min_messages, "max_messages": max_messages}


def resolve_offset(name: TopicName, offset: int | str, value: object) -> Conversation[int]:
    """An offset as a number; `earliest` and `latest` are looked up in the partition's state."""
    if isinstance(offset, int):
        return offset
    if offset not in ("earliest", "latest"):
        raise RunInvalid(f"offset {offset!r} must be a number, earliest or latest")
    state = yield from get_partition(name, value)
    return state.start_offset if offset == "earliest" else state.next_offset


def get_partition(name: TopicName, value: object) -> Conversation[api.PartitionReply]:
    """The state of the partition with this value."""
    tagged = yield from tag_partition(name, value)
    query = "" if tagged is None else f"?{_partition_query('partition_value', tagged)}"
    body = yield from ask(BrokerRequest("GET", f"{topic_path(name)}/partitions{query}"))
    return msgspec.json.decode(body, type=api.PartitionList).partitions[0]


# -- single messages


def get_message(
    name: TopicName, value: object, query: Mapping[str, str | int]
) -> Conversation[FetchedMessage]:
    """One message of a partition; `query` is that of `message_query`."""
    tagged = yield from tag_partition(name, value)
    encoded = urlencode(query)
    if tagged is not None:
        encoded += f"&{_partition_query('partition_value', tagged)}"
    path = f"/v1/topics/{name.tenant}/{name.namespace}/{quote(name.topic, '')}/messages?{encoded}"
    body = yield from ask(BrokerRequest("GET", path))
    fields = msgspec.json.decode(body, type=dict[str, Any])
    return FetchedMessage(fields.pop("offset"), fields)


def message_query(
    offset: int | None,
    last_by_subject: str | None,
    next_by_subject: str | None,
    start: int | None,
) -> dict[str, str | int]:
    """Select one message: at an offset, the last of a subject, or the next of a subject.

    Exactly one of the first three must be set, else RunInvalid is raised. `start` is the first
    offset considered by `next_by_subject`.
    """
    selectors: dict[str, str | int | None] = {
        "offset": offset,
        "last_by_subject": last_by_subject,
        "next_by_subject": next_by_subject,
    }
    query = {key: value for key, value in selectors.items() if value is not None}
    if len(query) != 1:
        raise RunInvalid(f"set exactly one of {', '.join(selectors)}")
    if start is not None:
        if next_by_subject is None:
            raise RunInvalid("a start offset needs next_by_subject")
        query["from"] = start
    return query


# -- partition values and schemas


def tag_partition(name: TopicName, value: object) -> Conversation[PartitionValue | None]:
    """Convert a plain partition value to the type of the topic's partition column."""
    if value is None:
        return None
    return value if _is_tagged(value) else _tagged((yield from get_topic(name)), value)


def parse_partition(name: TopicName, text: str | None) -> Conversation[PartitionValue | None]:
    """Parse a partition value as the type of the topic's partition column."""
    if text is None:
        return None
    from penstock.model import partition_value

    type_ = partition_type((yield from get_topic(name)))
    if type_ is None:
        return partition_value.PartitionValue("String", text)
    return partition_value.of_text(type_, text)


def topic_schema(topic: api.TopicReply) -> pa.Schema | None:
    """The columns of a typed topic; None for a raw one."""
    if topic.fields is None:
        return None
    import pyarrow as pa

    from penstock.model import schema

    return pa.schema([schema.column(f.name, f.type, f.nullable) for f in topic.fields])


def partition_type(topic: api.TopicReply) -> pa.DataType | None:
    """The type of the topic's partition column; None if the topic is not partitioned."""
    if topic.partition_column is None:
        return None
    import pyarrow as pa

    columns = topic_schema(topic)
    return pa.string() if columns is None else columns.field(topic.partition_column).type


def _is_tagged(value: object) -> TypeGuard[PartitionValue]:
    from penstock.model.partition_value import PartitionValue

    return isinstance(value, PartitionValue)


def _tagged(topic: api.TopicReply, value: object) -> PartitionValue | None:
    if value is None or _is_tagged(value):
        return value
    from penstock.model import partition_value

    type_ = partition_type(topic)
    if type_ is None:
        raise PartitionInvalid(f"topic {topic.name} is not partitioned; leave the value out")
    return partition_value.of_plain(type_, value)


def _partition_query(key: str, tagged: PartitionValue) -> str:
    return urlencode({key: msgspec.json.encode(tagged.to_json()).decode()})
