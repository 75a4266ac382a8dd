"""Publishes into streams, from the door's side."""

from __future__ import annotations

from penstock.doors.nats.client import Client
from penstock.topics.publisher import Publisher
from penstock.wire.parser import Publishes


class StreamTarget:
    """Hands runs to a stream; a client whose run has to wait is not read from meanwhile."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def take(self, sender: Client, run: Publishes) -> None:
        if not self._publisher.publish(run, sender.resume):
            sender.hold()
