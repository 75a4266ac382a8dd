"""Targets that pass publishes of clients to streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.protocols.nats.client import ConnectedClient
from penstock.streams import Publisher
from penstock.wire.parser import Publishes


class ComingTarget:
    """Holds runs until the stream that will store them is open."""

    def __init__(
        self, made: asyncio.Future[None], take: Callable[[ConnectedClient, Publishes], None]
    ) -> None:
        """`take` routes a run once the stream is open."""
        self._made, self._take = made, take

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        sender.hold()
        self._made.add_done_callback(lambda _: self._go_on(sender, run))

    def _go_on(self, sender: ConnectedClient, run: Publishes) -> None:
        self._take(sender, run)
        sender.resume()


class StreamTarget:
    """Passes runs to a stream; while a run waits, its client is not read."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        if not self._publisher.publish(run, sender.resume, sender.number):
            sender.hold()
