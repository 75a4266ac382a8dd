"""Topics on record that this broker has not tried to open since it started.

A start only lists the topics. The first request that needs a topic opens it; all others are opened
in the background, because uploads, retention and deliveries need open topics too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.host.tasks import Tasks
from penstock.metadata import StoredTopic
from penstock.model.names import TopicName

OPENED_AT_ONCE: Final = 8
"""Few enough that a topic which a request needs does not wait long for the others."""


@dataclass(slots=True, eq=False)
class UnopenedTopic:
    """A topic's record, and its configuration as a stream (empty if it has none)."""

    record: StoredTopic
    stream: bytes
    tried: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Completes when the topic is open, or could not be opened."""
    started: bool = False
    _tasks: Tasks = field(default_factory=Tasks)

    @property
    def name(self) -> TopicName:
        return self.record.topic.name

    def start(self, open_topic: Callable[[StoredTopic], Awaitable[None]]) -> None:
        """Start to open the topic, once."""
        if not self.started:
            self.started = True
            self._tasks.start(self._run(open_topic))

    async def _run(self, open_topic: Callable[[StoredTopic], Awaitable[None]]) -> None:
        try:
            await open_topic(self.record)
        finally:
            self.tried.set_result(None)


class UnopenedTopics:
    """Opens each topic once: for the first request, or in the background.

    `open_topic` opens a topic or logs why it cannot; it raises nothing.
    """

    def __init__(self, open_topic: Callable[[StoredTopic], Awaitable[None]]) -> None:
        self._open_topic = open_topic
        self._topics: dict[TopicName, UnopenedTopic] = {}
        self._background = Tasks()
        self._closed = False

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[UnopenedTopic]:
        return iter(list(self._topics.values()))

    def add(self, record: StoredTopic, stream: bytes) -> None:
        name = record.topic.name
        unopened = self._topics[name] = UnopenedTopic(record, stream)
        # Registered first, so that all other waiters find the topic removed.
        unopened.tried.add_done_callback(lambda _: self._topics.pop(name))

    def open(self, name: TopicName) -> asyncio.Future[None] | None:
        """Open a topic now; completes when that succeeded or failed. None if the topic is not
        unopened.
        """
        unopened = self._topics.get(name)
        if unopened is None or self._closed:
            return None
        unopened.start(self._open_topic)
        return unopened.tried

    async def tried(self, name: TopicName) -> None:
        """Open a topic, if it is unopened, and wait until that succeeded or failed."""
        if (opening := self.open(name)) is not None:
            await asyncio.wait([opening])

    async def open_all(self) -> None:
        """Open every topic; returns when each succeeded or failed."""
        unopened_topics = iter(self)

        async def open_next() -> None:
            for unopened in unopened_topics:
                await self.tried(unopened.name)

        async with asyncio.TaskGroup() as opening_tasks:
            for _ in range(min(OPENED_AT_ONCE, len(self))):
                opening_tasks.create_task(open_next())

    def open_in_background(self) -> None:
        self._background.start(self.open_all())

    async def close(self) -> None:
        """Open no more topics; wait for those that are being opened."""
        self._closed = True
        await self._background.cancel()
        opening = [unopened.tried for unopened in self if unopened.started]
        if opening:
            await asyncio.wait(opening)
