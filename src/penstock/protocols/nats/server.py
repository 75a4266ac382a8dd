"""The NATS server: accepts clients and disconnects them on shutdown."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.config import Address
from penstock.host.notifier import Notifier
from penstock.protocols.listener import BACKLOG_CONNECTIONS, Listener
from penstock.protocols.nats.clients import Clients, NatsLimits
from penstock.protocols.nats.connection import ClientConnection
from penstock.protocols.nats.greeting import Credentials


class NatsServer:
    """Serves NATS clients on listening sockets."""

    def __init__(
        self,
        listener: Listener,
        limits: NatsLimits,
        credentials: Credentials,
        server_name: str = "",
        shown: Address | None = None,
    ) -> None:
        """INFO has the address `shown`, or else the first of the listener."""
        self._listener = listener
        self.addresses = listener.addresses
        self.clients = Clients(shown or listener.addresses[0], limits, credentials, server_name)
        self.interest, self.exchange = self.clients.interest, self.clients.exchange
        self._servers: list[asyncio.Server] = []
        self.draining: Notifier[[]] = Notifier()
        """Notified before clients are disconnected, so that they can be sent a last status."""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listener.sockets:
            server = await loop.create_server(
                self._create_connection, sock=sock, backlog=BACKLOG_CONNECTIONS
            )
            self._servers.append(server)

    def lame_duck(self) -> None:
        """Send lame duck INFO to every client; those that stay connected are served."""
        for client in self.clients.open.values():
            client.send(self.clients.greeting(client, first=True, lame_duck=True))

    async def drain(self, seconds: float) -> None:
        """Accept no new clients, close all connections, and wait for their output."""
        clients = self.clients
        clients.leaving = True
        self.draining()
        for server in self._servers:
            server.close()
        for client in list(clients.open.values()):
            client.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await clients.empty.wait()

    def _create_connection(self) -> ClientConnection:
        return ClientConnection(self.clients)
