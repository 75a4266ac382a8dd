"""Streams whose topics are not open yet.

Their names and subjects are known from the start, so that requests and publishes find them. The
first request or publish that needs a stream opens it; see topics/unopened.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.model.names import TopicName
from penstock.model.subject_tree import SubjectTree
from penstock.streams.partition_streams import SEPARATOR
from penstock.topics import UnopenedTopic, UnopenedTopics
from penstock.wire.jetstream.stream_config import StreamConfig


class UnopenedStreams:
    """The configurations of unopened streams by name, and their names by subject.

    `on_change` is called when a stream has left this collection.
    """

    def __init__(self, topics: UnopenedTopics, on_change: Callable[[], None]) -> None:
        self._unopened, self._on_change = topics, on_change
        self._topics: dict[str, TopicName] = {}
        self._subjects: SubjectTree[str] = SubjectTree()
        self.configs: dict[str, StreamConfig] = {}
        """Without partitioned topics: only their partitions are streams."""

    def add(self, topic: UnopenedTopic, config: StreamConfig | None) -> None:
        """Add a topic until its opening succeeds or fails; a partitioned topic has no
        configuration.
        """
        name = topic.name.topic
        self._topics[name] = topic.name
        if config is not None:
            self.configs[name] = config
            for subject in config.subjects:
                self._subjects.add(subject.encode(), name)
        topic.tried.add_done_callback(lambda _: self._remove(name))

    def open(self, stream: str) -> asyncio.Future[None] | None:
        """Open a stream, or the topic of a partition; completes when that succeeded or failed."""
        for name in (stream, stream.rpartition(SEPARATOR)[0]) if self._topics else ():
            if name in self._topics:
                return self._unopened.open(self._topics[name])
        return None

    def open_first(self, streams: Iterable[str]) -> asyncio.Future[None] | None:
        """Open the first of these streams that is unopened."""
        return next((opening for name in streams if (opening := self.open(name))), None)

    def storing(self, subject: bytes) -> list[str]:
        """Names of the streams that store a subject."""
        return list(self._subjects.find(subject)) if self.configs else []

    def colliding(self, subject: bytes) -> list[str]:
        """Names of the streams that store a subject that a wildcard subject matches."""
        return list(self._subjects.colliding(subject)) if self.configs else []

    def _remove(self, name: str) -> None:
        del self._topics[name]
        config = self.configs.pop(name, None)
        for subject in () if config is None else config.subjects:
            self._subjects.remove(subject.encode(), name)
        self._on_change()
