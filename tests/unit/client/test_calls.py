from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.client import (
    BrokerRefused,
    FetchedMessage,
    FetchedTable,
    PushedRange,
    create_topic,
    fetch_limits,
    fetch_table,
    get_message,
    get_topic,
    list_consumers,
    list_tenants,
    message_query,
    parse_partition,
    push_rows,
    resolve_offset,
    table_parts,
    topic_creation,
)
from penstock.client.messages import CHUNKS_MAX, arrow_stream
from penstock.formats import api
from penstock.model import names
from penstock.model.errors import PartitionInvalid, RunInvalid
from penstock.model.partition_value import PartitionValue
from tests.unit.client.script import RAW, TOPIC, play, reply

NAME = names.topic("orders")
PATH = "/v1/tenants/default/namespaces/default/topics/orders"


def _pushed(*results: dict[str, Any]) -> Any:
    return reply({"batches": list(results)})


def test_a_name_is_quoted_in_a_path() -> None:
    _, (request,) = play(get_topic(names.topic("ä?")), reply(TOPIC))
    assert request.path == "/v1/tenants/default/namespaces/default/topics/%C3%A4%3F"


def test_a_topic_is_created_from_its_fields() -> None:
    body = topic_creation(NAME, ["id:int64"], "id", "cloud", None)
    created, (request,) = play(create_topic(NAME, body), reply(TOPIC, 201))
    assert created.name == TOPIC["name"]
    assert (request.method, request.path) == ("POST", PATH.removesuffix("/orders"))
    assert msgspec.json.decode(request.body) == {
        "topic": "orders",
        "fields": ["id:int64"],
        "partition_column": "id",
        "durability": "cloud",
        "retention": {"max_age_seconds": None, "max_bytes": None, "max_messages": None},
    }


def test_lists_are_read_page_by_page() -> None:
    tenants = [{"name": f"tenants/{n}", "created": ""} for n in "ab"]
    listed, requests = play(
        list_tenants(),
        reply({"tenants": tenants[:1], "next_page_token": "a"}),
        reply({"tenants": tenants[1:], "next_page_token": ""}),
    )
    assert [tenant.name for tenant in listed] == ["tenants/a", "tenants/b"]
    assert requests[1].path == "/v1/tenants?page_size=1000&page_token=a"


def test_a_table_of_many_chunks_is_one_record_batch() -> None:
    table = pa.concat_tables([pa.table({"a": [1]})] * (CHUNKS_MAX + 1))
    stream = pa.ipc.open_stream(arrow_stream(table))
    assert [len(batch) for batch in stream] == [CHUNKS_MAX + 1]


def test_rows_are_pushed_as_an_arrow_stream() -> None:
    rows = [{"id": 1, "customer": "a"}]
    pushed, (_, request) = play(
        push_rows(NAME, rows, None),
        reply(TOPIC),
        _pushed({"_tag": "success", "start_offset": 4, "end_offset": 4}),
    )
    assert pushed == [PushedRange(4, 4)]
    assert request.path == "/v1/push?namespace=default%2Fdefault&topic=orders"
    assert request.content_type == api.ARROW_STREAM
    assert pa.ipc.open_stream(request.body).read_all().to_pylist() == rows


def test_a_partition_value_gets_the_type_of_its_column() -> None:
    topic = {**TOPIC, "partition_column": "id"}
    results = {"_tag": "success", "start_offset": 0, "end_offset": 0, "partition": {"Int64": 7}}
    pushed, (_, request) = play(
        push_rows(NAME, [{"customer": "a"}], 7), reply(topic), _pushed(results)
    )
    assert request.path.endswith("&partition=%7B%22Int64%22%3A7%7D")
    assert pushed == [PushedRange(0, 0, {"Int64": 7})]


def test_a_value_for_a_topic_without_partitions_is_refused_by_the_client() -> None:
    with pytest.raises(PartitionInvalid, match="is not partitioned; leave the value out"):
        play(push_rows(NAME, [{"id": 1}], 7), reply(TOPIC))


def test_a_batch_that_was_not_stored_is_an_error() -> None:
    with pytest.raises(BrokerRefused, match="full"):
        play(
            push_rows(NAME, [b"a"], None),
            reply(RAW),
            _pushed({"_tag": "error", "message": "full"}),
        )


def test_a_large_table_is_pushed_in_parts_in_order() -> None:
    table = pa.table({"payload": [bytes(1 << 20)] * 9})
    parts = list(table_parts(table))
    assert 3 <= len(parts) <= 4
    assert pa.concat_tables(parts).equals(table)
    assert not list(table_parts(table.slice(0, 0)))


def _arrow(result: dict[str, Any], table: pa.Table) -> Any:
    metadata = {b"penstock": msgspec.json.encode(result)}
    return reply(arrow_stream(table.replace_schema_metadata(metadata)))


