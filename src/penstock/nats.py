"""A NATS client for asyncio that pulls: `import penstock.nats`."""

from penstock.client.nats import (
    Delivery,
    Message,
    NatsClient,
    NatsError,
    NatsProtocolError,
    NatsRefused,
    NatsStatus,
    NatsTimeout,
    NatsUnreachable,
    PullSubscription,
    Stored,
    connect,
)

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
