"""Streams behind the NATS door: which subjects belong to which service or stream."""

from __future__ import annotations

from typing import Final

from penstock.doors.nats.api import PREFIX, Api
from penstock.doors.nats.exchange import Target
from penstock.doors.nats.message_api import MessageApi
from penstock.doors.nats.publish import StreamTarget
from penstock.doors.nats.server import NatsDoor
from penstock.doors.nats.stream_api import StreamApi
from penstock.doors.nats.stream_info import StreamDescriber
from penstock.topics.host import TopicHost
from penstock.topics.publisher import Publisher
from penstock.topics.streams import Streams
from penstock.topics.topics import Topics

DIRECT_GET: Final = PREFIX + b"DIRECT.GET."
NEXT: Final = PREFIX + b"CONSUMER.MSG.NEXT."


class JetStream:
    """The streams of a broker as its NATS clients see them."""

    def __init__(self, door: NatsDoor, topics: Topics, host: TopicHost) -> None:
        self._door = door
        self.api = Api(lambda reply, body: door.exchange.send(reply, b"", b"", body))
        self.streams = Streams(topics, host, door.exchange.answer)
        self._targets: dict[Publisher, StreamTarget] = {}
        describer = StreamDescriber(self.streams, host.clock)
        name = door.clients.server_name
        self.api.add(StreamApi(self.streams, describer, name, self.api.counted).endpoints())
        self.api.add(MessageApi(self.streams).endpoints())

    def open(self) -> None:
        """Serve what streams there are."""
        self._door.clients.jetstream = True
        self._door.exchange.target_of = self._target_of
        self.streams.on_change = self._door.exchange.changed
        self.streams.open()

    async def close(self) -> None:
        """Answer what was asked."""
        await self.api.drained()
        self.streams.close()

    def _target_of(self, subject: bytes) -> Target | None:
        if subject.startswith(PREFIX):
            return self.api
        publisher = self.streams.route(subject)
        if publisher is None:
            return None
        target = self._targets.get(publisher)
        if target is None:
            target = self._targets[publisher] = StreamTarget(publisher)
        return target
