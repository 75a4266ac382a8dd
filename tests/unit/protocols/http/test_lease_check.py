"""Replies that confirm something, over real connections; the lease is in the hand of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import uvloop

from penstock.config import Address
from penstock.protocols.http.lease_check import LEASE_ENDED
from penstock.protocols.http.reply import Event, Receive, Reply, Send, answer
from penstock.protocols.http.server import HttpServer
from penstock.protocols.listener import listen

pytestmark = pytest.mark.feature("T26")

LOCAL = (Address("127.0.0.1", 0),)
REQUEST = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"


class Lease:
    """What a server asks of Ownership; it ends with the look that `ends_at` counts to."""

    def __init__(self) -> None:
        self.leases_lost = 0
        self.looks = 0
        self.ends_at: int | None = None

    def lease_valid(self) -> bool:
        self.looks += 1
        return self.ends_at is None or self.looks < self.ends_at


class World:
    """A server whose application replies what it is told to."""

    def __init__(self, reply: Reply) -> None:
        self.reply, self.lease = reply, Lease()
        self.address = LOCAL[0]
        self.lose = False

    async def app(self, scope: Event, receive: Receive, send: Send) -> None:
        self.lease.leases_lost += self.lose
        await answer(scope, send, self.reply)

    async def ask(self) -> bytes:
        """All that comes until the server closes, or nothing comes any more."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[World]:
    world: Any = World(reply)
    with listen(LOCAL, "--http") as sock:
        server = HttpServer(lambda *call: world.app(*call), sock, 5, world.lease)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            await server.ready()
            world.address = sock.addresses[0]
            yield world
            server.drain()


STORED = Reply(200, {"stored": 1}, confirms=True)
EMPTY = Reply(201, b"", confirms=True)


@pytest.mark.parametrize("reply", [STORED, EMPTY])
async def test_a_confirmation_is_sent_while_the_lease_is_valid(reply: Reply) -> None:
    async with serving(reply) as world:
        assert (await world.ask()).startswith(b"HTTP/1.1 %d " % reply.status)
        assert world.lease.looks


@pytest.mark.parametrize("reply", [STORED, EMPTY])
async def test_a_confirmation_is_an_error_once_the_lease_has_ended(reply: Reply) -> None:
    async with serving(reply) as world:
        world.lease.ends_at = 1
        got = await world.ask()
        assert got.startswith(b"HTTP/1.1 503 ")
        assert LEASE_ENDED.encode() in got


async def test_a_lease_that_ends_while_a_reply_is_made_cuts_it_before_its_body() -> None:
    async with serving(STORED) as world:
        world.lease.ends_at = 2
        try:
            got = await world.ask()
        except ConnectionResetError:
            got = b""
        assert b"stored" not in got


async def test_a_confirmation_is_an_error_when_a_lease_was_lost_since_the_request() -> None:
    async with serving(STORED) as world:
        world.lose = True
        assert (await world.ask()).startswith(b"HTTP/1.1 503 ")


async def test_a_reply_that_confirms_nothing_needs_no_lease() -> None:
    async with serving(Reply(200, {})) as world:
        world.lease.ends_at = 0
        assert (await world.ask()).startswith(b"HTTP/1.1 200 ")
        assert world.lease.looks == 0


@pytest.mark.parametrize("reply", [STORED, EMPTY])
def test_a_confirmation_is_written_whole_before_the_turn_of_the_loop_ends(reply: Reply) -> None:
    async def check() -> None:
        async with serving(reply) as world:
            read = asyncio.Event()
            got = b""
            with closing(
                socket.create_connection((world.address.host, world.address.port))
            ) as client:

                async def app(scope: Event, receive: Receive, send: Send) -> None:
                    nonlocal got
                    await answer(scope, send, reply)
                    # No turn has ended since: what is there now was written at once.
                    got = client.recv(1 << 16)
                    read.set()

                world.app = app  # type: ignore[method-assign]
                client.sendall(REQUEST)
                client.setblocking(False)
                async with asyncio.timeout(30):
                    await read.wait()
            assert got.startswith(b"HTTP/1.1 %d " % reply.status)
            assert got.endswith(b'{"stored":1}' if reply is STORED else b"\r\n\r\n")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
