"""The NATS door: listens, greets, keeps its connections and their limits."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass

import structlog

from penstock.doors.nats.connection import Connection
from penstock.doors.nats.exchange import Exchange
from penstock.doors.nats.greeting import PROTOCOL, Credentials, Info, encode_info
from penstock.doors.nats.interest import Interest
from penstock.host.entropy import unique_name
from penstock.wire.jetstream.levels import API_LEVEL, VERSION

_events = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NatsLimits:
    """What a connection may do."""

    connections: int = 65_536
    payload_bytes: int = 1 << 20
    pending_bytes: int = 64 << 20
    """Output that waits to be read; a slower client is cut off."""
    subscriptions: int = 1_000_000
    ping_seconds: float = 120.0
    pings_out: int = 2
    auth_seconds: float = 2.0


class NatsDoor:
    """Serves NATS clients on a socket that is bound already."""

    def __init__(
        self,
        listener: socket.socket,
        limits: NatsLimits,
        credentials: Credentials,
        server_name: str = "",
    ) -> None:
        self.limits, self.credentials = limits, credentials
        self.interest = Interest()
        self.exchange = Exchange(self.interest)
        self.jetstream = False
        """Whether streams are served too."""
        self.connections: dict[int, Connection] = {}
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        """Of connections that are gone."""
        self.slow_consumers = 0
        self.total_connections = 0
        self.server_id = unique_name()
        self.server_name = server_name or self.server_id
        self._listener = listener
        self._host, self._port = listener.getsockname()[:2]
        self._server: asyncio.Server | None = None
        self._leaving = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=self._listener, backlog=1024)

    async def drain(self, seconds: float) -> None:
        """Take nobody new, let output be read for a while, close."""
        self._leaving = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections.values()):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        if self._leaving or len(self.connections) >= self.limits.connections:
            return False
        self.connections[connection.number] = connection
        self._empty.clear()
        return True

    def forget(self, connection: Connection) -> None:
        if self.connections.pop(connection.number, None) is not None:
            self.in_messages += connection.in_messages
            self.in_bytes += connection.in_bytes
            self.out_messages += connection.out_messages
            self.out_bytes += connection.out_bytes
        if not self.connections:
            self._empty.set()

    def cut_off(self, connection: Connection) -> None:
        self.slow_consumers += 1
        _events.warning(
            "nats_slow_consumer", client=connection.number, name=connection.options.name
        )

    def greeting(self, connection: Connection, *, first: bool) -> bytes:
        """INFO, the first or the one that confirms the account."""
        info = Info(
            server_id=self.server_id,
            server_name=self.server_name,
            version=VERSION,
            proto=PROTOCOL,
            git_commit="",
            go="",
            host=self._host,
            port=self._port,
            headers=True,
            auth_required=self.credentials.required,
            max_payload=self.limits.payload_bytes,
            jetstream=self.jetstream,
            client_id=connection.number,
            client_ip=connection.address[0],
            api_lvl=API_LEVEL if self.jetstream else 0,
            connect_info=not first,
            remote_account="" if first else "$G",
        )
        return encode_info(info)

    def _connection(self) -> Connection:
        self.total_connections += 1
        return Connection(self, self.total_connections)
