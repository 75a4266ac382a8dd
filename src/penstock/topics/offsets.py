"""Offset locations of this broker's topics, for fetch nodes that read from the bucket."""

from __future__ import annotations

import asyncio

from pyroaring import BitMap64

from penstock.host.clock import Clock
from penstock.metadata.catalog import (
    PAGE_SIZE_MAX,
    AtOwner,
    InObject,
    ListPage,
    Location,
    PageQuery,
    PartitionState,
)
from penstock.model.errors import FetchInvalid, OffsetGone
from penstock.model.limits import PARTITION_DIGITS_MAX
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.tiers import encode_record
from penstock.topics.open_topic import OpenTopic
from penstock.topics.source import LocalSource, TopicPartition
from penstock.topics.topics import Topics

NO_PARTITION = PartitionId(-1)


class LocalOffsets:
    """Implements OffsetRegistry; `address` is that of this broker's HTTP server, HOST:PORT."""

    def __init__(self, topics: Topics, address: str, clock: Clock | None = None) -> None:
        self._topics, self._address = topics, address
        self._source = LocalSource(topics)
        self._clock = clock or Clock()

    async def offset_location(
        self,
        topic: TopicName,
        value: PartitionValue | None,
        offset: Offset,
        deadline: Microseconds,
    ) -> Location | None:
        # Outside the deadline: opening the topic must have a reply, however long it takes.
        await self._find(topic, value)
        seconds = (deadline - self._clock.now_us()) / 1_000_000
        until = asyncio.get_running_loop().time() + seconds
        limit = asyncio.timeout_at(until)
        try:
            async with limit:
                return await self._wait_for(topic, value, offset, until)
        except TimeoutError:
            if not limit.expired():
                raise
            return None

    async def get_partition(self, topic: TopicName, value: PartitionValue | None) -> PartitionState:
        return _state(await self._find(topic, value), value)

    async def list_partitions(self, topic: TopicName, page: PageQuery) -> ListPage[PartitionState]:
        opened = await self._topics.find(topic)
        first, size = _first_partition(page.token), min(max(page.size, 1), PAGE_SIZE_MAX)
        values = opened.partitions.slice(first, size + 1)
        more = str(first + size - 1) if len(values) > size else ""
        return ListPage([_state(opened, value) for value in values[:size]], more)

    async def _find(self, topic: TopicName, value: PartitionValue | None) -> OpenTopic:
        opened = await self._topics.find(topic)
        opened.topic.check_partition(value)
        return opened

    async def _wait_for(
        self, topic: TopicName, value: PartitionValue | None, offset: Offset, until: float
    ) -> Location:
        while True:
            opened = await self._find(topic, value)
            with self._source.arrival(
                TopicPartition(opened.topic, value), offset, until
            ) as arrival:
                # After registering, so that a message appended meanwhile is noticed.
                location = self._locate(opened, value, offset)
                if location is not None:
                    return location
                await arrival

    def _locate(
        self, opened: OpenTopic, value: PartitionValue | None, offset: Offset
    ) -> Location | None:
        """The location of the first live offset at or after `offset`; None past the head."""
        partition = opened.partitions.find(value)
        if partition is None:
            return None
        messages = opened.partition(partition)
        start = messages.start_offset
        if offset < start:
            raise OffsetGone(opened.topic.name.full, value, offset, messages.next_live(start))
        offset, end = messages.next_live(offset), messages.next_offset
        if offset >= end:
            return None
        if opened.tier is not None and offset < messages.wal_start:
            indexed = opened.tier.manifest.index.find(partition, offset)
            if indexed is not None:
                entry, span = indexed
                deleted = _deleted(opened, partition, offset, span.next)
                next_ = Offset(span.next)
                return InObject(partition, offset, next_, encode_record(entry), deleted)
        return AtOwner(partition, offset, end, self._address)


def _state(opened: OpenTopic, value: PartitionValue | None) -> PartitionState:
    partition = opened.partitions.find(value)
    if partition is None:
        return PartitionState(value, NO_PARTITION, opened.floor, opened.floor, 0)
    messages = opened.partition(partition)
    return PartitionState(
        value, partition, messages.start_offset, messages.next_offset, messages.live_count
    )


def _deleted(opened: OpenTopic, partition: PartitionId, first: int, next_: int) -> bytes:
    """The deleted offsets of a range as a serialised bitmap; empty if there are none."""
    deleted = opened.partition(partition).deleted
    if deleted is None or not deleted.range_cardinality(first, next_):
        return b""
    range_ = BitMap64()
    range_.add_range(first, next_)
    return (range_ & deleted).serialize()


def _first_partition(token: str) -> int:
    """The first partition of the page after `token`, which is the id of a page's last one."""
    if not token:
        return 0
    if not (token.isascii() and token.isdecimal()) or len(token) > PARTITION_DIGITS_MAX:
        raise FetchInvalid(f"page token {token[:200]!r} is not the id of a partition")
    return int(token) + 1
