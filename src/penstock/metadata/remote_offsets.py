"""OffsetRegistry of a broker elsewhere, asked over gRPC; equal questions at the same time are one.

Those who wait for an offset share one call whoever of them has the later deadline; each stops at
its own, and goes on with a call of its own when the shared one ended before that. Those who do not
wait share among themselves: an answer that may take a minute is none for them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.host.clock import Clock
from penstock.metadata import rpc_values as values
from penstock.metadata.admin import Listed, PageRequest
from penstock.metadata.deduplicate import Deduplicate
from penstock.metadata.offsets import Location, PartitionState
from penstock.metadata.remote_calls import CALL_SECONDS, RemoteCalls
from penstock.model.errors import OffsetGone
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset

REPEAT_SECONDS: Final = 0.05
"""Pause before a wait that ended early is begun again: the broker's clock may be ahead of ours."""

LATE_SECONDS: Final = 0.1
"""An answer that is on its way at the deadline is worth this wait."""

_Key = tuple[TopicName, PartitionValue | None, Offset]


class RemoteOffsets:
    """Raises what the broker raised, and MetadataUnavailable when it does not answer."""

    def __init__(self, calls: RemoteCalls, clock: Clock) -> None:
        self._calls, self._clock = calls, clock
        self._looks: Deduplicate[_Key, Location | None] = Deduplicate()
        self._waits: Deduplicate[_Key, Location | None] = Deduplicate()

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
            "GetPartition", topic=topic.full, partition_value=values.to_value(value)
        )
        return values.of_partition(sent)

    async def list_partitions(self, topic: TopicName, page: PageRequest) -> Listed[PartitionState]:
        sent = await self._calls.call(
            "ListPartitions", parent=topic.full, page_size=page.size, page_token=page.token
        )
        return Listed([values.of_partition(one) for one in sent.partitions], sent.next_page_token)

    async def _wait_for(self, key: _Key, deadline: Microseconds) -> Location | None:
        while True:
            found = await self._waits.fetch(key, lambda: self._locate(key, deadline))
            if found is not None or self._seconds_until(deadline) <= 0:
                return found
            await asyncio.sleep(REPEAT_SECONDS)

    async def _locate(self, key: _Key, deadline: Microseconds) -> Location | None:
        topic, value, offset = key
        seconds = max(0.0, self._seconds_until(deadline)) + CALL_SECONDS
        try:
            sent = await self._calls.call(
                "OffsetLocation",
                seconds,
                topic=topic.full,
                partition_value=values.to_value(value),
                offset=offset,
                deadline=values.to_time(deadline),
            )
        except OffsetGone as error:
            raise OffsetGone(error.topic, value, error.offset, error.earliest) from None
        return values.of_location(sent)

    def _seconds_until(self, deadline: Microseconds) -> float:
        return (deadline - self._clock.now_us()) / 1_000_000
