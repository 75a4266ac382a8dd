import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.formats.api import ARROW_STREAM
from penstock.model.errors import LogReadOnly
from tests.broker.http import NAMESPACE, HttpSite

FULL = "tenants/default/namespaces/default"
BAD_TOPIC = (
    "1 to 255 characters without '.', '*', '>', '/', '\\', white space or control characters"
)


async def _rows(server: HttpSite, topic: str, value: dict[str, Any] | None = None) -> Any:
    asked = {"topic": topic, "offset": 0, "partition_value": value}
    (answer,) = (await server.fetch(asked, timeout_ms=10)).body["topics"]
    return answer["messages"]


@pytest.mark.feature("F23", "F26")
async def test_every_batch_gets_its_offsets_in_request_order(server: HttpSite) -> None:
    await server.topic("score", "name:string", "score:int64", "team:uint64", partition="team")
    await server.topic("raw")
    batches: list[dict[str, Any]] = [
        {"topic": "score", "partition": {"UInt64": 7}, "data": [{"name": "Ada", "score": 92}]},
        {"topic": "raw", "data": [{"payload": "a"}, {"payload": "b"}]},
        {"topic": "score", "partition": {"UInt64": 8}, "data": [{"name": "Bo", "score": 1}]},
    ]
    first = [
        {"_tag": "success", "start_offset": 0, "end_offset": 0},
        {"_tag": "success", "start_offset": 0, "end_offset": 1},
        {"_tag": "success", "start_offset": 0, "end_offset": 0},
    ]
    assert (await server.push(*batches)).plain == (200, {"batches": first})
    again = (await server.push(*batches)).body["batches"]
    assert [(answer["start_offset"], answer["end_offset"]) for answer in again] == [
        (1, 1),
        (2, 3),
        (1, 1),
    ]
    assert await _rows(server, "score", {"UInt64": 7}) == [{"name": "Ada", "score": 92}] * 2


@pytest.mark.feature("F23")
async def test_a_namespace_may_be_its_full_name(server: HttpSite) -> None:
    await server.topic("raw")
    body = {"namespace": FULL, "batches": [{"topic": "raw", "data": [{"payload": "a"}]}]}
    assert (await server.ask("POST", "/v1/push", body)).status == 200


@pytest.mark.feature("F20")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"namespace": "Default", "batches": []},
            (
                "invalid namespace format: Default namespace name 'Default' is not valid: it "
                "must be 'tenant/namespace' or the full name"
            ),
        ),
        (
            {"namespace": "default/nowhere", "batches": []},
            "namespace tenants/default/namespaces/nowhere does not exist",
        ),
        ({"namespace": NAMESPACE, "batches": []}, "no data provided"),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "a.b", "data": [1]}]},
            f"invalid topic name: a.b topic name 'a.b' is not valid: it must be {BAD_TOPIC}",
        ),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "other/ns/raw", "data": [1]}]},
            f"invalid topic name: other/ns/raw is not in {FULL}",
        ),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "raw", "data": [1]}] * 2},
            "duplicate batch for topic raw partition null",
        ),
        (
            {
                "namespace": NAMESPACE,
                "batches": [{"topic": "t", "partition": {"Int8": 1}, "data": [1]}] * 2,
            },
            'duplicate batch for topic t partition {"Int8":1}',
        ),
        ({"namespace": NAMESPACE, "batches": [{"topic": "raw", "data": []}]}, "no data provided"),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "raw", "data": [{"x": 1}]}]},
            "failed to parse JSON data for topic raw: data[0]: Object contains unknown field `x`",
        ),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "raw", "data": 3}]},
            "failed to parse JSON data for topic raw: Expected `array`, got `int`",
        ),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "raw", "data": [1], "key": 1}]},
            "Object contains unknown field `key` - at `$.batches[0]`",
        ),
        (
            {"namespace": NAMESPACE, "batches": [{"topic": "r", "data": [1], "partition": "Null"}]},
            'partition value "Null" must be an object with one kind, such as {"Int64": 7}',
        ),
        (b'{"namespace"', "Input data was truncated"),
        (b"", "Input data was truncated"),
        (b'{"namespace": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 0: invalid"),
        (b'{"namespace":' + b"[" * 100_000, "Expected `str`, got `array` - at `$.namespace`"),
        (
            b'{"batches":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
            "the JSON is nested too deeply",
        ),
    ],
)
async def test_a_request_that_is_not_right_is_refused_as_a_whole(
    server: HttpSite, body: Any, message: str
) -> None:
    await server.topic("raw")
    status, told = (await server.ask("POST", "/v1/push", body)).plain
    assert status == 400
    assert list(told) == ["message", "code"]
    assert told["message"].startswith(f"bad request: {message}")


