import asyncio
import gc
import json
import signal
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.config import Address
from penstock.protocols.http.connection import Connection
from penstock.protocols.http.reply import Application, Event, Receive, Reply, Send, answer
from penstock.protocols.http.server import HttpServer
from penstock.protocols.listener import listen

LOCAL = (Address("127.0.0.1", 0),)


class Running(NamedTuple):
    server: HttpServer
    address: Address
    serving: asyncio.Task[None]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


@asynccontextmanager
async def _running(app: Application, drain_seconds: int = 5) -> AsyncIterator[Running]:
    with listen(LOCAL, "--http") as sock:
        server = HttpServer(app, sock, drain_seconds)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve())
            await server.ready()
            yield Running(server, sock.addresses[0], serving)
            server.drain()


async def _ask(address: Address, request: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *headers = head.decode("ascii").split("\r\n")
    return Answer(
        int(status.split(" ")[1]),
        dict(header.split(": ", 1) for header in headers),
        json.loads(body) if body else None,
    )


GET = b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


async def _fine(scope: Event, receive: Receive, send: Send) -> None:
    await answer(scope, send, Reply(200, {"path": scope["path"]}))


async def test_a_request_is_answered_without_a_server_header() -> None:
    async with _running(_fine) as running:
        status, headers, body = await _ask(running.address, GET)
    assert (status, body) == (200, {"path": "/x"})
    assert headers.keys() == {"date", "content-type", "content-length", "connection"}


async def test_what_is_not_http_is_a_400_in_json() -> None:
    async with _running(_fine) as running:
        assert await _ask(running.address, b"NONSENSE\r\n\r\n") == Answer(
            400,
            {"content-type": "application/json", "content-length": "65", "connection": "close"},
            {"message": "Invalid HTTP request received.", "code": "bad_request"},
        )
        assert (await _ask(running.address, GET)).status == 200


async def test_a_connection_that_is_over_is_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Connection]] = []

    def remember(self: Connection, transport: asyncio.Transport) -> None:
        made.append(weakref.ref(self))
        HttpToolsProtocol.connection_made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", remember, raising=False)
    async with _running(_fine) as running:
        gc.disable()
        try:
            assert (await _ask(running.address, GET)).status == 200
            async with asyncio.timeout(20):
                while made[0]() is not None:
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()


OFFERS = {
    "HTTP/2": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n",
    "WebSocket": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\n",
}
BODIES = {
    "none": (b"", b""),
    "sized": (b"content-length: 3\r\n", b"abc"),
    "chunked": (b"transfer-encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_an_offer_of_another_protocol_is_passed_over_and_its_request_answered(
    offer: bytes, body: tuple[bytes, bytes], pieces: int
) -> None:
    async def echo(scope: Event, receive: Receive, send: Send) -> None:
        got, more = b"", True
        while more:
            event = await receive()
            got, more = got + event["body"], event["more_body"]
        await answer(scope, send, Reply(200, {"path": scope["path"], "body": got.decode()}))

    request = b"POST /x?y HTTP/1.1\r\nhost: a\r\n" + offer + body[0] + b"\r\n" + body[1]
    size = -(-len(request) // pieces)
    async with _running(echo) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        for start in range(0, len(request), size):
            writer.write(request[start : start + size])
            await asyncio.sleep(0.001)
        told = b'{"path":"/x","body":"%b"}' % (b"abc" if body[1] else b"")
        assert await reader.readuntil(told)
        writer.write(GET)
        assert (await reader.read()).endswith(b'{"path":"/x","body":""}')
        writer.close()


async def test_a_failing_application_is_a_500_in_json_and_one_event() -> None:
    async def failing(scope: Event, receive: Receive, send: Send) -> None:
        raise ValueError("inner detail")

    with structlog.testing.capture_logs() as events:
        async with _running(failing) as running:
            status, _, body = await _ask(running.address, GET)
    assert (status, body) == (
        500,
        {
            "message": "an internal error occurred; the broker's log has the details",
            "code": "internal",
        },
    )
    assert events == [
        {
            "event": "request failed",
            "log_level": "error",
            "exc_info": True,
            "method": "GET",
            "path": "/x",
        }
    ]


async def test_an_application_that_fails_half_way_loses_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def half(scope: Event, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError

    async with _running(half) as running:
        status, _, body = await _ask(running.address, GET)
    assert (status, body) == (200, None)
    assert "Exception in ASGI application" in caplog.text


async def test_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with _running(_fine):
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


class _Gate:
    """An application that answers when it is let through."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        self.entered.set()
        await self.open.wait()
        await answer(scope, send, Reply(200, {}))


@pytest.mark.feature("X15")
async def test_a_drain_finishes_the_request_in_hand_and_accepts_no_other() -> None:
    gate = _Gate()
    async with _running(gate) as running:
        request = asyncio.create_task(_ask(running.address, GET))
        await gate.entered.wait()
        running.server.drain()
        await _refused(running.address)
        assert not running.serving.done()
        gate.open.set()
        assert (await request).status == 200
        await running.serving


@pytest.mark.feature("X15")
async def test_a_request_not_done_at_the_end_of_the_drain_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = _Gate()
    async with _running(gate, drain_seconds=0) as running:
        request = asyncio.create_task(_ask(running.address, GET))
        await gate.entered.wait()
        started = time.monotonic()
        running.server.drain()
        await running.serving
        assert time.monotonic() - started < 3
        status, _, body = await request
    assert (status, body) == (
        503,
        {
            "message": "the broker is shutting down; retry later",
            "code": "shutting_down",
        },
    )


async def test_a_drain_ends_although_a_client_keeps_its_connection_open() -> None:
    async with _running(_fine) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"}")
        running.server.drain()
        await running.serving
        assert await reader.read() == b""
        writer.close()


async def test_a_drain_cuts_off_a_client_that_does_not_read() -> None:
    async def large(scope: Event, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})

    async with _running(large, drain_seconds=0) as running:
        _, writer = await asyncio.open_connection(*running.address, limit=1024)
        writer.write(GET)
        connections = cast(set[Any], running.server._server.server_state.connections)
        await _until(lambda: any(connection.flow.write_paused for connection in connections))
        running.server.drain()
        await running.serving
        await asyncio.sleep(0)
        assert not connections
        writer.close()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def _refused(address: Address) -> None:
    """Wait until nobody accepts connections there."""
    while True:
        try:
            _, writer = await asyncio.open_connection(*address)
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # it was closed while this one waited to be accepted
        else:
            writer.close()
        await asyncio.sleep(0.01)
