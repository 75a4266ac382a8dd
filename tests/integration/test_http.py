"""The HTTP server of a real broker: push, fetch by offset, long polling, limits, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from penstock.formats.api import ARROW_STREAM, JSON
from tests.eventually import eventually
from tests.integration.process import FREE_PORT, Answer, Broker

NAMESPACE: Final = "default/default"
TOPICS: Final = "/v1/tenants/default/namespaces/default/topics"
LONG_MS: Final = 55_000
MANY: Final = 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker("--data", str(tmp_path), *FREE_PORT) as broker:
        yield broker


class Connection:
    """A connection of which the test decides when it sends, reads and goes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, broker: Broker) -> Connection:
        return cls(*await asyncio.open_connection(broker.host, broker.port, limit=1 << 26))

    def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: a", f"content-length: {len(body)}", *headers]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def read(self) -> tuple[int, bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in head:
            body = b""
            while size := int(await self._reader.readline(), 16):
                body += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readline()
            return status, body
        length = re.search(rb"content-length: (\d+)", head)
        return status, await self._reader.readexactly(int(length[1]) if length else 0)

    def leave(self) -> None:
        self._writer.transport.abort()


async def _ask(
    broker: Broker, method: str, path: str, body: object = None, *headers: str
) -> tuple[int, bytes]:
    connection = await Connection.open(broker)
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    connection.send(method, path, data, *(headers or (f"content-type: {JSON}",)))
    answer = await connection.read()
    connection.leave()
    return answer


async def _json(broker: Broker, method: str, path: str, body: object = None) -> Answer:
    status, data = await _ask(broker, method, path, body)
    return Answer(status, json.loads(data) if data else None)


async def _create(broker: Broker, topic: str, *fields: str, partition: str | None = None) -> None:
    body = {"topic": topic, "fields": list(fields) or None, "partition_column": partition}
    assert (await _json(broker, "POST", TOPICS, body)).status == 201


async def _push(broker: Broker, *batches: dict[str, Any]) -> Any:
    body = {"namespace": NAMESPACE, "batches": batches}
    return (await _json(broker, "POST", "/v1/push", body)).body


def _wanted(*topics: dict[str, Any], **limits: int) -> bytes:
    return json.dumps({"namespace": NAMESPACE, "topics": topics, **limits}).encode()


async def _fetch(broker: Broker, *topics: dict[str, Any], **limits: int) -> Any:
    status, data = await _ask(broker, "POST", "/v1/fetch", _wanted(*topics, **limits))
    assert status == 200
    return json.loads(data)["topics"]


async def _gauge(broker: Broker, name: str) -> float:
    _, text = await _ask(broker, "GET", "/metrics")
    match = re.search(rf"^penstock_{name} (.+)$", text.decode(), re.MULTILINE)
    assert match is not None
    return float(match[1])


async def _parked(broker: Broker, count: int) -> None:
    async def there() -> bool:
        return await _gauge(broker, "fetches_parked") == count

    await eventually(there)


async def _waiting(broker: Broker, count: int, *topics: dict[str, Any]) -> list[Connection]:
    """Connections that each wait for a fetch."""
    connections = []
    for _ in range(count):
        connection = await Connection.open(broker)
        body = _wanted(*topics, timeout_ms=LONG_MS)
        connection.send("POST", "/v1/fetch", body, f"content-type: {JSON}")
        connections.append(connection)
    await _parked(broker, count * len(topics))
    return connections


def _cpu_seconds(broker: Broker) -> float:
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.feature("F18", "F19", "F23", "F26", "F27")
async def test_what_is_pushed_is_fetched_also_by_the_next_process(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path), *FREE_PORT)
    eu = {"String": "eu"}
    with Broker(*arguments) as first:
        await _create(first, "typed", "n:int64", "s:string?", "region:string", partition="region")
        await _create(first, "raw")
        rows = [{"n": n, "s": None if n % 2 else f"text {n}"} for n in range(5000)]
        assert await _push(
            first,
            {"topic": "typed", "partition": eu, "data": rows},
            {"topic": "raw", "data": [{"payload": "hi"}, {"payload_b64": "/w=="}]},
        ) == {
            "batches": [
                {"_tag": "success", "start_offset": 0, "end_offset": 4999},
                {"_tag": "success", "start_offset": 0, "end_offset": 1},
            ]
        }
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
    with Broker(*arguments) as second:
        typed, raw = await _fetch(
            second,
            {"topic": "typed", "partition_value": eu, "offset": 100},
            {"topic": "raw", "offset": 0},
            timeout_ms=LONG_MS,
        )
        assert (typed["start_offset"], typed["end_offset"]) == (100, 4999)
        assert typed["messages"] == rows[100:]
        told = [{k: m[k] for k in m if k.startswith("payload")} for m in raw["messages"]]
        assert told == [{"payload": "hi"}, {"payload_b64": "/w=="}]
        path = "/v1/topics/default/default/raw/messages?last_by_subject=raw"
        assert (await _json(second, "GET", path)).body["offset"] == 1
        listed = (await _json(second, "GET", f"{TOPICS}/typed/partitions")).body["partitions"]
        assert [item["next_offset"] for item in listed] == [5000]
        assert (await _json(second, "DELETE", f"{TOPICS}/raw")).status == 204
        (gone,) = await _fetch(second, {"topic": "raw", "offset": 0})
        assert gone["_tag"] == "error"


