"""A NATS server that sends only what a test makes it send."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from penstock.client.nats.connection import NatsConnection

GREETING = b'INFO {"server_id":"x","max_payload":1048576} \r\n'


class Scripted:
    """Accepts one connection; `sent` is what the client has sent so far."""

    def __init__(self, greeting: bytes = GREETING, *, pongs: bool = True) -> None:
        self._greeting, self._pongs = greeting, pongs
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._names = iter(f"u{number}" for number in range(100))
        self.sent = b""
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self.hang_up()
        self._server.close()
        await self._server.wait_closed()

    async def connect(self, user: str = "") -> NatsConnection:
        url = f"nats://{user}127.0.0.1:{self.port}"
        return await NatsConnection.open(url, lambda: next(self._names))

    def say(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def heard(self, data: bytes) -> None:
        """Wait until the client has sent these bytes."""
        async with asyncio.timeout(10):
            while data not in self.sent:
                await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(self._greeting)
        while data := await reader.read(65_536):
            self.sent += data
            if self._pongs and data.endswith(b"PING\r\n"):
                writer.write(b"PONG\r\n")
        writer.close()
