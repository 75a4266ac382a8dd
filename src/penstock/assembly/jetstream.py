"""The streams of a broker, their consumers, and the NATS protocol over both."""

from __future__ import annotations

from penstock.delivery.consumers import Deliveries, DeliveryHost, DeliveryLimits
from penstock.metadata import ProgressUpdater
from penstock.protocols.nats import NatsServer
from penstock.protocols.nats.jetstream import JetStream
from penstock.streams import Streams
from penstock.topics import TopicHost, Topics


def open_jetstream(
    server: NatsServer,
    topics: Topics,
    host: TopicHost,
    progress: ProgressUpdater,
    *,
    wait_for_first: bool = False,
    limits: DeliveryLimits | None = None,
) -> JetStream:
    """Serve the topics as streams over NATS until the result is closed, `progress` with it."""
    exchange = server.exchange
    streams = Streams(topics, host, exchange.answer, exchange.send)
    parts = DeliveryHost(
        outlet=exchange,
        metadata=host.metadata,
        keys=host.keys,
        guard=host.ownership.guard,
        progress=progress,
        clock=host.clock,
        find_storing=streams.find_storing,
        limits=limits or DeliveryLimits(),
    )
    deliveries = Deliveries(parts, streams)
    jetstream = JetStream(server, streams, deliveries, host, wait_for_first=wait_for_first)
    jetstream.open()
    return jetstream
