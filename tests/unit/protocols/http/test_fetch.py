import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.formats.api import ARROW_STREAM
from penstock.model.batch import ENVELOPE
from penstock.model.units import Offset, PartitionId
from penstock.protocols.http import fetch
from penstock.protocols.http.body import ClientGone
from penstock.protocols.http.fetch import unless_gone
from penstock.protocols.http.reply import Event
from tests.broker.http import LONG_MS, NAMESPACE, HttpSite, opened
from tests.broker.storage import World

FULL = "tenants/default/namespaces/default"


def _at(topic: str, offset: int = 0, value: Any = None) -> dict[str, Any]:
    return {"topic": topic, "offset": offset, "partition_value": value}


async def _put(server: HttpSite, topic: str, *payloads: str) -> None:
    answer = await server.push({"topic": topic, "data": [{"payload": text} for text in payloads]})
    assert answer.body["batches"][0]["_tag"] == "success"


def _payloads(answer: dict[str, Any]) -> list[str]:
    return [message["payload"] for message in answer["messages"]]


@pytest.mark.feature("F18", "F19", "F04")
async def test_answers_come_in_request_order_and_errors_are_among_them(
    server: HttpSite,
) -> None:
    await server.topic("score", "name:string", "score:int64", "team:uint64", partition="team")
    rows = [{"name": "Ada", "score": 92}, {"name": "Bo", "score": 7}]
    await server.push({"topic": "score", "partition": {"UInt64": 7}, "data": rows})
    answer = await server.fetch(
        _at("nowhere"), _at("score", 1, {"UInt64": 7}), _at("score"), _at("score", 0, {"Int8": 7})
    )
    topic = f"{FULL}/topics/score"
    assert answer.plain == (
        200,
        {
            "topics": [
                {
                    "_tag": "error",
                    "topic": f"{FULL}/topics/nowhere",
                    "partition_value": None,
                    "message": f"topic {FULL}/topics/nowhere does not exist",
                    "code": "topic_not_found",
                },
                {
                    "_tag": "success",
                    "topic": topic,
                    "partition_value": {"UInt64": 7},
                    "start_offset": 1,
                    "end_offset": 1,
                    "messages": [{"name": "Bo", "score": 7}],
                },
                {
                    "_tag": "error",
                    "topic": topic,
                    "partition_value": None,
                    "message": (
                        f"topic {topic} specifies a partition key but the request does not "
                        "contain a partition value"
                    ),
                    "code": "partition_invalid",
                },
                {
                    "_tag": "error",
                    "topic": topic,
                    "partition_value": {"Int8": 7},
                    "message": (
                        f"topic {topic} partition column data type UInt64 does not match "
                        "partition value data type Int8"
                    ),
                    "code": "partition_invalid",
                },
            ]
        },
    )


@pytest.mark.feature("F18", "F20")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"namespace": "x", "topics": []},
            "bad request: invalid namespace format: x namespace name 'x' is not valid",
        ),
        (
            {"namespace": "default/no", "topics": []},
            "bad request: namespace tenants/default/namespaces/no does not exist",
        ),
        ({"namespace": NAMESPACE, "topics": []}, "bad request: no topics provided"),
        (
            {"namespace": NAMESPACE, "topics": [{"topic": "a b", "offset": 0}]},
            "bad request: invalid topic name: a b topic name 'a b' is not valid",
        ),
        (
            {"namespace": NAMESPACE, "topics": [{"topic": "a", "offset": -1}]},
            "bad request: Expected `int` >= 0 - at `$.topics[0].offset`",
        ),
        (
            {"namespace": NAMESPACE, "topics": [{"topic": "a"}]},
            "bad request: Object missing required field `offset` - at `$.topics[0]`",
        ),
        (
            {"namespace": NAMESPACE, "topics": [_at("a", 0, {"Float": 1})]},
            "bad request: partition value has the unknown kind 'Float'",
        ),
        (
            {"namespace": NAMESPACE, "topics": [_at("a")], "max": 1},
            "bad request: Object contains unknown field `max`",
        ),
        (
            {"namespace": NAMESPACE, "topics": [_at("a")] * 1001},
            "bad request: 1001 topics in one request, the limit is 1000",
        ),
        (b"[", "bad request: Expected `object`, got `array`"),
    ],
)
async def test_a_request_that_is_not_right_is_refused(
    server: HttpSite, body: Any, message: str
) -> None:
    status, told = (await server.ask("POST", "/v1/fetch", body)).plain
    assert status == 400
    assert list(told) == ["message", "code"]
    assert told["message"].startswith(message)


