"""A NATS client for asyncio that pulls from JetStream consumers; public as `penstock.nats`."""

from penstock.client.nats.client import NatsClient, PullSubscription, Stored, connect
from penstock.client.nats.errors import (
    NatsError,
    NatsProtocolError,
    NatsRefused,
    NatsStatus,
    NatsTimeout,
    NatsUnreachable,
)
from penstock.client.nats.messages import Delivery, Message

__all__ = [
    "Delivery",
    "Message",
    "NatsClient",
    "NatsError",
    "NatsProtocolError",
    "NatsRefused",
    "NatsStatus",
    "NatsTimeout",
    "NatsUnreachable",
    "PullSubscription",
    "Stored",
    "connect",
]
