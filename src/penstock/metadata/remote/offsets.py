"""The offset registry of another broker, over gRPC; concurrent equal requests share one call.

Requests that wait for an offset share one call, although their deadlines differ: each stops waiting
at its own deadline, and starts another call if the shared one ends before. Requests that do not
wait share calls among themselves, as they cannot wait for the reply to a long poll.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.host.clock import Clock
from penstock.metadata.catalog.interface import ListPage, Location, PageQuery, PartitionState
from penstock.metadata.remote import values
from penstock.metadata.remote.calls import CALL_SECONDS, RemoteCalls
from penstock.metadata.single_flight import SingleFlight
from penstock.model.errors import OffsetGone
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset

REPEAT_SECONDS: Final = 0.05
"""Delay before a wait that ended early is repeated: the broker's clock may be ahead."""

LATE_SECONDS: Final = 0.1
"""How long after the deadline to wait for a reply that is on its way."""

_Key = tuple[TopicName, PartitionValue | None, Offset]


class RemoteOffsets:
    """Implements OffsetRegistry; raises the broker's errors, or MetadataUnavailable."""

    def __init__(self, calls: RemoteCalls, clock: Clock) -> None:
        self._calls, self._clock = calls, clock
        self._looks: SingleFlight[_Key, Location | None] = SingleFlight()
        self._waits: SingleFlight[_Key, Location | None] = SingleFlight()

    async def offset_location(
        self,
        topic: TopicName,
        value: PartitionValue | None,
        offset: Offset,
        deadline: Microseconds,
    ) -> Location | None:
        key = (topic, value, offset)
        if self._seconds_until(deadline) <= 0:
            return await self._looks.fetch(key, lambda: self._locate(key, deadline))
        limit = asyncio.timeout(self._seconds_until(deadline) + LATE_SECONDS)
        try:
            async with limit:
                return await self._wait_for(key, deadline)
        except TimeoutError:
            if not limit.expired():
                raise
            return None

    async def get_partition(self, topic: TopicName, value: PartitionValue | None) -> PartitionState:
        sent = await self._calls.call(
            "GetPartition", topic=topic.full, partition_value=values.to_partition_value(value)
        )
        return values.from_message(PartitionState, sent)

    async def list_partitions(self, topic: TopicName, page: PageQuery) -> ListPage[PartitionState]:
        sent = await self._calls.call(
            "ListPartitions", parent=topic.full, page_size=page.size, page_token=page.token
        )
        states = [values.from_message(PartitionState, state) for state in sent.partitions]
        return ListPage(states, sent.next_page_token)

    async def _wait_for(self, key: _Key, deadline: Microseconds) -> Location | None:
        while True:
            location = await self._waits.fetch(key, lambda: self._locate(key, deadline))
            if location is not None or self._seconds_until(deadline) <= 0:
                return location
            await asyncio.sleep(REPEAT_SECONDS)

    async def _locate(self, key: _Key, deadline: Microseconds) -> Location | None:
        topic, value, offset = key
        seconds = max(0.0, self._seconds_until(deadline)) + CALL_SECONDS
        try:
            sent = await self._calls.call(
                "OffsetLocation",
                seconds,
                topic=topic.full,
                partition_value=values.to_partition_value(value),
                offset=offset,
                deadline=values.to_time(deadline),
            )
        except OffsetGone as error:
            raise OffsetGone(error.topic, value, error.offset, error.earliest) from None
        return values.read_location(sent)

    def _seconds_until(self, deadline: Microseconds) -> float:
        return (deadline - self._clock.now_us()) / 1_000_000
