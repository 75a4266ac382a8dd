"""All clients of the server: admission, totals, and the objects that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.host.entropy import unique_name
from penstock.protocols.nats.client import ConnectedClient, OutputGate
from penstock.protocols.nats.exchange import Exchange
from penstock.protocols.nats.greeting import PROTOCOL, Credentials, Info, encode_info
from penstock.protocols.nats.interest import Interest
from penstock.wire.jetstream.levels import API_LEVEL, VERSION


@dataclass(frozen=True, slots=True)
class NatsLimits:
    """Limits of clients."""

    connections: int = 65_536
    payload_bytes: int = 1 << 20
    pending_bytes: int = 64 << 20
    """The most output that waits to be read; a slower client is disconnected."""
    subscriptions: int = 1_000_000
    ping_seconds: float = 120.0
    pings_out: int = 2
    """A client that leaves more PINGs unanswered is disconnected."""
    first_ping_seconds: float = 2.0
    auth_seconds: float = 2.0
    linger_seconds: float = 10.0
    """How long a client may read pending output before its closing connection is aborted."""
    work_per_turn: int = 50_000
    """The most deliveries and visited subscriptions for one client in one turn of the event loop;
    a single message may exceed it.
    """


class Clients:
    """The connected clients, and the limits, interest and exchange that they share."""

    def __init__(
        self, address: tuple[str, int], limits: NatsLimits, credentials: Credentials, name: str
    ) -> None:
        self.limits, self.credentials = limits, credentials
        self.gate = OutputGate(limits.pending_bytes, limits.linger_seconds)
        self.interest = Interest()
        self.exchange = Exchange(self.interest)
        self.jetstream = False
        """Whether JetStream is enabled."""
        self.server_id = unique_name()
        self.server_name = name or self.server_id
        self.open: dict[int, ConnectedClient] = {}
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        """Totals of the clients that have disconnected."""
        self.total = 0
        self.leaving = False
        self.empty = asyncio.Event()
        self.empty.set()
        self.address = address

    def enable_jetstream(self, lease_valid: Callable[[], bool]) -> None:
        """Announce JetStream to clients; write confirmations only while the lease is valid."""
        self.jetstream = True
        self.gate.require_lease(lease_valid)

    def create_client(self) -> ConnectedClient:
        """A client that has no connection yet."""
        self.total += 1
        return ConnectedClient(
            self.total, self.gate, self.interest.remove, self.interest.remove_all
        )

    def admit(self, client: ConnectedClient) -> bool:
        """Register a client; returns False if the server is full or stopping."""
        if self.leaving or len(self.open) >= self.limits.connections:
            return False
        self.open[client.number] = client
        self.empty.clear()
        return True

    def forget(self, client: ConnectedClient) -> None:
        if self.open.pop(client.number, None) is not None:
            self.in_messages += client.in_messages
            self.in_bytes += client.in_bytes
            self.out_messages += client.out_messages
            self.out_bytes += client.out_bytes
            self.exchange.client_departed(client)
        if not self.open:
            self.empty.set()

    def greeting(self, client: ConnectedClient, *, first: bool, lame_duck: bool = False) -> bytes:
        """INFO: the greeting, the one after CONNECT, or the one of lame duck mode."""
        info = Info(
            server_id=self.server_id,
            server_name=self.server_name,
            version=VERSION,
            proto=PROTOCOL,
            git_commit="",
            go="",
            host=self.address[0],
            port=self.address[1],
            headers=True,
            auth_required=self.credentials.required,
            max_payload=self.limits.payload_bytes,
            jetstream=self.jetstream,
            client_id=client.number,
            client_ip=client.address[0],
            ldm=lame_duck,
            api_lvl=API_LEVEL,
            connect_info=not first,
            remote_account="" if first else "$G",
        )
        return encode_info(info)
