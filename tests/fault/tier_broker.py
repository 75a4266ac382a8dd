"""A broker without protocols, of real parts: files, metadata, a lease, a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.threads import WorkerThreads
from penstock.log import Logs, LogSettings, SharedLimits
from penstock.metadata import Metadata, MetadataKeys
from penstock.metadata.ownership import Epoch, LeaseTerms, Ownership
from penstock.model.columns import Columns
from penstock.model.errors import OffsetGone
from penstock.model.names import TopicName
from penstock.model.units import Offset, PartitionId
from penstock.objects import ObjectStore
from penstock.tiers.counters import TierCounters
from penstock.tiers.settings import TierSettings
from penstock.tiers.tiers import Tiers
from penstock.tiers.topic_tier import TierHost, TopicTier
from tests.log_reader import LogReader

TOPIC: Final = TopicName("default", "default", "t")
LOG: Final = LogSettings(file_bytes_max=8 << 10, idle_seconds=0.01)
TIER: Final = TierSettings(
    interval_seconds=0.05,
    batch_bytes_max=6 << 10,
    backlog_bytes_max=12 << 10,
    linger_seconds=0.02,
    look_seconds=0.01,
    upkeep_seconds=0.05,
    object_bytes_max=64 << 10,
    object_seconds_max=1e9,
    merge_objects_min=4,
    trash_seconds=2,
    retry_seconds=0.02,
    retry_seconds_max=0.1,
    wal_seconds_min=0,
    wal_bytes_min=0,
    reserve_offsets=1000,
)
"""Small files and objects, and a local file goes as soon as the bucket has it."""
UNMERGED: Final = replace(TIER, object_bytes_max=1)

CACHE_BYTES: Final = 4 << 10
Row = tuple[int, bytes]
"""Offset and payload."""


class TierBroker:
    """One broker's life; files below `directory`, which nobody else uses."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        metadata: Metadata,
        settings: TierSettings = TIER,
        name: str = "one",
        keys: MetadataKeys | None = None,
        terms: LeaseTerms | None = None,
        disk: Disk | None = None,
        on_lost: Callable[[TopicName], None] = lambda topic: None,
    ) -> None:
        keys = keys or MetadataKeys()
        self._on_lost = on_lost
        self.store, self.metadata, self.keys = store, metadata, keys
        limits = SharedLimits(cache_bytes_max=CACHE_BYTES, reserve_bytes=4096)
        self.logs = Logs(directory / "wal", LOG, limits, disk)
        self.ownership = Ownership(metadata, keys, name, f"{name}:1", self._lost, terms)
        self.counters = TierCounters()
        self._threads = WorkerThreads(2, "tier")
        self._child = Child()
        host = TierHost(store, settings, Clock(), self._threads, self._child, self.counters)
        self.tiers = Tiers(host, self.logs, metadata, keys, self.ownership, name)

    async def open(self) -> None:
        await self.logs.open()
        await self.ownership.start()
        await self.tiers.start()

    async def close(self) -> None:
        await self.tiers.close()
        await self.logs.close()
        await self.ownership.close()
        await self.metadata.close()
        await self.store.close()
        await self._child.close()
        await self._threads.close()

    def _lost(self, topic: TopicName, epoch: Epoch, reason: str) -> None:
        self.tiers.lost(topic, reason)
        self._on_lost(topic)


@asynccontextmanager
async def running(broker: TierBroker) -> AsyncIterator[TierBroker]:
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def read_all(tier: TopicTier, partition: int) -> AsyncIterator[Row]:
    """Every message from the first to the one that is the last now, in pieces.

    Raises what the reader raises, as often as it does: going on reads on.
    """
    log, number = tier.log, PartitionId(partition)
    reader = LogReader(log, number, Offset(0), 2000, tier.read)
    end = log.next_offset(number)
    while log.state.next_live(number, reader.next_offset) < end:
        try:
            batch = await anext(reader)
        except OffsetGone as gone:
            reader.next_offset = gone.earliest
            continue
        assert isinstance(batch.content, Columns)
        for row in zip(batch.offsets().tolist(), batch.content.payload.to_pylist(), strict=True):
            yield row