@pytest.mark.feature("F23", "F20")
async def test_a_refused_request_has_stored_nothing(server: HttpSite) -> None:
    await server.topic("raw")
    answer = await server.push(
        {"topic": "raw", "data": [{"payload": "a"}]},
        {"topic": "score", "data": []},
    )
    assert answer.status == 400
    assert await _rows(server, "raw") == []


@pytest.mark.feature("F23", "F03")
async def test_what_is_wrong_with_one_batch_does_not_stop_the_others(
    server: HttpSite,
) -> None:
    await server.topic("score", "score:int64", "team:uint64", partition="team")
    await server.topic("raw")
    row = [{"score": 1}]
    answer = await server.push(
        {"topic": "score", "data": row},
        {"topic": "raw", "data": [{"payload": "a"}]},
        {"topic": "score", "partition": {"Int64": 7}, "data": row},
        {"topic": "raw", "partition": {"Int64": 7}, "data": [{"payload": "a"}]},
        {"topic": "nowhere", "data": row},
    )
    invalid = "partition_invalid"
    errors = [
        (
            (
                f"validation error: topic {FULL}/topics/score specifies a partition key but the "
                "request does not contain a partition value"
            ),
            invalid,
        ),
        (None, ""),
        (
            (
                f"validation error: topic {FULL}/topics/score partition column data type UInt64 "
                "does not match partition value data type Int64"
            ),
            invalid,
        ),
        (
            (
                f"validation error: topic {FULL}/topics/raw does not specify a partition key but "
                "the request contains a partition value"
            ),
            invalid,
        ),
        (f"topic {FULL}/topics/nowhere does not exist", "topic_not_found"),
    ]
    assert answer.plain == (
        200,
        {
            "batches": [
                {"_tag": "success", "start_offset": 0, "end_offset": 0}
                if error is None
                else {"_tag": "error", "message": error, "code": code}
                for error, code in errors
            ]
        },
    )


async def test_a_log_that_cannot_be_written_is_told_for_its_batch(server: HttpSite) -> None:
    await server.topic("raw")
    server.served.topics.get((await server.topic("other")).name).log.refusal = "a test says so"
    answer = await server.push(
        {"topic": "raw", "data": [{"payload": "a"}]},
        {"topic": "other", "data": [{"payload": "a"}]},
    )
    assert answer.body["batches"] == [
        {"_tag": "success", "start_offset": 0, "end_offset": 0},
        {
            "_tag": "error",
            "message": str(LogReadOnly(f"{NAMESPACE}/other", "a test says so")),
            "code": "log_read_only",
        },
    ]


