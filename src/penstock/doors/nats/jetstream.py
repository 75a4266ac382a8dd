"""Streams behind the NATS door: which subjects belong to which service or stream."""

from __future__ import annotations

from penstock.delivery.consumers.deliveries import Deliveries
from penstock.delivery.consumers.host import DeliveryHost
from penstock.doors.nats.acks import FLOW, NEXT, AckTarget, FlowTarget, Pulls
from penstock.doors.nats.api import PREFIX, Api
from penstock.doors.nats.consumer_api import ConsumerApi
from penstock.doors.nats.direct_get import DIRECT_GET, DirectGets
from penstock.doors.nats.exchange import SERVICES, Target
from penstock.doors.nats.message_api import MessageApi
from penstock.doors.nats.publish import ComingTarget, RollUpTarget, StreamTarget
from penstock.doors.nats.server import NatsDoor
from penstock.doors.nats.stream_api import StreamApi
from penstock.doors.nats.stream_info import StreamDescriber
from penstock.metadata.progress import ProgressUpdater
from penstock.topics.host import TopicHost
from penstock.topics.streams.publisher import Publisher
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.streams import Streams
from penstock.topics.topics import Topics


class JetStream:
    """The streams of a broker as its NATS clients see them."""

    def __init__(
        self, door: NatsDoor, topics: Topics, host: TopicHost, progress: ProgressUpdater
    ) -> None:
        """`progress` is closed with this."""
        self._door = door
        self.api = Api(lambda reply, body: door.exchange.send(reply, b"", b"", body))
        self.streams = Streams(topics, host, door.exchange.answer)
        self._targets: dict[Publisher, StreamTarget] = {}
        self._progress = progress
        self._closed = False
        self.deliveries = self._deliveries(host)
        exchange, clock = door.exchange, host.clock
        self._pulls = Pulls(exchange, self.deliveries, clock)
        self._flow = FlowTarget(self.deliveries)
        exchange.acks = AckTarget(exchange, self.deliveries, clock)
        self.api.add(ConsumerApi(self.deliveries, clock).endpoints())
        describer = StreamDescriber(self.streams, host.clock)
        describer.count_consumers = self.deliveries.count
        name = door.clients.server_name
        self.api.add(StreamApi(self.streams, describer, name, self.api.counted).endpoints())
        self.api.add(MessageApi(self.streams).endpoints())
        self._direct = DirectGets(self.streams, exchange, door.clients.limits.pending_bytes)

    def open(self) -> None:
        """Serve what streams there are."""
        self._door.clients.jetstream = True
        self._door.on_leaving = self.deliveries.leave
        self._door.exchange.target_of = self._target_of
        self.streams.on_change = self._changed
        self.streams.send = self.streams.staging.send = self._door.exchange.send
        self._door.exchange.on_departed = self.streams.staging.left
        self.streams.on_stream = self.deliveries.opened
        self.streams.on_gone = self.deliveries.gone
        self.streams.open()

    async def close(self) -> None:
        """Answer what was asked, tell whoever waits; once."""
        if self._closed:
            return
        self._closed = True
        await self.api.drained()
        await self._direct.drained()
        await self.deliveries.close()
        self.streams.close()
        await self._progress.close()

    def _changed(self) -> None:
        self._targets.clear()
        self._direct.changed()
        self._door.exchange.changed()

    def _deliveries(self, host: TopicHost) -> Deliveries:
        guard = host.ownership.guard
        exchange, progress = self._door.exchange, self._progress
        parts = DeliveryHost(
            exchange, host.metadata, host.keys, guard, progress, host.clock, self._taker
        )
        return Deliveries(parts, self.streams.get)

    def _taker(self, subject: bytes) -> Stream | None:
        publisher = self.streams.route(subject)
        return None if publisher is None else publisher.stream

    def _rollup(self, subject: bytes) -> Target | None:
        publisher = self.streams.route_rollup(subject)
        if publisher is None:
            return None
        return RollUpTarget(publisher, self._door.exchange.refuse)

    def _target_of(self, subject: bytes) -> Target | None:
        if subject.startswith(SERVICES):
            if subject.startswith(NEXT):
                return self._pulls
            if subject.startswith(DIRECT_GET):
                return self._direct.target(subject)
            if subject.startswith(PREFIX):
                return self.api
            if subject.startswith(FLOW):
                return self._flow
        made = self.streams.coming(subject)
        if made is not None:
            return ComingTarget(made, self._door.exchange.hand_over)
        publisher = self.streams.route(subject)
        if publisher is None:
            return self._rollup(subject)
        target = self._targets.get(publisher)
        if target is None:
            target = self._targets[publisher] = StreamTarget(publisher)
        return target