@pytest.mark.feature("F24")
async def test_arrow_both_ways(broker: Broker) -> None:
    await _create(broker, "typed", "n:int64", "region:string", partition="region")
    table = pa.table({"n": range(100_000), "region": ["eu", "us"] * 50_000})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = f"/v1/push?namespace={NAMESPACE}&topic=typed"
    header = f"content-type: {ARROW_STREAM}"
    status, data = await _ask(broker, "POST", path, bytes(sink.getvalue()), header)
    assert status == 200
    assert [result["end_offset"] for result in json.loads(data)["batches"]] == [49_999] * 2
    status, data = await _ask(
        broker,
        "POST",
        "/v1/fetch",
        _wanted(
            {"topic": "typed", "partition_value": {"String": "us"}, "offset": 0},
            max_messages=100_000,
        ),
        f"content-type: {JSON}",
        f"accept: {ARROW_STREAM}",
    )
    fetched = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    assert fetched.column("n").to_pylist() == list(range(1, 100_000, 2))
    assert fetched.column("offset").to_pylist() == list(range(50_000))


@pytest.mark.feature("F10", "F31")
async def test_a_thousand_fetches_wait_without_work_and_one_push_wakes_them_all(
    broker: Broker,
) -> None:
    await _create(broker, "raw")
    connections = await _waiting(broker, MANY, {"topic": "raw", "offset": 0})
    before = _cpu_seconds(broker)
    await asyncio.sleep(1)
    # Asking now and then, instead of waiting, would take a good part of a core.
    assert _cpu_seconds(broker) - before < 0.25
    await _push(broker, {"topic": "raw", "data": [{"payload": "news"}]})
    answers = await asyncio.gather(*(connection.read() for connection in connections))
    for status, data in answers:
        (told,) = json.loads(data)["topics"]
        assert (status, told["messages"][0]["payload"]) == (200, "news")
    for connection in connections:
        connection.leave()
    assert await _gauge(broker, "fetches_running") == 0


@pytest.mark.feature("F06")
async def test_clients_that_leave_free_their_fetches(broker: Broker) -> None:
    await _create(broker, "a")
    await _create(broker, "b")
    asked = ({"topic": "a", "offset": 0}, {"topic": "b", "offset": 0})
    connections = await _waiting(broker, 50, *asked)
    for connection in connections:
        connection.leave()
    await _parked(broker, 0)
    assert await _gauge(broker, "fetches_running") == 0


@pytest.mark.feature("F11", "F05")
async def test_a_sibling_topic_that_has_enough_ends_the_wait(broker: Broker) -> None:
    await _create(broker, "quiet")
    await _create(broker, "busy")
    (connection,) = await _waiting(
        broker, 1, {"topic": "quiet", "offset": 0}, {"topic": "busy", "offset": 0}
    )
    await _push(broker, {"topic": "busy", "data": [{"payload": "x"}]})
    _, data = await connection.read()
    quiet, busy = json.loads(data)["topics"]
    assert (quiet["messages"], len(busy["messages"])) == ([], 1)
    connection.leave()


@pytest.mark.feature("X15")
async def test_a_shutdown_does_not_wait_for_fetches_that_wait(broker: Broker) -> None:
    await _create(broker, "raw")
    connections = await _waiting(broker, 20, {"topic": "raw", "offset": 0})
    broker.signal(signal.SIGTERM)
    for connection in connections:
        status, data = await connection.read()
        assert (status, json.loads(data)["topics"][0]["messages"]) == (200, [])
        connection.leave()
    assert await asyncio.to_thread(broker.wait) == 0


@pytest.mark.feature("F17")
async def test_limits_of_bodies_and_fetches_are_refused_by_name(tmp_path: Path) -> None:
    limits = ("http.max_body_bytes=2048", "fetch.max_running=1")
    settings = [part for limit in limits for part in ("--set", limit)]
    with Broker("--data", str(tmp_path), *FREE_PORT, *settings) as broker:
        await _create(broker, "raw")
        connection = await Connection.open(broker)
        connection._writer.write(
            b"POST /v1/push HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n"
            b"content-type: application/json\r\n\r\n"
        )
        status, data = await connection.read()
        assert status == 413
        assert "http.max_body_bytes is 2048" in json.loads(data)["message"]
        connection.leave()
        (waiting,) = await _waiting(broker, 1, {"topic": "raw", "offset": 0})
        body = _wanted({"topic": "raw", "offset": 0})
        status, data = await _ask(broker, "POST", "/v1/fetch", body)
        assert status == 429
        assert "fetch.max_running is 1" in json.loads(data)["message"]
        waiting.leave()


async def test_several_requests_on_one_connection(broker: Broker) -> None:
    await _create(broker, "raw")
    connection = await Connection.open(broker)
    for number in range(3):
        body = {
            "namespace": NAMESPACE,
            "batches": [{"topic": "raw", "data": [{"payload": str(number)}]}],
        }
        connection.send("POST", "/v1/push", json.dumps(body).encode(), f"content-type: {JSON}")
        status, data = await connection.read()
        assert (status, json.loads(data)["batches"][0]["start_offset"]) == (200, number)
        fetch = _wanted({"topic": "raw", "offset": number})
        connection.send("POST", "/v1/fetch", fetch, f"content-type: {JSON}")
        status, data = await connection.read()
        assert json.loads(data)["topics"][0]["messages"][0]["payload"] == str(number)
    connection.leave()


async def test_a_half_sent_body_holds_nobody_up(broker: Broker) -> None:
    with socket.create_connection((broker.host, broker.port)) as half:
        half.sendall(
            b"POST /v1/push HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n"
            b"content-type: application/json\r\n\r\n{"
        )
        assert (await _json(broker, "GET", "/healthz")).status == 200
