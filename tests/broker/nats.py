"""A NATS server on a free port, and clients that speak the protocol in plain bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

import msgspec

from penstock.config import Address
from penstock.protocols.listener import listen
from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.connection import ClientConnection
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.server import NatsServer

WAIT_SECONDS: Final = 30.0
READ_BYTES_MAX: Final = 8 << 20
BLOCK: Final = b"NATS/1.0\r\nA: b\r\n\r\n"


class Talk:
    """One client; every read has a timeout."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.greeting: dict[str, Any] = {}

    async def greeted(self) -> None:
        self.greeting = await self.info()

    async def info(self) -> dict[str, Any]:
        """Read the next line, which is INFO."""
        line = await self.line()
        assert line.startswith(b"INFO {")
        assert line.endswith(b"} \r\n")
        told: dict[str, Any] = msgspec.json.decode(line[5:])
        return told

    async def line(self) -> bytes:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.reader.readuntil(b"\r\n")

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def expect(self, data: bytes) -> None:
        """Read these bytes, and fail if others arrive."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                got = await self.reader.readexactly(len(data))
            except asyncio.IncompleteReadError as error:
                got = error.partial
        assert got == data

    async def answer(self, *data: bytes) -> bytes:
        """Send data and a PING; returns the output before the PONG."""
        self.send(*data, b"PING\r\n")
        async with asyncio.timeout(WAIT_SECONDS):
            got = await self.reader.readuntil(b"PONG\r\n")
        return got.removesuffix(b"PONG\r\n")

    async def closed(self, *data: bytes) -> bytes:
        """Send data; returns the output until the server closes the connection."""
        self.send(*data)
        got = b""
        async with asyncio.timeout(WAIT_SECONDS):
            with suppress(ConnectionResetError):
                while more := await self.reader.read(1 << 16):
                    got += more
        return got

    async def end(self) -> None:
        """Close the connection."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class NatsSite:
    """A server and its clients, all closed at the end."""

    def __init__(self, limits: NatsLimits | None = None, credentials: Credentials | None = None):
        listener = listen([Address("127.0.0.1", 0)], "--nats")
        self.server = NatsServer(
            listener, limits or NatsLimits(), credentials or Credentials(), "lab"
        )
        self.talks: list[Talk] = []

    async def __aenter__(self) -> NatsSite:
        await self.server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for talk in self.talks:
            talk.writer.transport.abort()
        await self.server.drain(WAIT_SECONDS)

    async def open(self) -> Talk:
        """Connect a client that has sent nothing."""
        host, port = self.server.addresses[0]
        talk = Talk(*await asyncio.open_connection(host, int(port), limit=READ_BYTES_MAX))
        self.talks.append(talk)
        await talk.greeted()
        return talk

    async def connect(self, **options: Any) -> Talk:
        """Connect a client with these options, otherwise those of most libraries."""
        told = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        talk = await self.open()
        talk.send(b"CONNECT ", msgspec.json.encode({**told, **options}), b"\r\n")
        return talk


def connection_of(client: ConnectedClient) -> ClientConnection:
    """The connection that handles the input of a client."""
    assert client._transport is not None
    connection = client._transport.get_protocol()
    assert isinstance(connection, ClientConnection)
    return connection
