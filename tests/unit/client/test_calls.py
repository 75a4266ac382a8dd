from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.client import calls
from penstock.client.exchange import BrokerRefused
from penstock.client.results import Message, Pushed
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
    _, (request,) = play(calls.get_topic(names.topic("ä?")), reply(TOPIC))
    assert request.path == "/v1/tenants/default/namespaces/default/topics/%C3%A4%3F"


def test_a_topic_is_made_from_its_fields() -> None:
    body = calls.creation(NAME, ["id:int64"], "id", "cloud", None)
    made, (request,) = play(calls.create_topic(NAME, body), reply(TOPIC, 201))
    assert made.name == TOPIC["name"]
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
        calls.list_tenants(),
        reply({"tenants": tenants[:1], "next_page_token": "a"}),
        reply({"tenants": tenants[1:], "next_page_token": ""}),
    )
    assert [tenant.name for tenant in listed] == ["tenants/a", "tenants/b"]
    assert requests[1].path == "/v1/tenants?page_size=1000&page_token=a"


def test_rows_are_pushed_as_an_arrow_stream() -> None:
    rows = [{"id": 1, "customer": "a"}]
    pushed, (_, request) = play(
        calls.push(NAME, rows, None),
        reply(TOPIC),
        _pushed({"_tag": "success", "start_offset": 4, "end_offset": 4}),
    )
    assert pushed == [Pushed(4, 4)]
    assert request.path == "/v1/push?namespace=default%2Fdefault&topic=orders"
    assert request.content_type == api.ARROW_STREAM
    assert pa.ipc.open_stream(request.body).read_all().to_pylist() == rows


def test_the_partition_value_gets_the_kind_of_its_column() -> None:
    topic = {**TOPIC, "partition_column": "id"}
    results = {"_tag": "success", "start_offset": 0, "end_offset": 0, "partition": {"Int64": 7}}
    pushed, (_, request) = play(
        calls.push(NAME, [{"customer": "a"}], 7), reply(topic), _pushed(results)
    )
    assert request.path.endswith("&partition=%7B%22Int64%22%3A7%7D")
    assert pushed == [Pushed(0, 0, {"Int64": 7})]


def test_a_value_for_a_topic_without_partitions_is_refused_here() -> None:
    with pytest.raises(PartitionInvalid, match="is not partitioned; leave the value out"):
        play(calls.push(NAME, [{"id": 1}], 7), reply(TOPIC))


def test_a_part_that_was_not_stored_is_an_error() -> None:
    with pytest.raises(BrokerRefused, match="full"):
        play(
            calls.push(NAME, [b"a"], None),
            reply(RAW),
            _pushed({"_tag": "error", "message": "full"}),
        )


def test_a_large_table_is_pushed_in_parts_in_order() -> None:
    table = pa.table({"payload": [bytes(1 << 20)] * 9})
    parts = list(calls.pieces(table))
    assert 3 <= len(parts) <= 4
    assert pa.concat_tables(parts).equals(table)
    assert not list(calls.pieces(table.slice(0, 0)))


def _arrow(told: dict[str, Any], table: pa.Table) -> Any:
    told_bytes = {b"penstock": msgspec.json.encode(told)}
    return reply(calls.arrow_stream(table.replace_schema_metadata(told_bytes)))


def test_a_fetch_is_a_table_and_where_it_ends() -> None:
    told = {
        "_tag": "success",
        "topic": "t",
        "partition_value": None,
        "start_offset": 3,
        "end_offset": 4,
    }
    table = pa.table({"offset": [3, 4]})
    limits = calls.limits(9000, None, 5)
    fetched, (request,) = play(calls.fetch(NAME, 3, None, limits), _arrow(told, table))
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


def test_an_empty_fetch_goes_on_where_it_was() -> None:
    told = {
        "_tag": "success",
        "topic": "t",
        "partition_value": None,
        "start_offset": 3,
        "end_offset": 3,
    }
    empty = pa.table({"offset": pa.array([], pa.int64())})
    fetched, _ = play(
        calls.fetch(NAME, 3, None, calls.limits(None, None, None)), _arrow(told, empty)
    )
    assert fetched.next_offset == 3


def test_a_fetch_that_failed_is_an_error() -> None:
    told = {"_tag": "error", "topic": "t", "partition_value": None, "message": "gone"}
    with pytest.raises(BrokerRefused, match="gone"):
        play(calls.fetch(NAME, 3, None, {}), _arrow(told, pa.table({})))


@pytest.mark.parametrize(("offset", "number"), [("earliest", 2), ("latest", 9), (5, 5)])
def test_offsets_have_names(offset: int | str, number: int) -> None:
    state = {
        "partition_value": None,
        "partition_id": 0,
        "start_offset": 2,
        "next_offset": 9,
        "messages": 7,
    }
    replies = [] if isinstance(offset, int) else [reply({"partitions": [state]})]
    assert play(calls.resolve(NAME, offset, None), *replies)[0] == number


def test_an_unknown_name_of_an_offset_is_refused() -> None:
    with pytest.raises(RunInvalid, match="must be a number, earliest or latest"):
        play(calls.resolve(NAME, "newest", None))


def test_one_message_is_named_in_one_way() -> None:
    assert calls.choice(3, None, None, None) == {"offset": 3}
    assert calls.choice(None, None, "a.>", 4) == {"next_by_subject": "a.>", "from": 4}
    with pytest.raises(RunInvalid, match="give one of offset, last_by_subject, next_by_subject"):
        calls.choice(3, "a", None, None)
    with pytest.raises(RunInvalid, match="a start goes with next_by_subject only"):
        calls.choice(3, None, None, 4)


def test_one_message_is_asked_for() -> None:
    message, (request,) = play(
        calls.get(NAME, None, {"last_by_subject": "a b"}), reply({"offset": 7, "payload": "x"})
    )
    assert message == Message(7, {"payload": "x"})
    assert request.path == "/v1/topics/default/default/orders/messages?last_by_subject=a+b"


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("id", "7", PartitionValue("Int64", 7)),
        ("customer", "7", PartitionValue("String", "7")),
        (None, "7", PartitionValue("String", "7")),
    ],
)
def test_a_value_typed_in_gets_the_kind_of_its_column(
    column: str | None, text: str, value: PartitionValue
) -> None:
    topic = {**TOPIC, "partition_column": column}
    assert play(calls.tag_text(NAME, text), reply(topic))[0] == value
    assert play(calls.tag_text(NAME, None))[0] is None


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
    found, asked = play(calls.list_consumers(names.topic("orders")), *pages)
    assert [msgspec.to_builtins(item) for item in found] == items
    path = "/v1/tenants/default/namespaces/default/topics/orders/consumers"
    assert [request.path for request in asked] == [
        f"{path}?page_size=1000",
        f"{path}?page_size=1000&page_token=0%2Fa",
    ]
