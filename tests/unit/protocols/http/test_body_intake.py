"""Large bodies, by real sockets, on both kinds of loop."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from penstock.config import Address
from penstock.model.errors import Overloaded
from penstock.protocols.http.body import IN_PLACE_BYTES_MIN, Bodies, ClientGone
from penstock.protocols.http.errors import BodyTooLarge, status_of
from penstock.protocols.http.reply import Event, Receive, Reply, Send, answer, error
from penstock.protocols.http.server import HttpServer
from penstock.protocols.listener import listen

LOCAL = (Address("127.0.0.1", 0),)
LARGE = IN_PLACE_BYTES_MIN + 12_345
SECONDS = 20


class Taker:
    """An application that answers with what it got, and how."""

    def __init__(self, pending_bytes_max: int = 1 << 30) -> None:
        self.bodies = Bodies(1 << 20, pending_bytes_max)
        self.gone = asyncio.Event()
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def has(self, size: int) -> None:
        """Wait until so much of a body has come."""
        while self.bodies.pending_bytes < size:
            await asyncio.sleep(0.001)

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        await self.let_go.wait()
        try:
            async with self.bodies.read_in_place(scope, receive) as body:
                told: dict[str, object] = {"in_place": isinstance(body, memoryview)}
                told |= {"sum": sum(bytes(body)), "size": len(body)}
                await answer(scope, send, Reply(200, told))
        except (BodyTooLarge, Overloaded) as refusal:
            await answer(scope, send, error(status_of(refusal), str(refusal), refusal.code))
        except ClientGone:
            self.gone.set()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        return int(head.split()[1]), body


Scenario = Callable[[Taker, Client, HttpServer], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a scenario against an application behind a server."""

    async def play(scenario: Scenario, taken: dict[str, Any]) -> None:
        taker = Taker(**taken)
        with listen(LOCAL, "--http") as sock:
            server = HttpServer(taker, sock, drain_seconds=1)
            async with asyncio.TaskGroup() as tasks, asyncio.timeout(SECONDS):
                tasks.create_task(server.serve())
                await server.ready()
                address = sock.addresses[0]
                client = Client(*await asyncio.open_connection(*address))
                await scenario(taker, client, server)
                assert taker.bodies.pending_bytes == 0
                client.writer.close()
                server.drain()

    def run(scenario: Scenario, **taken: Any) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(play(scenario, taken))

    return run


def _request(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /x HTTP/1.1", b"host: a", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _body(size: int = LARGE, seed: int = 1) -> bytes:
    return (bytes(range(seed, seed + 101)) * (size // 101 + 1))[:size]


def _told(body: bytes, in_place: bool = True) -> tuple[int, bytes]:
    flag = b"true" if in_place else b"false"
    return 200, b'{"in_place":%b,"sum":%d,"size":%d}' % (flag, sum(body), len(body))


def test_a_large_body_is_read_in_place_and_a_small_one_is_not(run: Callable[..., None]) -> None:
    async def scenario(_taker: Taker, client: Client, _server: HttpServer) -> None:
        for size in (LARGE, 5, IN_PLACE_BYTES_MIN, IN_PLACE_BYTES_MIN - 1, 0, LARGE):
            client.send(_request(_body(size)))
            told = _told(_body(size), size >= IN_PLACE_BYTES_MIN)
            assert await client.reply() == told

    run(scenario)


def test_a_body_that_comes_drop_by_drop_is_the_same(run: Callable[..., None]) -> None:
    async def scenario(_taker: Taker, client: Client, _server: HttpServer) -> None:
        whole = _request(_body())
        for start in range(0, len(whole), 9_973):
            client.send(whole[start : start + 9_973])
            await asyncio.sleep(0)
        assert await client.reply() == _told(_body())

    run(scenario)


def test_requests_sent_without_waiting_are_answered_in_order(run: Callable[..., None]) -> None:
    async def scenario(taker: Taker, client: Client, _server: HttpServer) -> None:
        taker.let_go.clear()
        bodies = [_body(3), _body(seed=2), _body(9), _body(seed=3), _body(seed=4), _body(1)]
        client.send(b"".join(map(_request, bodies)))
        await asyncio.sleep(0.05)
        taker.let_go.set()
        for body in bodies:
            status, told = await client.reply()
            assert (status, told.partition(b",")[2]) == (200, _told(body)[1].partition(b",")[2])

    run(scenario)


def test_a_body_that_was_there_before_it_was_asked_for(run: Callable[..., None]) -> None:
    async def scenario(taker: Taker, client: Client, _server: HttpServer) -> None:
        taker.let_go.clear()
        client.send(_request(_body()))
        await asyncio.sleep(0.05)
        taker.let_go.set()
        assert await client.reply() == _told(_body())

    run(scenario)


def test_a_client_that_waits_for_100_continue_is_told_to(run: Callable[..., None]) -> None:
    async def scenario(_taker: Taker, client: Client, _server: HttpServer) -> None:
        whole = _request(_body(), b"expect: 100-continue")
        client.send(whole[:-LARGE])
        assert await client.reply() == (100, b"")
        client.send(whole[-LARGE:])
        assert await client.reply() == _told(_body())

    run(scenario)


def test_a_client_that_leaves_in_the_middle_is_gone(run: Callable[..., None]) -> None:
    async def scenario(taker: Taker, client: Client, _server: HttpServer) -> None:
        client.send(_request(_body())[:-1])
        await client.writer.drain()
        client.writer.close()
        await taker.gone.wait()
        await asyncio.sleep(0)

    run(scenario)


def test_chunks_are_gathered_as_ever(run: Callable[..., None]) -> None:
    async def scenario(_taker: Taker, client: Client, _server: HttpServer) -> None:
        client.send(b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (LARGE, _body()))
        assert await client.reply() == _told(_body(), in_place=False)

    run(scenario)


def test_what_gets_too_much_on_its_way_is_refused_and_the_connection_goes_on(
    run: Callable[..., None],
) -> None:
    async def scenario(taker: Taker, client: Client, _server: HttpServer) -> None:
        whole = _request(_body())
        client.send(whole[:-10])
        await taker.has(LARGE - 10)
        taker.bodies.pending_bytes += LARGE
        client.send(whole[-10:-5])
        assert (await client.reply())[0] == 429
        taker.bodies.pending_bytes -= LARGE
        client.send(whole[-5:] + _request(_body(seed=7)))
        assert await client.reply() == _told(_body(seed=7))

    run(scenario, pending_bytes_max=2 * LARGE - 8)


def test_a_body_that_is_too_large_is_refused_before_it_comes(run: Callable[..., None]) -> None:
    async def scenario(_taker: Taker, client: Client, _server: HttpServer) -> None:
        body = _body(2 << 20)
        client.send(_request(body)[: -len(body)])
        assert (await client.reply())[0] == 413
        client.send(body + _request(_body()))
        assert await client.reply() == _told(_body())

    run(scenario)


def test_a_drain_does_not_wait_for_a_body_that_does_not_come(run: Callable[..., None]) -> None:
    async def scenario(taker: Taker, client: Client, server: HttpServer) -> None:
        client.send(_request(_body())[:-1])
        await taker.has(LARGE - 1)
        server.drain()
        assert (await client.reply())[0] == 503
        assert await client.reader.read() == b""
        assert taker.bodies.pending_bytes == 0

    run(scenario)
