"""Messages as their receiver sees them, and how they are acknowledged."""

from __future__ import annotations

import json
from typing import Final, NamedTuple, Protocol

from penstock.client.nats.errors import NatsError
from penstock.client.nats.incoming import Arrival
from penstock.wire import headers

ACK: Final = b"+ACK"
IN_PROGRESS: Final = b"+WPI"
ACK_PREFIX: Final = ["$JS", "ACK"]
ACK_TOKENS: Final = 9
SECOND_NS: Final = 1_000_000_000


class Delivery(NamedTuple):
    """Where a message stands in its stream, and which delivery this is."""

    stream: str
    consumer: str
    deliveries: int
    """How often it was delivered, this time included."""
    sequence: int
    consumer_sequence: int
    timestamp_ns: int
    pending: int
    """Messages behind it that the consumer has not delivered yet."""


class Answering(Protocol):
    """What a message is acknowledged over."""

    async def send(self, subject: str, payload: bytes) -> None: ...

    async def ask(self, subject: str, payload: bytes, seconds: float) -> Arrival: ...


class Message:
    """A message of a consumer; unacknowledged it comes again."""

    def __init__(self, arrival: Arrival, answering: Answering) -> None:
        self.subject = arrival.subject.decode()
        self.payload = arrival.payload
        self.headers = arrival.headers
        """The block as it is on the wire, `b""` without any."""
        self.reply = arrival.reply.decode()
        self._answering = answering

    def header(self, name: str) -> str | None:
        """The first value of a field; names are compared by case."""
        value = headers.get(self.headers, name.encode())
        return None if value is None else value.decode(errors="replace")

    @property
    def delivery(self) -> Delivery:
        """Raises NatsError for a message that no consumer delivered."""
        return delivery_of(self.reply)

    async def ack(self) -> None:
        """Done; sent, not confirmed."""
        await self._answering.send(self.reply, ACK)

    async def ack_confirmed(self, seconds: float = 5.0) -> None:
        """Done, and the server has it in writing; raises NatsTimeout and NatsStatus."""
        await self._answering.ask(self.reply, ACK, seconds)

    async def nak(self, delay_seconds: float | None = None) -> None:
        """Not done: deliver it again, now or after a while."""
        await self._answering.send(self.reply, nak_payload(delay_seconds))

    async def in_progress(self) -> None:
        """Not done yet: the time for the acknowledgement begins anew."""
        await self._answering.send(self.reply, IN_PROGRESS)

    async def term(self, reason: str = "") -> None:
        """Never deliver it again."""
        await self._answering.send(self.reply, f"+TERM {reason}".rstrip().encode())

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, {len(self.payload)} bytes)"


def delivery_of(reply: str) -> Delivery:
    tokens = reply.split(".")
    if len(tokens) != ACK_TOKENS or tokens[:2] != ACK_PREFIX:
        raise NatsError(f"the message is not of a consumer: its reply subject is {reply!r}")
    stream, consumer, *numbers = tokens[2:]
    return Delivery(stream, consumer, *map(int, numbers))


def nak_payload(delay_seconds: float | None) -> bytes:
    if delay_seconds is None:
        return b"-NAK"
    return b"-NAK " + json.dumps({"delay": round(delay_seconds * SECOND_NS)}).encode()
