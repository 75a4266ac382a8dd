"""The NATS door: listens, and lets clients in and out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from penstock.doors.nats.clients import Clients, NatsLimits
from penstock.doors.nats.connection import Connection
from penstock.doors.nats.greeting import Credentials


class NatsDoor:
    """Serves NATS clients on a socket that is bound already."""

    def __init__(
        self,
        listener: socket.socket,
        limits: NatsLimits,
        credentials: Credentials,
        server_name: str = "",
    ) -> None:
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        self.clients = Clients((host, port), limits, credentials, server_name)
        self.interest, self.exchange = self.clients.interest, self.clients.exchange
        self._server: asyncio.Server | None = None
        self.on_leaving: Callable[[], None] = lambda: None
        """Called before clients are sent away, to tell them what there is to tell."""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=self._listener, backlog=1024)

    def lame_duck(self) -> None:
        """Ask every client to go elsewhere; those that stay are served."""
        for client in self.clients.open.values():
            client.send(self.clients.greeting(client, first=True, lame_duck=True))

    async def drain(self, seconds: float) -> None:
        """Take nobody new, let output be read for a while, close."""
        clients = self.clients
        clients.leaving = True
        self.on_leaving()
        if self._server is not None:
            self._server.close()
        for client in list(clients.open.values()):
            client.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await clients.empty.wait()

    def _connection(self) -> Connection:
        self.clients.total += 1
        return Connection(self.clients, self.clients.total)
