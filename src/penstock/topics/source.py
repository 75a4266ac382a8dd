"""`Source`, from which fetches read, and the source that reads the topics of this broker.

Every read locates the offset again, so that no fetch skips or repeats a message that rotation,
eviction, upload or pruning moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import LogClosed, ResourceUnknown
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.units import Offset
from penstock.topics.open_topic import OpenTopic
from penstock.topics.topics import Topics


class TopicPartition(NamedTuple):
    """One partition of a topic, by its value; None is the only partition of an unpartitioned
    topic.
    """

    topic: Topic
    value: PartitionValue | None


class Source(Protocol):
    """Reads committed messages of any topic."""

    async def read(
        self, partition: TopicPartition, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        """Batches from the first live offset at or after `offset`, about `bytes_max`, without a
        gap.

        A partition that does not exist yet is at its head. Raises what reading raises.
        """

    def arrival(
        self, partition: TopicPartition, offset: Offset, deadline: float
    ) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that completes when more may be readable; register, then read again, then wait.

        `deadline` is the event loop's time at which the reader stops waiting.
        """


class LocalSource:
    """Implements Source over the topics that are open here."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def read(
        self, partition: TopicPartition, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        while True:
            opened = await self._topics.find(partition.topic.name)
            _check_same(opened, partition)
            partition_id = opened.partitions.find(partition.value)
            if partition_id is None:
                return AtHead(opened.floor)
            try:
                return await opened.partition(partition_id).read(offset, bytes_max)
            except LogClosed:
                if self._topics.serves(opened):
                    raise

    @contextmanager
    def arrival(
        self, partition: TopicPartition, offset: Offset, deadline: float
    ) -> Iterator[asyncio.Future[None]]:
        opened = self._topics.get(partition.topic.name)
        _check_same(opened, partition)
        partition_id = opened.partitions.find(partition.value)
        with (
            opened.partitions.arrival(partition.value)
            if partition_id is None
            else opened.partition(partition_id).arrival(offset)
        ) as future:
            yield future


def _check_same(opened: OpenTopic, partition: TopicPartition) -> None:
    if opened.topic.unique != partition.topic.unique:
        raise ResourceUnknown("topic", partition.topic.name.full)
