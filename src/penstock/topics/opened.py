"""A topic that is open: what of it there is here."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log.log import Log
from penstock.model.resources import Topic
from penstock.model.units import PartitionId
from penstock.tiers.tier import TopicTier
from penstock.topics.partitions import Partitions


@dataclass(frozen=True, slots=True)
class OpenTopic:
    """A topic that is served here; `tier` is None where messages live in memory only."""

    topic: Topic
    log: Log
    tier: TopicTier | None
    partitions: Partitions
    stream: bytes = b""
    """Its configuration as a stream, if it was made as one."""

    def reserved(self, partition: PartitionId, count: int) -> bool:
        """Whether so many offsets more are reserved for this broker."""
        writer = self.log.writer
        return self.tier is None or writer.next_offset(partition) + count <= writer.offset_limit

    async def reserve(self, partition: PartitionId, count: int) -> None:
        """Reserve so many offsets: ahead of time that is done for the usual, not for many."""
        if self.tier is not None and not self.reserved(partition, count):
            taken = self.log.writer.next_offset(partition) - self.log.next_offset(partition)
            await self.tier.reserve(taken + count)

    def stop(self) -> None:
        """The topic is not served here any more: let everybody who waits look again."""
        self.partitions.stop()
        self.log.waiters.wake_all()
