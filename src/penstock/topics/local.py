"""Messages of the topics that this broker serves, wherever they lie.

Every read asks anew where the offset is, so nothing that moves messages under way (rotation,
eviction, upload, pruning) makes a fetch skip or repeat one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.log.read import InObjects
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.errors import LogClosed, NotInLog, ResourceUnknown
from penstock.model.units import Offset, PartitionId
from penstock.topics.source import Place
from penstock.topics.topics import OpenTopic, Topics


class LocalSource:
    """Implements Source over the topics that are open here."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def read(
        self, place: Place, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        while True:
            opened = await self._topics.find(place.topic.name)
            _check_same(opened, place)
            partition = opened.partitions.find(place.value)
            if partition is None:
                return AtHead(Offset(opened.log.state.floor))
            try:
                return await read_partition(opened, partition, offset, bytes_max)
            except LogClosed:
                if self._topics.serves(opened):
                    raise

    @contextmanager
    def arrival(
        self, place: Place, offset: Offset, deadline: float
    ) -> Iterator[asyncio.Future[None]]:
        opened = self._topics.get(place.topic.name)
        _check_same(opened, place)
        partition = opened.partitions.find(place.value)
        with (
            opened.partitions.arrival(place.value)
            if partition is None
            else opened.log.waiters.arrival(partition)
        ) as future:
            yield future


def _check_same(opened: OpenTopic, place: Place) -> None:
    if opened.topic.unique != place.topic.unique:
        raise ResourceUnknown("topic", place.topic.name.full)


async def read_partition(
    opened: OpenTopic, partition: PartitionId, offset: Offset, bytes_max: int
) -> list[Batch] | AtHead | Gone:
    """Batches from the first live offset at or after `offset`, wherever they lie."""
    log = opened.log
    while True:
        answer = await log.read(partition, offset, bytes_max)
        if not isinstance(answer, InObjects):
            return answer
        if opened.tier is None:
            raise NotInLog(log.topic, partition, answer.first_offset, answer.next_offset)
        batches = await opened.tier.read(answer, offset)
        # A purge meanwhile: looking again tells that the offset is gone.
        if offset >= log.start_offset(partition):
            return [log.lookup.without_deleted(batch.starting_at(offset)) for batch in batches]