def test_a_fetch_returns_a_table_and_the_next_offset() -> None:
    result = {
        "_tag": "success",
        "topic": "t",
        "partition_value": None,
        "start_offset": 3,
        "end_offset": 4,
    }
    table = pa.table({"offset": [3, 4]})
    limits = fetch_limits(9000, None, 5)
    fetched, (request,) = play(fetch_table(NAME, 3, None, limits), _arrow(result, table))
    assert (len(fetched), fetched.next_offset, fetched.topic) == (2, 5, "t")
    assert fetched.table == table
    assert fetched.table.schema.metadata is None
    assert (request.accept, request.wait_seconds) == (api.ARROW_STREAM, 9.0)
    assert msgspec.json.decode(request.body) == {
        "namespace": "default/default",
        "topics": [{"topic": "orders", "offset": 3, "partition_value": None}],
        "timeout_ms": 9000,
        "max_messages": 5,
    }


def test_an_empty_fetch_continues_at_the_same_offset() -> None:
    result = {
        "_tag": "success",
        "topic": "t",
        "partition_value": None,
        "start_offset": 3,
        "end_offset": 3,
    }
    empty = pa.table({"offset": pa.array([], pa.int64())})
    fetched, _ = play(
        fetch_table(NAME, 3, None, fetch_limits(None, None, None)), _arrow(result, empty)
    )
    assert fetched.next_offset == 3


def test_a_failed_fetch_is_an_error() -> None:
    result = {"_tag": "error", "topic": "t", "partition_value": None, "message": "gone"}
    with pytest.raises(BrokerRefused, match="gone"):
        play(fetch_table(NAME, 3, None, {}), _arrow(result, pa.table({})))


def test_the_next_fetch_continues_after_the_last_message() -> None:
    fetched = FetchedTable("t", 3, 5, pa.table({"offset": [3, 5]}))
    assert (len(fetched), fetched.next_offset) == (2, 6)


@pytest.mark.parametrize(("offset", "number"), [("earliest", 2), ("latest", 9), (5, 5)])
def test_earliest_and_latest_are_resolved_to_offsets(offset: int | str, number: int) -> None:
    state = {
        "partition_value": None,
        "partition_id": 0,
        "start_offset": 2,
        "next_offset": 9,
        "messages": 7,
    }
    replies = [] if isinstance(offset, int) else [reply({"partitions": [state]})]
    assert play(resolve_offset(NAME, offset, None), *replies)[0] == number


def test_an_unknown_offset_name_is_refused() -> None:
    with pytest.raises(RunInvalid, match="must be a number, earliest or latest"):
        play(resolve_offset(NAME, "newest", None))


def test_a_single_message_has_exactly_one_selector() -> None:
    assert message_query(3, None, None, None) == {"offset": 3}
    assert message_query(None, None, "a.>", 4) == {"next_by_subject": "a.>", "from": 4}
    with pytest.raises(
        RunInvalid, match="set exactly one of offset, last_by_subject, next_by_subject"
    ):
        message_query(3, "a", None, None)
    with pytest.raises(RunInvalid, match="a start offset needs next_by_subject"):
        message_query(3, None, None, 4)


def test_a_single_message_is_read() -> None:
    message, (request,) = play(
        get_message(NAME, None, {"last_by_subject": "a b"}), reply({"offset": 7, "payload": "x"})
    )
    assert message == FetchedMessage(7, {"payload": "x"})
    assert request.path == "/v1/topics/default/default/orders/messages?last_by_subject=a+b"


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("id", "7", PartitionValue("Int64", 7)),
        ("customer", "7", PartitionValue("String", "7")),
        (None, "7", PartitionValue("String", "7")),
    ],
)
def test_a_partition_value_is_parsed_as_the_type_of_its_column(
    column: str | None, text: str, value: PartitionValue
) -> None:
    topic = {**TOPIC, "partition_column": column}
    assert play(parse_partition(NAME, text), reply(topic))[0] == value
    assert play(parse_partition(NAME, None))[0] is None


def test_consumers_are_read_page_by_page() -> None:
    offsets = ("next_offset", "delivered_offset", "settled_offset")
    counts = ("pending", "ack_pending", "deliveries", "redelivered", "given_up", "waiting")
    facts = dict.fromkeys((*offsets, *counts), 7)
    items = [
        {"name": name, "partition_id": 0, "kind": "pull", "paused": False, **facts}
        for name in ("a", "b")
    ]
    pages = [
        reply({"consumers": items[:1], "next_page_token": "0/a"}),
        reply({"consumers": items[1:]}),
    ]
    consumers, requests = play(list_consumers(names.topic("orders")), *pages)
    assert [msgspec.to_builtins(item) for item in consumers] == items
    path = "/v1/tenants/default/namespaces/default/topics/orders/consumers"
    assert [request.path for request in requests] == [
        f"{path}?page_size=1000",
        f"{path}?page_size=1000&page_token=0%2Fa",
    ]