@pytest.mark.feature("F07", "F08", "F09", "F20")
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"timeout_ms": 1}, "timeout_ms must be greater than 1"),
        ({"min_messages": 0}, "min_messages must be at least 1"),
        ({"max_messages": 0}, "max_messages must be at least 1"),
        ({"max_messages": 100_001}, "max_messages must be at most 100_000"),
        (
            {"min_messages": 2, "max_messages": 1},
            "min_messages must be less than or equal to max_messages",
        ),
    ],
)
async def test_limits_out_of_range_are_told(
    server: HttpSite, limits: dict[str, int], message: str
) -> None:
    answer = await server.fetch(_at("raw"), **limits)
    assert answer.plain == (
        400,
        {"message": f"invalid parameter: {message}", "code": "fetch_invalid"},
    )


@pytest.mark.feature("F13", "F18")
async def test_at_the_deadline_nothing_is_a_success(server: HttpSite) -> None:
    await server.topic("raw")
    (answer,) = (await server.fetch(_at("raw", 5), timeout_ms=2)).body["topics"]
    assert answer == {
        "_tag": "success",
        "topic": f"{FULL}/topics/raw",
        "partition_value": None,
        "start_offset": 5,
        "end_offset": 5,
        "messages": [],
    }


@pytest.mark.feature("F10")
async def test_a_push_wakes_a_fetch_long_before_its_deadline(server: HttpSite) -> None:
    await server.topic("raw")
    client = server.fetching(_at("raw"), timeout_ms=LONG_MS)
    await server.parked(1)
    await _put(server, "raw", "a")
    (answer,) = (await client.answer()).body["topics"]
    assert _payloads(answer) == ["a"]


@pytest.mark.feature("F10", "F11", "F05")
async def test_a_sibling_that_reaches_the_minimum_lets_the_other_return(
    server: HttpSite,
) -> None:
    await server.topic("quiet")
    await server.topic("busy")
    await _put(server, "quiet", "q")
    client = server.fetching(_at("quiet"), _at("busy"), timeout_ms=LONG_MS, min_messages=3)
    await server.parked(2)
    await _put(server, "busy", "1")
    await server.parked(2)
    await _put(server, "busy", "2")
    quiet, busy = (await client.answer()).body["topics"]
    assert (_payloads(quiet), _payloads(busy)) == (["q"], ["1", "2"])


@pytest.mark.feature("F12", "F14")
async def test_the_maximum_spans_all_topics_of_the_request(server: HttpSite) -> None:
    await server.topic("a")
    await server.topic("b")
    await _put(server, "a", "1", "2", "3")
    await _put(server, "b", "1", "2", "3")
    answers = (await server.fetch(_at("a"), _at("b"), max_messages=3)).body["topics"]
    assert [_payloads(answer) for answer in answers] == [["1", "2"], ["1"]]


@pytest.mark.feature("F21")
async def test_unknown_topics_do_not_hold_up_the_answer(server: HttpSite) -> None:
    await server.topic("raw")
    await _put(server, "raw", "a")
    answers = (await server.fetch(_at("no"), _at("raw"), timeout_ms=LONG_MS)).body["topics"]
    assert [answer["_tag"] for answer in answers] == ["error", "success"]
    answers = (await server.fetch(_at("no"), _at("neither"), timeout_ms=LONG_MS)).body["topics"]
    assert [answer["_tag"] for answer in answers] == ["error", "error"]


@pytest.mark.feature("F22")
async def test_an_offset_past_the_head_waits_and_one_before_the_start_is_an_error(
    server: HttpSite,
) -> None:
    topic = await server.topic("raw")
    await _put(server, "raw", "0", "1", "2")
    client = server.fetching(_at("raw", 4), timeout_ms=LONG_MS)
    await server.parked(1)
    await _put(server, "raw", "3")
    await _put(server, "raw", "4")
    (answer,) = (await client.answer()).body["topics"]
    assert (answer["start_offset"], _payloads(answer)) == (4, ["4"])
    await server.served.topics.get(topic.name).log.purge(PartitionId(0), Offset(2))
    (answer,) = (await server.fetch(_at("raw", 1), timeout_ms=LONG_MS)).body["topics"]
    assert answer["_tag"] == "error"
    assert answer["message"].endswith("offset 1 is gone; the earliest is 2")


@pytest.mark.feature("F06")
async def test_a_client_that_leaves_frees_all_its_fetches(server: HttpSite) -> None:
    topics = [await server.topic("a"), await server.topic("b")]
    single = server.fetching(_at("a"), timeout_ms=LONG_MS)
    double = server.fetching(_at("a"), _at("b"), timeout_ms=LONG_MS)
    await server.parked(3)
    waiters = [server.served.topics.get(topic.name).log.waiters for topic in topics]
    assert list(map(len, waiters)) == [2, 1]
    single.leave()
    double.leave()
    assert (await single.ended(), await double.ended()) == ([], [])
    assert (server.fetcher.parked, server.fetcher.running) == (0, 0)
    assert list(map(len, waiters)) == [0, 0]