@pytest.mark.feature("F25")
@pytest.mark.parametrize("rows", [1, 30_000])
async def test_rows_are_checked_whether_they_are_few_or_many(server: HttpSite, rows: int) -> None:
    """Many are read in the child process."""
    await server.topic("typed", "n:int64", "s:string?")
    data = [{"n": n, "s": None if n % 2 else "x"} for n in range(rows)]
    answer = (await server.push({"topic": "typed", "data": data})).body["batches"]
    assert answer == [{"_tag": "success", "start_offset": 0, "end_offset": rows - 1}]
    bad = [*data, {"n": "x"}]
    assert (await server.push({"topic": "typed", "data": bad})).plain == (
        400,
        {
            "message": "bad request: failed to parse JSON data for topic typed: "
            f"data[{rows}].n: Expected `int`, got `str`",
            "code": "bad_request",
        },
    )
    text = json.dumps({"namespace": NAMESPACE, "batches": [{"topic": "typed", "data": data}]})
    repeated = text.replace('"n": 0', '"n": 0, "n": 1', 1).encode()
    assert (await server.ask("POST", "/v1/push", repeated)).plain == (
        400,
        {
            "message": "bad request: failed to parse JSON data for topic typed: "
            "data[0].n: the key is there twice",
            "code": "bad_request",
        },
    )
    asked = {"topic": "typed", "offset": 0}
    (told,) = (await server.fetch(asked, max_messages=100_000)).body["topics"]
    assert told["messages"] == data


async def test_many_raw_messages_are_read_in_the_child_process(server: HttpSite) -> None:
    await server.topic("raw")
    data = [{"payload": str(n), "subject": f"s.{n % 3}"} for n in range(10_000)]
    (answer,) = (await server.push({"topic": "raw", "data": data})).body["batches"]
    assert (answer["start_offset"], answer["end_offset"]) == (0, 9_999)
    messages = await _rows(server, "raw")
    assert [{k: m[k] for k in ("payload", "subject")} for m in messages] == data


@pytest.mark.feature("F26")
async def test_a_raw_topic_may_be_partitioned_by_subject(server: HttpSite) -> None:
    await server.topic("raw", partition="subject")
    data = [{"payload": "a"}, {"payload": "b", "subject": "x.y"}]
    answer = await server.push({"topic": "raw", "partition": {"String": "x.y"}, "data": data})
    assert answer.body["batches"] == [{"_tag": "success", "start_offset": 0, "end_offset": 1}]
    told = await _rows(server, "raw", {"String": "x.y"})
    assert [message["subject"] for message in told] == ["x.y", "x.y"]
    wrong = [{"payload": "a", "subject": "z"}]
    answer = await server.push({"topic": "raw", "partition": {"String": "x.y"}, "data": wrong})
    assert answer.status == 400
    answer = await server.push({"topic": "raw", "partition": {"String": "x.*"}, "data": wrong})
    assert answer.body["batches"] == [
        {
            "_tag": "error",
            "message": "validation error: partition value 'x.*' is not a subject",
            "code": "partition_invalid",
        }
    ]


@pytest.mark.feature("F24")
async def test_an_arrow_stream_is_pushed_to_one_topic(server: HttpSite) -> None:
    await server.topic("typed", "n:int64", "s:string?")
    table = pa.table({"n": pa.array([1, 2], pa.int8())})
    answer = await server.push_arrow("topic=typed", table)
    success = {"_tag": "success", "start_offset": 0, "end_offset": 1}
    assert answer.plain == (200, {"batches": [success]})
    assert await _rows(server, "typed") == [{"n": 1, "s": None}, {"n": 2, "s": None}]


@pytest.mark.feature("F24", "F26")
async def test_an_arrow_stream_is_divided_by_the_partition_column(server: HttpSite) -> None:
    await server.topic("typed", "n:int64", "region:string", partition="region")
    table = pa.table({"n": [1, 2, 3], "region": ["eu", "us", "eu"]})
    answer = await server.push_arrow("topic=typed", table)
    assert answer.body["batches"] == [
        {
            "_tag": "success",
            "start_offset": 0,
            "end_offset": 1,
            "partition": {"String": "eu"},
        },
        {
            "_tag": "success",
            "start_offset": 0,
            "end_offset": 0,
            "partition": {"String": "us"},
        },
    ]
    assert await _rows(server, "typed", {"String": "eu"}) == [{"n": 1}, {"n": 3}]
    one = await server.push_arrow(
        'topic=typed&partition=%7B"String":"eu"%7D', table.slice(0, 1).drop_columns(["region"])
    )
    assert one.body["batches"] == [{"_tag": "success", "start_offset": 2, "end_offset": 2}]


