"""JetStream: resolves subjects to the services of the API and to streams."""

from __future__ import annotations

import asyncio

from penstock.delivery.consumers import Deliveries
from penstock.protocols.nats.exchange import SERVICES, PublishTarget
from penstock.protocols.nats.jetstream.acks import (
    FLOW,
    NEXT,
    AckTarget,
    FlowTarget,
    PullTarget,
    Requester,
)
from penstock.protocols.nats.jetstream.api import PREFIX, Api
from penstock.protocols.nats.jetstream.consumer_api import ConsumerApi
from penstock.protocols.nats.jetstream.direct_get import DIRECT_GET, DirectGets, stream_of
from penstock.protocols.nats.jetstream.message_api import MessageApi
from penstock.protocols.nats.jetstream.publish import OpeningTarget, StreamTarget
from penstock.protocols.nats.jetstream.stream_api import StreamApi
from penstock.protocols.nats.jetstream.stream_info import StreamDescriber
from penstock.protocols.nats.server import NatsServer
from penstock.streams import Publisher, Streams
from penstock.topics import TopicHost


class JetStream:
    """The streams and consumers of a broker, served to NATS clients."""

    def __init__(
        self,
        server: NatsServer,
        streams: Streams,
        deliveries: Deliveries,
        host: TopicHost,
        *,
        wait_for_first: bool = False,
    ) -> None:
        """`streams` and `deliveries` are opened and closed with this.

        `wait_for_first`: a `no_wait` pull with `expires` waits for its first message.
        """
        self._server, self._ownership = server, host.ownership
        exchange, clock = server.exchange, host.clock
        self.api = Api(lambda reply, body, confirms: exchange.answer([reply], [body], confirms))
        self.streams, self.deliveries = streams, deliveries
        streams.watch(routes_changed=self._routes_changed)
        self._targets: dict[Publisher, StreamTarget] = {}
        self._closed = False
        requester = Requester(clock, wait_for_first=wait_for_first)
        self._pulls = PullTarget(exchange, deliveries, requester)
        self._acks = AckTarget(exchange, deliveries, requester)
        self._flow = FlowTarget(deliveries)
        self._direct = DirectGets(streams, exchange, server.clients.limits.pending_bytes)
        describer = StreamDescriber(streams, clock, deliveries.count)
        stream_api = StreamApi(streams, describer, server.clients.server_name, self.api.counted)
        self.api.add(ConsumerApi(deliveries, clock).endpoints())
        self.api.add(stream_api.endpoints())
        self.api.add(MessageApi(streams).endpoints())

    def open(self) -> None:
        """Open the streams and begin to serve them."""
        self._server.clients.enable_jetstream(self._ownership.lease_valid)
        self._server.draining.add(self.deliveries.leave)
        self._server.exchange.route(self._resolve, self._acks)
        self._server.exchange.departures.add(self.streams.open_batches.abandon_all_of)
        self.streams.open()

    async def close(self) -> None:
        """Finish requests in progress and close streams and consumers; runs once."""
        if self._closed:
            return
        self._closed = True
        await self.api.drained()
        await self._direct.drained()
        await self.deliveries.close()
        self.streams.close()

    def _routes_changed(self) -> None:
        self._targets.clear()
        self._direct.changed()
        self._server.exchange.forget_targets()

    def _pending(self, opening: asyncio.Future[None] | None) -> PublishTarget | None:
        """The target that holds publishes while a stream is opening; None if none is."""
        return None if opening is None else OpeningTarget(opening, self._server.exchange.hand_over)

    def _resolve(self, subject: bytes) -> PublishTarget | None:
        """The service or the stream that receives publishes to a subject."""
        if subject.startswith(SERVICES):
            if subject.startswith(NEXT):
                return self._pulls
            if subject.startswith(DIRECT_GET):
                opening = self.streams.opening(stream_of(subject))
                return self._pending(opening) or self._direct.target(subject)
            if subject.startswith(PREFIX):
                return self.api
            if subject.startswith(FLOW):
                return self._flow
        if (pending := self._pending(self.streams.coming(subject))) is not None:
            return pending
        publisher = self.streams.route(subject)
        if publisher is None:
            return None
        target = self._targets.get(publisher)
        if target is None:
            target = self._targets[publisher] = StreamTarget(publisher)
        return target
