"""Messages of consumers and their acknowledgement."""

from __future__ import annotations

import json
from typing import Final, NamedTuple, Protocol

from penstock.client.nats.errors import NatsError
from penstock.client.nats.protocol import Arrival
from penstock.wire import headers

ACK: Final = b"+ACK"
IN_PROGRESS: Final = b"+WPI"
ACK_PREFIX: Final = ["$JS", "ACK"]
ACK_TOKENS: Final = 9
SECOND_NS: Final = 1_000_000_000


class Delivery(NamedTuple):
    """Position of a message in its stream and consumer, from its reply subject."""

    stream: str
    consumer: str
    deliveries: int
    """Number of deliveries, including this one."""
    sequence: int
    consumer_sequence: int
    timestamp_ns: int
    pending: int
    """Later messages that the consumer has not delivered yet."""


class AckSender(Protocol):
    """Sends acknowledgements, with or without waiting for a confirmation."""

    async def send(self, subject: str, payload: bytes) -> None: ...

    async def ask(self, subject: str, payload: bytes, seconds: float) -> Arrival: ...


class Message:
    """A message of a consumer; the consumer redelivers it if it is not acknowledged."""

    def __init__(self, arrival: Arrival, sender: AckSender) -> None:
        self.subject = arrival.subject.decode()
        self.payload = arrival.payload
        self.headers = arrival.headers
        """The header block as it was received; `b""` if there is none."""
        self.reply = arrival.reply.decode()
        self._sender = sender

    def header(self, name: str) -> str | None:
        """The first value of a header; names are case-sensitive."""
        value = headers.get(self.headers, name.encode())
        return None if value is None else value.decode(errors="replace")

    @property
    def delivery(self) -> Delivery:
        """The message's position; raises NatsError if no consumer delivered it."""
        return delivery_of(self.reply)

    async def ack(self) -> None:
        """Acknowledge the message without waiting for a confirmation."""
        await self._sender.send(self.reply, ACK)

    async def ack_confirmed(self, seconds: float = 5.0) -> None:
        """Acknowledge the message and wait until the server has stored that.

        Raises NatsTimeout and NatsStatus.
        """
        await self._sender.ask(self.reply, ACK, seconds)

    async def nak(self, delay_seconds: float | None = None) -> None:
        """Request a redelivery, at once or after a delay."""
        await self._sender.send(self.reply, nak_payload(delay_seconds))

    async def in_progress(self) -> None:
        """Restart the acknowledgement timeout."""
        await self._sender.send(self.reply, IN_PROGRESS)

    async def term(self, reason: str = "") -> None:
        """Request that the message is never redelivered."""
        await self._sender.send(self.reply, f"+TERM {reason}".rstrip().encode())

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, {len(self.payload)} bytes)"


def delivery_of(reply: str) -> Delivery:
    tokens = reply.split(".")
    if len(tokens) != ACK_TOKENS or tokens[:2] != ACK_PREFIX:
        raise NatsError(f"no consumer delivered the message: its reply subject is {reply!r}")
    stream, consumer, *numbers = tokens[2:]
    return Delivery(stream, consumer, *map(int, numbers))


def nak_payload(delay_seconds: float | None) -> bytes:
    if delay_seconds is None:
        return b"-NAK"
    return b"-NAK " + json.dumps({"delay": round(delay_seconds * SECOND_NS)}).encode()