@pytest.mark.feature("F24")
async def test_raw_messages_as_an_arrow_stream(server: HttpSite) -> None:
    await server.topic("raw", partition="subject")
    table = pa.table({"payload": ["1", "2", "3"], "subject": ["a", None, "a"]})
    answer = await server.push_arrow("topic=raw", table)
    told = [(one["partition"], one["end_offset"]) for one in answer.body["batches"]]
    assert told == [({"String": "a"}, 1), ({"String": "raw"}, 0)]
    messages = await _rows(server, "raw", {"String": "a"})
    assert [message["payload"] for message in messages] == ["1", "3"]


@pytest.mark.parametrize(
    ("query", "columns", "message"),
    [
        ("topic=typed", {"n": []}, "no data provided"),
        (
            "topic=typed",
            {"n": ["x"]},
            (
                "failed to parse Arrow data for topic typed: column 'n' is of type string, "
                "which does not fit int64"
            ),
        ),
        ("topic=typed&x=1", {"n": [1]}, "unknown query parameter 'x'; known: namespace, topic, "),
        ("topic=typed&topic=typed", {"n": [1]}, "query parameter 'topic' is repeated"),
        ("partition=1", {"n": [1]}, "query parameter topic is missing"),
        ("topic=typed&partition=x", {"n": [1]}, "partition value 'x' is not JSON such as"),
        ("topic=%ff", {"n": [1]}, "the query is not percent-encoded UTF-8"),
    ],
)
async def test_an_arrow_push_that_is_not_right_is_refused(
    server: HttpSite, query: str, columns: dict[str, Any], message: str
) -> None:
    await server.topic("typed", "n:int64")
    table = pa.table(columns) if columns["n"] else pa.table({"n": pa.array([], pa.int64())})
    answer = await server.push_arrow(query, table)
    assert answer.status == 400
    assert answer.body["message"].startswith(f"bad request: {message}")


async def test_an_arrow_push_to_a_topic_that_is_not_there_is_an_error_of_its_batch(
    server: HttpSite,
) -> None:
    answer = await server.push_arrow("topic=nowhere", pa.table({"n": [1]}))
    message = f"topic {FULL}/topics/nowhere does not exist"
    error = {"_tag": "error", "message": message, "code": "topic_not_found"}
    assert answer.plain == (200, {"batches": [error]})


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
async def test_another_type_of_body_is_415(server: HttpSite, kind: str) -> None:
    answer = await server.start("POST", "/v1/push", b"{}", content_type=kind).answer()
    told = f"not {kind}" if kind else "and it is missing"
    assert answer.plain == (
        415,
        {
            "message": f"content-type must be application/json or {ARROW_STREAM}, {told}",
            "code": "content_type_unsupported",
        },
    )


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("Identity", 400)])
async def test_a_body_that_is_encoded_is_415(server: HttpSite, coding: str, status: int) -> None:
    headers = ((b"content-type", b"application/json"), (b"content-encoding", coding.encode()))
    answer = await server.start("POST", "/v1/push", b"\x1f\x8b", headers=headers).answer()
    assert answer.status == status
    told = "content-encoding gzip is not supported: send the body unencoded"
    assert (answer.body == {"message": told, "code": "content_type_unsupported"}) is (status == 415)


async def test_parameters_of_the_content_type_do_not_matter(server: HttpSite) -> None:
    await server.topic("raw")
    body = json.dumps({"namespace": NAMESPACE, "batches": [{"topic": "raw", "data": [{}]}]})
    kind = "Application/JSON; charset=utf-8"
    answer = await server.start("POST", "/v1/push", body.encode(), content_type=kind).answer()
    assert answer.status == 400
