"""Hostile and unusual requests, by real sockets, on both kinds of loop."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import uvloop

from penstock.config import Address
from penstock.protocols.http.body import IN_PLACE_BYTES_MIN, Bodies, ClientGone
from penstock.protocols.http.connection import BODY_PROGRESS_BYTES, PIECE_BYTES
from penstock.protocols.http.connections import HttpLimits
from penstock.protocols.http.reply import Event, Receive, Reply, Send, answer
from penstock.protocols.http.server import HttpServer
from penstock.protocols.listener import listen

LOCAL: Final = Address("127.0.0.1", 0)
LIMIT: Final = 64 << 10
LIMITS: Final = HttpLimits(head_bytes=LIMIT, head_seconds=600, idle_seconds=600, stall_seconds=600)
HEAD: Final = b"POST /x HTTP/1.1\r\nhost: a\r\n"
CHUNKED: Final = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SECONDS: Final = 30


class App:
    """Answers with the path, the number of headers and the size of the body."""

    def __init__(self) -> None:
        self.bodies = Bodies(1 << 30, 1 << 30)
        self.paths: list[str] = []
        self.gone: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        try:
            if scope["path"] == "/large":
                await answer(scope, send, Reply(200, bytes(32 << 20)))
                return
            async with self.bodies.read_in_place(scope, receive) as body:
                size = len(body)
            if scope["path"] == "/parked":
                while (await receive())["type"] != "http.disconnect":
                    pass
                raise ClientGone
            await self.open.wait()
        except ClientGone:
            self.gone.append(scope["path"])
            return
        told: dict[str, object] = {"path": scope["path"], "headers": len(scope["headers"])}
        await answer(scope, send, Reply(200, {**told, "body": size}))


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def reply(self) -> tuple[int, Any]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        return int(head.split()[1]), json.loads(await self.reader.readexactly(int(length[1])))

    async def refused(self) -> int:
        """The status of an answer after which the connection is closed."""
        status, body = await self.reply()
        assert list(body) == ["message", "code"]
        assert await self.reader.read() == b""
        return status


class Listener:
    """A listener with an application behind it."""

    def __init__(self, app: App, server: HttpServer, address: Address) -> None:
        self.app, self.server, self.address = app, server, address
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        self._clients.append(Client(*await asyncio.open_connection(*self.address)))
        return self._clients[-1]

    async def close(self) -> None:
        """Close every client's connection."""
        for client in self._clients:
            client.writer.transport.abort()
        await asyncio.sleep(0)

    async def answers(self) -> bool:
        client = await self.connect()
        client.send(HEAD, b"content-length: 1\r\n\r\nx")
        return await client.reply() == (200, {"path": "/x", "headers": 2, "body": 1})

    def figure(self, name: str) -> dict[str, float]:
        """The values of a metric by the values of its only label."""
        metric = next(metric for metric in self.server.metrics() if metric.name == name)
        return {"".join(labels.values()): float(str(value)) for labels, value in metric.values}


