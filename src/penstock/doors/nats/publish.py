"""Publishes into streams, from the door's side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.doors.nats.client import Client
from penstock.topics.streams.publisher import Publisher
from penstock.wire.parser import Publishes

ROLLUP: Final = b"\r\nNats-Rollup:"


class ComingTarget:
    """Keeps runs until the stream is made that will store them."""

    def __init__(
        self, made: asyncio.Future[None], take: Callable[[Client, Publishes], None]
    ) -> None:
        """`take` finds out anew who takes a run."""
        self._made, self._take = made, take

    def take(self, sender: Client, run: Publishes) -> None:
        sender.hold()
        self._made.add_done_callback(lambda _: self._go_on(sender, run))

    def _go_on(self, sender: Client, run: Publishes) -> None:
        self._take(sender, run)
        sender.resume()


class RollUpTarget:
    """Takes publishes to subjects with wildcards: to roll up what matches, and nothing else."""

    def __init__(self, publisher: Publisher, refuse: Callable[[Client, Publishes], None]) -> None:
        self._publisher, self._refuse = publisher, refuse

    def take(self, sender: Client, run: Publishes) -> None:
        blocks = run.headers or [b""] * len(run.payloads)
        for subject, reply, block, payload in zip(
            run.subjects, run.replies, blocks, run.payloads, strict=True
        ):
            if ROLLUP in block:
                self._publisher.roll_up(Publishes([subject], [reply], [block], [payload]))
            else:
                self._refuse(sender, Publishes([subject], [reply], None, [payload]))


class StreamTarget:
    """Hands runs to a stream; a client whose run has to wait is not read from meanwhile."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def take(self, sender: Client, run: Publishes) -> None:
        if not self._publisher.publish(run, sender.resume, sender.number):
            sender.hold()
