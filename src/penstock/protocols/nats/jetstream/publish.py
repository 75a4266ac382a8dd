"""Targets that pass publishes of clients to streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.protocols.nats.client import ConnectedClient
from penstock.streams import Publisher
from penstock.wire.parser import Publishes


class OpeningTarget:
    """Holds runs until the stream that will store them is open."""

    def __init__(
        self, opening: asyncio.Future[None], route: Callable[[ConnectedClient, Publishes], None]
    ) -> None:
        """`route` passes on a run once the stream is open."""
        self._opening, self._route = opening, route

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        sender.hold()
        self._opening.add_done_callback(lambda _: self._continue(sender, run))

    def _continue(self, sender: ConnectedClient, run: Publishes) -> None:
        self._route(sender, run)
        sender.resume()


class StreamTarget:
    """Passes runs to a stream; while a run waits, its client is not read."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        if not self._publisher.publish(run, sender.resume, sender.number):
            sender.hold()