async def test_what_is_cancelled_for_another_reason_stays_cancelled() -> None:
    waiting: asyncio.Queue[Event] = asyncio.Queue()

    async def forever() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(unless_gone(waiting.get, forever()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gone = asyncio.create_task(unless_gone(waiting.get, forever()))
    waiting.put_nowait({"type": "http.request"})
    waiting.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        await gone


@pytest.mark.feature("F17")
async def test_one_fetch_too_many_is_429(world: World) -> None:
    async with opened(world, fetches_max=2) as server:
        await server.topic("raw")
        waiting = server.fetching(_at("raw"), timeout_ms=LONG_MS)
        await server.parked(1)
        answer = await server.fetch(_at("raw"), _at("raw"), timeout_ms=LONG_MS)
        message = "too many fetches at the same time: fetch.max_running is 2; retry later"
        assert answer.plain == (429, {"message": message, "code": "overloaded"})
        await server.parked(1)
        await _put(server, "raw", "a")
        assert (await waiting.answer()).status == 200


@pytest.mark.feature("X15")
async def test_a_drain_lets_waiting_fetches_return_what_they_have(server: HttpSite) -> None:
    await server.topic("a")
    await server.topic("b")
    await _put(server, "a", "1")
    client = server.fetching(_at("a"), _at("b"), timeout_ms=LONG_MS, min_messages=9)
    await server.parked(2)
    server.app.drain()
    first, second = (await client.answer()).body["topics"]
    assert (_payloads(first), _payloads(second)) == (["1"], [])
    (late,) = (await server.fetch(_at("b"), timeout_ms=LONG_MS)).body["topics"]
    assert late["messages"] == []


async def test_a_large_reply_comes_in_chunks_and_is_the_same(
    server: HttpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.topic("typed", "n:int64", "s:string")
    rows = [{"n": n, "s": "x" * 40} for n in range(10_000)]
    await server.push({"topic": "typed", "data": rows}, {"topic": "nowhere", "data": [1]})
    body = json.dumps(
        {
            "namespace": NAMESPACE,
            "topics": [_at("nowhere"), _at("typed"), _at("typed", 9_999)],
            "max_messages": 100_000,
        }
    ).encode()
    client = server.start("POST", "/v1/fetch", body, content_type="application/json")
    start, *chunks = await client.ended()
    assert b"content-length" not in dict(start["headers"])
    assert len(chunks) > 2
    assert [chunk.get("more_body", False) for chunk in chunks] == [True] * (len(chunks) - 1) + [
        False
    ]
    answers = json.loads(b"".join(chunk["body"] for chunk in chunks))["topics"]
    assert answers[1]["messages"] == rows
    assert answers[2]["messages"] == rows[-1:]
    monkeypatch.setattr(fetch, "INLINE_MESSAGES_MAX", 1 << 30)
    monkeypatch.setattr(fetch, "INLINE_BYTES_MAX", 1 << 30)
    whole = await server.start("POST", "/v1/fetch", body, content_type="application/json").answer()
    assert whole.body["topics"] == answers
    assert b"content-length" in whole.headers


@pytest.mark.feature("F24")
async def test_an_arrow_reply_is_one_stream_per_topic_with_a_note(server: HttpSite) -> None:
    await server.topic("typed", "n:int64", "region:string", partition="region")
    await server.topic("raw")
    value = {"String": "eu"}
    await server.push(
        {"topic": "typed", "partition": value, "data": [{"n": 1}, {"n": 2}]},
        {"topic": "raw", "data": [{"payload": "a"}]},
    )
    asked = [_at("typed", 0, value), _at("nowhere"), _at("raw")]
    client = server.fetching(*asked, accept=ARROW_STREAM)
    status, body, headers = await client.answer()
    assert (status, headers[b"content-type"]) == (200, ARROW_STREAM.encode())
    source = pa.BufferReader(body)
    tables = []
    while source.tell() < len(body):
        tables.append(pa.ipc.open_stream(source).read_all())
    notes = [json.loads(table.schema.metadata[b"penstock"]) for table in tables]
    told = (await server.fetch(*asked)).body["topics"]
    assert notes == [{k: v for k, v in one.items() if k != "messages"} for one in told]
    typed, nothing, raw = tables
    rows = typed.drop_columns(["timestamp"]).to_pylist()
    assert rows == [
        {"partition": 0, "offset": 0, "n": 1, "region": "eu"},
        {"partition": 0, "offset": 1, "n": 2, "region": "eu"},
    ]
    assert (nothing.num_rows, nothing.num_columns) == (0, 0)
    assert raw.schema.equals(ENVELOPE)
    assert raw.column("payload").to_pylist() == [b"a"]


async def test_only_json_is_taken(server: HttpSite) -> None:
    answer = await server.start("POST", "/v1/fetch", b"{}", content_type="text/plain").answer()
    assert answer.plain == (
        415,
        {
            "message": "content-type must be application/json, not text/plain",
            "code": "content_type_unsupported",
        },
    )
