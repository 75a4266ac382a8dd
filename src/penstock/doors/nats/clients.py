"""All clients of the door: who may come, how many there are, what they have in common."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from penstock.doors.nats.client import Client
from penstock.doors.nats.exchange import Exchange
from penstock.doors.nats.greeting import PROTOCOL, Credentials, Info, encode_info
from penstock.doors.nats.interest import Interest
from penstock.host.entropy import unique_name
from penstock.wire.jetstream.levels import API_LEVEL, VERSION

_events = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NatsLimits:
    """What a client may do."""

    connections: int = 65_536
    payload_bytes: int = 1 << 20
    pending_bytes: int = 64 << 20
    """Output that waits to be read; a slower client is cut off."""
    subscriptions: int = 1_000_000
    ping_seconds: float = 120.0
    pings_out: int = 2
    auth_seconds: float = 2.0


class Clients:
    """The clients, and what each of them is served by."""

    def __init__(
        self, address: tuple[str, int], limits: NatsLimits, credentials: Credentials, name: str
    ) -> None:
        self.limits, self.credentials = limits, credentials
        self.interest = Interest()
        self.exchange = Exchange(self.interest)
        self.jetstream = False
        """Whether streams are served too."""
        self.server_id = unique_name()
        self.server_name = name or self.server_id
        self.open: dict[int, Client] = {}
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        """Of clients that are gone."""
        self.slow_consumers = 0
        self.total = 0
        self.leaving = False
        self.empty = asyncio.Event()
        self.empty.set()
        self.address = address

    def admit(self, client: Client) -> bool:
        """Whether there is room for one more."""
        if self.leaving or len(self.open) >= self.limits.connections:
            return False
        self.open[client.number] = client
        self.empty.clear()
        return True

    def forget(self, client: Client) -> None:
        if self.open.pop(client.number, None) is not None:
            self.in_messages += client.in_messages
            self.in_bytes += client.in_bytes
            self.out_messages += client.out_messages
            self.out_bytes += client.out_bytes
            self.exchange.departed(client)
        if not self.open:
            self.empty.set()

    def cut_off(self, client: Client) -> None:
        """A client does not read what it asked for."""
        self.slow_consumers += 1
        _events.warning("nats_slow_consumer", client=client.number, name=client.options.name)

    def greeting(self, client: Client, *, first: bool, lame_duck: bool = False) -> bytes:
        """INFO: the first, the one that confirms the account, or the one that sends it away."""
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
