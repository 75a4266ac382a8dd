"""JetStream: resolves subjects to the services of the API and to streams."""

from __future__ import annotations

import asyncio

from penstock.delivery.consumers import Deliveries
from penstock.protocols.nats.acks import FLOW, NEXT, AckTarget, FlowTarget, Pulls, Requester
from penstock.protocols.nats.api import PREFIX, Api
from penstock.protocols.nats.consumer_api import ConsumerApi
from penstock.protocols.nats.direct_get import DIRECT_GET, DirectGets, stream_of
from penstock.protocols.nats.exchange import SERVICES, PublishTarget
from penstock.protocols.nats.message_api import MessageApi
from penstock.protocols.nats.publish import ComingTarget, StreamTarget
from penstock.protocols.nats.server import NatsServer
from penstock.protocols.nats.stream_api import StreamApi
from penstock.protocols.nats.stream_info import StreamDescriber
from penstock.streams import Publisher, Streams
from penstock.topics.host import TopicHost


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
        self._server = server
        server.clients.lease_valid = host.ownership.lease_valid
        self.api = Api(
            lambda reply, body, confirms: server.exchange.answer([reply], [body], confirms)
        )
        self.streams, self.deliveries = streams, deliveries
        streams.watch(routes_changed=self._changed)
        self._targets: dict[Publisher, StreamTarget] = {}
        self._closed = False
        exchange, clock = server.exchange, host.clock
        requester = Requester(clock, wait_for_first=wait_for_first)
        self._pulls = Pulls(exchange, self.deliveries, requester)
        self._flow = FlowTarget(self.deliveries)
        exchange.acks = AckTarget(exchange, self.deliveries, requester)
        self.api.add(ConsumerApi(self.deliveries, clock).endpoints())
        describer = StreamDescriber(self.streams, host.clock)
        describer.count_consumers = self.deliveries.count
        name = server.clients.server_name
        self.api.add(StreamApi(self.streams, describer, name, self.api.counted).endpoints())
        self.api.add(MessageApi(self.streams).endpoints())
        self._direct = DirectGets(self.streams, exchange, server.clients.limits.pending_bytes)

    def open(self) -> None:
        """Open the streams and begin to serve them."""
        self._server.clients.jetstream = True
        self._server.on_leaving = self.deliveries.leave
        self._server.exchange.target_of = self._target_of
        self._server.exchange.on_departed = self.streams.open_batches.abandon_all_of
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

    def _changed(self) -> None:
        self._targets.clear()
        self._direct.changed()
        self._server.exchange.changed()

    def _held(self, made: asyncio.Future[None] | None) -> PublishTarget | None:
        return None if made is None else ComingTarget(made, self._server.exchange.hand_over)

    def _target_of(self, subject: bytes) -> PublishTarget | None:
        if subject.startswith(SERVICES):
            if subject.startswith(NEXT):
                return self._pulls
            if subject.startswith(DIRECT_GET):
                opening = self.streams.opening(stream_of(subject))
                return self._held(opening) or self._direct.target(subject)
            if subject.startswith(PREFIX):
                return self.api
            if subject.startswith(FLOW):
                return self._flow
        if (held := self._held(self.streams.coming(subject))) is not None:
            return held
        publisher = self.streams.route(subject)
        if publisher is None:
            return None
        target = self._targets.get(publisher)
        if target is None:
            target = self._targets[publisher] = StreamTarget(publisher)
        return target
