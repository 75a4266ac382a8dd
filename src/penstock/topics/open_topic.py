"""A topic that this broker owns and serves: its state, observers, admissions and settlements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.log import Log, LogMode, LogObserver, Settlements, SideFiles
from penstock.model.errors import AppendQueueFull
from penstock.model.resources import Durability, Topic
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.tiers import TopicTier
from penstock.topics.open_partition import Admission, Admissions, OpenPartition
from penstock.topics.partitions import Partitions


class OpenTopic:
    """A topic that this broker owns and serves.

    Other packages append and read through `partition`; `log` and `tier` are for this package only.
    `tier` is None if the messages are in memory only.
    """

    def __init__(
        self,
        topic: Topic,
        log: Log,
        tier: TopicTier | None,
        partitions: Partitions,
        stream: bytes = b"",
    ) -> None:
        """`stream` is the stream configuration of the topic, empty if it was not created as one."""
        self.topic, self.log, self.tier = topic, log, tier
        self.partitions, self.stream = partitions, stream
        self.signed_only = False
        """Whether the topic accepts signed broadcasts only; objects cannot be linked then."""
        self._observations: list[Callable[[], None]] = []
        self._admissions = Admissions()
        self._opened_partitions: dict[PartitionId, OpenPartition] = {}

    def partition(self, partition: PartitionId) -> OpenPartition:
        """The messages of one partition, which must exist."""
        opened = self._opened_partitions.get(partition)
        if opened is None:
            opened = OpenPartition(self.log, self.tier, self._admissions, partition)
            self._opened_partitions[partition] = opened
        return opened

    def stop(self) -> None:
        """Stop serving the topic: cancel its observers and wake all waiting readers."""
        for cancel in self._observations:
            cancel()
        self.partitions.stop()
        self.log.waiters.wake_all()

    # -- state

    @property
    def durable(self) -> bool:
        """Whether messages survive a restart of the broker."""
        return self.log.durability is not Durability.MEMORY

    @property
    def writable(self) -> bool:
        """Whether the log accepts appends now."""
        return self.log.mode is LogMode.OPEN and not self.log.refusal

    @property
    def closed(self) -> bool:
        return self.log.closed

    @property
    def lineage(self) -> str:
        """The id of the WAL; a WAL on another disk or of another topic of this name differs."""
        return self.log.state.lineage

    @property
    def last_timestamp(self) -> Microseconds:
        """The timestamp of the last message or record; 0 before the first."""
        return Microseconds(self.log.state.last_timestamp)

    @property
    def floor(self) -> Offset:
        """The first offset of a partition that has no message yet."""
        return Offset(self.log.state.floor)

    @property
    def deletions(self) -> int:
        """A counter that increases with every deletion."""
        return self.log.state.deletions

    async def flush(self) -> None:
        """Wait until everything appended so far is durable, or has failed."""
        await self.log.writer.flush()

    # -- observers and admissions

    def observe(self, observer: LogObserver) -> Callable[[], None]:
        """Notify an observer of appends and commits while the topic is served.

        Returns the function that ends this early.
        """
        cancel = self.log.observe(observer)
        self._observations.append(cancel)
        return cancel

    def add_admission(self, admission: Admission) -> Callable[[], None]:
        """Apply a rule to every append from now on; returns the function that removes it.

        The rule that was added last is applied first.
        """
        return self._admissions.add(admission)

    @property
    def side_files(self) -> SideFiles:
        """Files beside the WAL that store data derived from its messages."""
        return self.log.side_files

    # -- settlements of subscriptions

    @property
    def settlements(self) -> Settlements:
        """Reads settlements back, and records which of them the log must retain."""
        return self.log.settlements

    @property
    def durable_frame(self) -> int:
        """The number of the next frame that becomes durable."""
        return self.log.writer.durable_number

    @property
    def active_frame(self) -> int:
        """The first frame of the WAL file that is written now; 0 if there is none."""
        active = self.log.writer.active
        return 0 if active is None else active.file.header.first_frame

    def settle(self, body: bytes, count: int) -> asyncio.Future[None]:
        """Store settlements of subscriptions; the future completes when they are durable.

        Raises AppendQueueFull, LogReadOnly or LogClosed.
        """
        return self.log.settle(body, count)

    async def settle_when_possible(self, body: bytes, count: int) -> None:
        """Store settlements of subscriptions once the queue has room; durable on return."""
        while True:
            try:
                return await self.log.settle(body, count)
            except AppendQueueFull:
                await self.log.room(len(body))