Scenario = Callable[[Listener], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario against a listener, which must still answer after it."""

    async def play(scenario: Scenario, limits: HttpLimits) -> None:
        with listen([LOCAL], "--http") as bound:
            app = App()
            server = HttpServer(app, bound, drain_seconds=1, limits=limits)
            async with asyncio.TaskGroup() as tasks, asyncio.timeout(SECONDS):
                tasks.create_task(server.serve())
                await server.ready()
                listener = Listener(app, server, bound.addresses[0])
                try:
                    await scenario(listener)
                    assert await listener.answers()
                finally:
                    await listener.close()
                    server.drain()
                assert app.bodies.pending_bytes == 0

    def run(scenario: Scenario, **limits: int) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(play(scenario, replace(LIMITS, **limits)))

    return run


def _head(size: int) -> bytes:
    """The head of a request, of exactly so many bytes."""
    lines = b"GET /x HTTP/1.1\r\nhost: a\r\nfill: "
    return lines + b"f" * (size - len(lines) - 4) + b"\r\n\r\n"


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


# -- sizes


@pytest.mark.parametrize("piece", [LIMIT, 1000, PIECE_BYTES])
def test_a_head_of_the_limit_is_answered_and_one_byte_more_is_431(run: Run, piece: int) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        for part in _pieces(_head(LIMIT), piece):
            client.send(part)
            await asyncio.sleep(0)
        assert (await client.reply())[0] == 200
        for part in _pieces(_head(LIMIT + 1), piece):
            client.send(part)
            await asyncio.sleep(0)
        assert await client.refused() == 431
        assert listener.figure("penstock_http_requests_refused") == {"431": 1}

    run(scenario)


def test_a_limit_below_the_usual_head_is_kept(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(_head(1024))
        assert (await client.reply())[0] == 200
        client.send(_head(1025))
        assert await client.refused() == 431

    run(scenario, head_bytes=1024)


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /", 414),
        (b"GET /x?", 414),
        (b"GET /x HTTP/1.1\r\nhost: a\r\n", 431),
        (b"GET /x HTTP/1.1\r\nhost: a\r\nx: ", 431),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", 400),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", 400),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;x=", 400),
    ],
    ids=["path", "query", "name", "value", "trailer value", "trailer name", "chunk extension"],
)
def test_an_endless_part_of_a_request_is_refused_at_the_limit(
    run: Run, start: bytes, status: int
) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(start, b"a" * (4 * LIMIT))
        assert await client.refused() == status

    run(scenario)


@pytest.mark.parametrize(
    ("start", "repeated", "status"),
    [
        (b"GET /x HTTP/1.1\r\nhost: a\r\n", b"a: b\r\n", 431),
        (CHUNKED + b"0\r\n", b"a: b\r\n", 400),
        (CHUNKED, b"1;" + b"x" * 4000 + b"\r\na\r\n", 400),
        (b"", b"\r\n", 400),
    ],
    ids=["headers", "trailers", "chunk extensions", "empty lines"],
)
def test_endlessly_many_parts_are_refused_at_the_limit(
    run: Run, start: bytes, repeated: bytes, status: int
) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(start, repeated * (4 * LIMIT // len(repeated)))
        assert await client.refused() == status

    run(scenario)


def test_a_body_in_chunks_of_one_byte_is_taken_and_its_trailers_are_no_headers(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        for _ in range(2):
            client.send(CHUNKED, b"1\r\nx\r\n" * 50_000, b"0\r\nhost: b\r\ntrailer: x\r\n\r\n")
            assert await client.reply() == (200, {"path": "/x", "headers": 2, "body": 50_000})

    run(scenario)


# -- several requests on one connection


def test_any_number_of_pipelined_requests_is_answered_in_order(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        listener.app.open.clear()
        client = await listener.connect()
        client.send(*(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number for number in range(5000)))
        await asyncio.sleep(0.1)
        assert listener.app.paths == ["/0"]
        listener.app.open.set()
        for number in range(5000):
            assert (await client.reply())[1]["path"] == f"/{number}"

    run(scenario)


def test_any_number_of_pipelined_offers_of_another_protocol_is_passed_over(run: Run) -> None:
    offer = b"connection: upgrade\r\nupgrade: x\r\n"

    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send((b"GET /x HTTP/1.1\r\nhost: a\r\n" + offer + b"\r\n") * 3000)
        for _ in range(3000):
            assert await client.reply() == (200, {"path": "/x", "headers": 2, "body": 0})

    run(scenario)


def test_a_large_pipelined_head_is_refused_after_the_request_before_it_is_answered(
    run: Run,
) -> None:
    async def scenario(listener: Listener) -> None:
        listener.app.open.clear()
        client = await listener.connect()
        client.send(
            b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /second HTTP/1.1\r\nhost: a\r\na: ",
            b"b" * 2 * LIMIT,
        )
        while not listener.figure("penstock_http_requests_refused"):
            await asyncio.sleep(0.01)
        listener.app.open.set()
        assert (await client.reply())[1]["path"] == "/first"
        assert await client.refused() == 431
        assert listener.app.paths == ["/first"]

    run(scenario)


def test_a_malformed_pipelined_body_is_refused_after_the_request_before_it_is_answered(
    run: Run,
) -> None:
    async def scenario(listener: Listener) -> None:
        listener.app.open.clear()
        client = await listener.connect()
        client.send(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n", CHUNKED, b"zz\r\n")
        while not listener.figure("penstock_http_requests_refused"):
            await asyncio.sleep(0.01)
        listener.app.open.set()
        assert (await client.reply())[1]["path"] == "/first"
        assert await client.refused() == 400
        assert listener.app.paths == ["/first"]

    run(scenario)


def test_a_parked_request_ends_when_its_client_leaves_with_requests_behind_it(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(
            b"GET /parked HTTP/1.1\r\nhost: a\r\n\r\n", b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n" * 3
        )
        while listener.app.paths != ["/parked"]:
            await asyncio.sleep(0.01)
        client.writer.transport.abort()
        while listener.app.gone != ["/parked"]:
            await asyncio.sleep(0.01)
        assert listener.app.paths == ["/parked"]

    run(scenario)


# -- ambiguous and malformed requests

REFUSED: Final = {
    "both lengths": (HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400),
    "two lengths": (HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400),
    "list of lengths": (HEAD + b"content-length: 3, 3\r\n\r\nabc", 400),
    "signed length": (HEAD + b"content-length: +3\r\n\r\nabc", 400),
    "empty length": (HEAD + b"content-length:\r\n\r\nabc", 400),
    "huge length": (HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", 400),
    "space before colon": (HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "unknown coding": (HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "identity": (HEAD + b"transfer-encoding: identity\r\n\r\n", 501),
    "two codings": (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "coding behind chunked": (HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n", 400),
    "chunked twice": (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", 400),
    "huge chunk": (CHUNKED + b"fffffffffffffffff\r\n", 400),
    "negative chunk": (CHUNKED + b"-1\r\n", 400),
    "space behind chunk size": (CHUNKED + b"1 \r\nx\r\n", 400),
    "bare LF in chunk": (CHUNKED + b"1\nx\n0\n\n", 400),
    "long chunk": (CHUNKED + b"1\r\nxx\r\n0\r\n\r\n", 400),
    "bare LF": (b"GET /x HTTP/1.1\nhost: a\n\n", 400),
    "bare CR": (b"GET /x HTTP/1.1\r\nhost: a\r\na: b\rc: d\r\n\r\n", 400),
    "folded value": (b"GET /x HTTP/1.1\r\nhost: a\r\na: b\r\n c\r\n\r\n", 400),
    "NUL in value": (b"GET /x HTTP/1.1\r\nhost: a\r\na: b\0c\r\n\r\n", 400),
    "NUL in name": (b"GET /x HTTP/1.1\r\nhost: a\r\na\0b: c\r\n\r\n", 400),
    "no name": (b"GET /x HTTP/1.1\r\nhost: a\r\n: c\r\n\r\n", 400),
    "no colon": (b"GET /x HTTP/1.1\r\nhost: a\r\nabc\r\n\r\n", 400),
    "URL without path": (b"GET http://a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "byte above ASCII": (b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "CONNECT to an authority": (b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\nabc", 501),
    "CONNECT to a path": (b"CONNECT /x HTTP/1.1\r\nhost: a\r\n\r\nabc", 501),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "no host": (b"GET /x HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /x HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    "two hosts in HTTP/1.0": (b"GET /x HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    "version 2.0": (b"GET /x HTTP/2.0\r\n\r\n", 505),
    "version 0.9": (b"GET /x HTTP/0.9\r\n\r\n", 505),
    "no version": (b"GET /x\r\n\r\n", 505),
}


@pytest.mark.parametrize(("request_", "status"), REFUSED.values(), ids=REFUSED)
def test_a_malformed_request_is_refused_before_anything_is_done(
    run: Run, request_: bytes, status: int
) -> None:
    async def scenario(listener: Listener) -> None:
        for piece in (len(request_), 1):
            client = await listener.connect()
            for part in _pieces(request_[:200], piece):
                client.send(part)
                await asyncio.sleep(0)
            client.send(request_[200:], b"GET /smuggled HTTP/1.1\r\n\r\n")
            assert await client.refused() == status
        assert set(listener.app.paths) <= {"/x"}
        assert not listener.app.paths or set(listener.app.gone) == {"/x"}

    run(scenario)


def test_http_1_0_needs_no_host(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(b"GET /x HTTP/1.0\r\n\r\n")
        assert (await client.reply())[0] == 200

    run(scenario)


def test_a_url_may_name_its_host_and_an_asterisk_is_a_path(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.reply())[1]["path"] == "*"
        client.send(b"GET http://b/y?z HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await client.reply() == (200, {"path": "/y", "headers": 1, "body": 0})

    run(scenario)


# -- time


def test_a_head_that_does_not_arrive_in_time_is_408(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client, later = await listener.connect(), await listener.connect()
        client.send(b"GET /x HTTP/1.1\r\nhost: ")
        later.send(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await later.reply())[0] == 200
        later.send(b"GE")
        assert await client.refused() == 408
        assert await later.refused() == 408
        assert listener.figure("penstock_http_timeouts")["head"] == 2

    run(scenario, head_seconds=1)


def test_a_connection_that_sends_nothing_is_closed(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client, blank = await listener.connect(), await listener.connect()
        blank.send(b"\r\n\r\n")
        assert await client.reader.read() == b""
        assert await blank.reader.read() == b""
        assert listener.figure("penstock_http_timeouts")["first_request"] == 2

    run(scenario, head_seconds=1)


def test_a_connection_without_another_request_is_closed(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.reply())[0] == 200
        assert await client.reader.read() == b""
        assert listener.figure("penstock_http_timeouts")["request"] == 1

    run(scenario, idle_seconds=1)


@pytest.mark.parametrize("size", [100, IN_PLACE_BYTES_MIN], ids=["small", "in place"])
def test_a_body_that_does_not_go_on_is_408(run: Run, size: int) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(HEAD, b"content-length: %d\r\n\r\n" % size, bytes(size - 1))
        assert await client.refused() == 408
        while listener.app.gone != ["/x"]:
            await asyncio.sleep(0.01)
        assert listener.figure("penstock_http_timeouts")["body"] == 1

    run(scenario, stall_seconds=1)


def test_a_body_that_goes_on_too_slowly_is_408_and_one_that_goes_on_is_not(run: Run) -> None:
    async def trickle(client: Client, size: int) -> None:
        while not client.writer.is_closing():
            client.send(b"%x\r\n%b\r\n" % (size, bytes(size)))
            await asyncio.sleep(0.1)

    async def scenario(listener: Listener) -> None:
        slow, steady = await listener.connect(), await listener.connect()
        slow.send(CHUNKED)
        steady.send(CHUNKED)
        sending = asyncio.create_task(trickle(slow, 1))
        steadily = asyncio.create_task(trickle(steady, BODY_PROGRESS_BYTES))
        assert await slow.refused() == 408
        sending.cancel()
        await asyncio.sleep(2)
        steadily.cancel()
        steady.send(b"0\r\n\r\n")
        assert (await steady.reply())[0] == 200

    run(scenario, stall_seconds=2)


def test_a_client_that_does_not_read_its_reply_loses_its_connection(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
        last = await listener.connect()
        last.writer.transport.pause_reading()  # type: ignore[attr-defined]
        last.send(b"GET /large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        while listener.figure("penstock_http_timeouts")["read"] < 2:
            await asyncio.sleep(0.05)
        while listener.figure("penstock_http_connections")[""]:
            await asyncio.sleep(0.05)

    run(scenario, stall_seconds=1)


def test_a_parked_request_is_not_timed_out(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        client = await listener.connect()
        client.send(b"GET /parked HTTP/1.1\r\nhost: a\r\n\r\n")
        idle = await listener.connect()
        assert await idle.reader.read() == b""
        again = await listener.connect()
        assert await again.reader.read() == b""
        assert listener.figure("penstock_http_connections")[""] == 1
        client.writer.close()

    run(scenario, head_seconds=1, idle_seconds=1, stall_seconds=1)


# -- connections


def test_connections_beyond_the_limit_get_503_and_are_counted(run: Run) -> None:
    async def scenario(listener: Listener) -> None:
        clients = [await listener.connect() for _ in range(3)]
        for client in clients:
            client.send(b"GET /parked HTTP/1.1\r\nhost: a\r\n\r\n")
        while len(listener.app.paths) < 3:
            await asyncio.sleep(0.01)
        refused = await listener.connect()
        assert await refused.refused() == 503
        assert listener.figure("penstock_http_connections_refused") == {"": 1}
        clients[0].writer.transport.abort()
        while listener.figure("penstock_http_connections")[""] > 2:
            await asyncio.sleep(0.01)

    run(scenario, connections=3)
