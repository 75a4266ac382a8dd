"""The tiers of all topics that this broker owns: opens them, and ends them with the ownership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from penstock.host.notifier import Cancel, Notifier, cancel_all
from penstock.log import Log, Logs, Writer
from penstock.metadata import Compare, CompareTarget, DeleteKeys, Metadata, MetadataKeys
from penstock.metadata.ownership import Epoch, NotOwner, Ownership, find_owner
from penstock.model.errors import DurabilityUnmet, OwnedElsewhere, PenstockError
from penstock.model.metrics import Histogram, Metric
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.objects import ObjectStore, ObjectStoreError
from penstock.tiers.maintenance import SharedSlots, TopicMaintenance
from penstock.tiers.manifest.entries import decode_head
from penstock.tiers.manifest.manifest import Manifest
from penstock.tiers.takeover.gap_filling import fill_gaps
from penstock.tiers.takeover.overtaken_logs import OVERTAKEN_SUFFIX
from penstock.tiers.takeover.takeover import continues, skipped_gap, take_over
from penstock.tiers.topic_tier import TierHost, TopicTier
from penstock.tiers.upload.upload_sessions import settle_sessions

_events = structlog.get_logger(__name__)


class Tiers:
    """Owns topics, uploads and maintains them, and gives access to their tiers."""

    def __init__(
        self,
        host: TierHost,
        logs: Logs,
        metadata: Metadata,
        keys: MetadataKeys,
        ownership: Ownership,
        broker: str,
    ) -> None:
        """`broker` is the unique id of this broker."""
        self._logs = logs
        self.host = self._host = host
        self._metadata, self._keys = metadata, keys
        self._ownership, self._broker = ownership, broker
        self._maintenance: dict[TopicName, TopicMaintenance] = {}
        self._slots = SharedSlots(host.settings)
        self._started = False
        self._lost = Notifier[[TopicName, str]]()
        self._set_aside_wal = Notifier[[TopicName, Path]]()

    @property
    def topics(self) -> list[TopicName]:
        return list(self._maintenance)

    def __getitem__(self, topic: TopicName) -> TopicTier:
        return self._maintenance[topic].tier

    def maintenance(self, topic: TopicName) -> TopicMaintenance:
        """The jobs of a topic and their schedule."""
        return self._maintenance[topic]

    def watch(
        self,
        lost: Callable[[TopicName, str], object] | None = None,
        set_aside: Callable[[TopicName, Path], object] | None = None,
    ) -> Cancel:
        """Register observers; returns the function that ends this.

        `lost` is called with every topic that this broker owned and no longer owns, and the reason;
        `set_aside` with the directory of every WAL that another broker has overtaken.
        """
        return cancel_all(
            *([] if lost is None else [self._lost.add(lost)]),
            *([] if set_aside is None else [self._set_aside_wal.add(set_aside)]),
        )

    async def start(self) -> None:
        """Begin to upload and maintain the topics, those that are added later included."""
        self._started = True
        for maintenance in self._maintenance.values():
            maintenance.start()
        self._host.clock.jumps.watch(self._clock_jumped)

    # -- ownership

    async def add(
        self,
        topic: TopicName,
        limits: TopicRetention | None = None,
        durability: Durability = Durability.FSYNC,
        store: ObjectStore | None = None,
        first_offset: int = 0,
    ) -> TopicTier:
        """Own the topic and open its tiers; raises OwnedElsewhere, or NotOwner if it loses it.

        If this disk has no log, or one that another broker has overtaken, the log continues the
        manifest, above every offset that may have been assigned elsewhere. A topic that never had a
        log gets one with this durability and first offset. Its objects are in `store`, or in the
        store of all topics.
        """
        epoch = await self.own(topic)
        await self._logs.load(topic)
        guard = self._ownership.guard(topic)
        host = self._host if store is None else replace(self._host, store=store)
        manifest = Manifest(
            self._metadata, self._keys, topic, host.store, guard, host.settings.manifest
        )
        await self._load(manifest, topic)
        await self._settle_uploads(manifest, host, epoch, topic)
        head = manifest.head
        log = await self._open_log(topic, manifest, durability, first_offset)
        taken_over = head.lineage not in ("", log.state.lineage)
        gap = skipped_gap(head, log.state.nexts) if taken_over else None
        tier = TopicTier(host, topic, log, manifest, epoch, gap)
        await tier.open()
        if self._ownership.epoch(topic) != epoch:
            raise NotOwner(topic)
        if isinstance(log.writer, Writer):
            log.writer.fence(lambda: self._ownership.may_ack(topic, epoch))
            if log.durability is Durability.CLOUD:
                log.writer.hold_for_upload()
        log.refusal = ""
        await fill_gaps(tier, self._metadata, self._keys, self._ownership.guard(topic))
        maintenance = TopicMaintenance(
            host,
            tier,
            limits or TopicRetention(),
            self._slots,
            lambda: self._ownership.deposed(topic, epoch),
        )
        self._maintenance[topic] = maintenance
        if self._started:
            maintenance.start()
        return tier

    async def own(self, topic: TopicName) -> Epoch:
        """Acquire the ownership of the topic unless this broker has it; raises OwnedElsewhere."""
        while (epoch := await self._ownership.acquire(topic)) is None:
            owner = await find_owner(self._metadata, self._keys, topic)
            if owner is None:
                continue
            if owner.broker != self._broker:
                raise OwnedElsewhere(str(topic), owner.broker, owner.address)
            # A key of this broker from before a crash: its id is unique.
            key = self._keys.owner(topic)
            stale = Compare(key, CompareTarget.CREATE_REVISION, owner.epoch)
            await self._metadata.transaction([stale], [DeleteKeys(key)])
        return epoch

    async def is_settled_elsewhere(self, topic: TopicName) -> bool:
        """Whether this disk has no WAL of a topic that another broker owns.

        A WAL that the owner has overtaken is set aside, so that its messages are returned.
        """
        log = await self._logs.load(topic)
        if log is None:
            return True
        entry = await self._metadata.get(self._keys.manifest(topic))
        if entry is None or decode_head(entry.value).lineage in ("", log.state.lineage):
            return False
        await self._set_aside(topic, log)
        return True

    def lost(self, topic: TopicName, reason: str) -> None:
        """Stop all work at once, since another broker may own the topic; refuse with the reason."""
        self._end(topic, reason)
        self._lost(topic, reason)

    async def remove(self, topic: TopicName, reason: str = "the topic is deleted") -> None:
        """End the tiers of a topic; appends are refused with this reason."""
        maintenance = self._end(topic, reason)
        if maintenance is not None:
            await maintenance.drain()

    # -- work on one topic

    def lag_bytes(self, topic: TopicName) -> int:
        """Bytes of the topic that are in no object yet."""
        return self._maintenance[topic].lag_bytes

    def metrics(self) -> list[Metric]:
        """The bytes waiting for upload, by topic."""
        lags: list[tuple[dict[str, str], float | Histogram]] = [
            ({"topic": str(topic)}, self.lag_bytes(topic)) for topic in self.topics
        ]
        return [
            Metric("penstock_upload_lag_bytes", "gauge", "Bytes that are in no object yet.", lags)
        ]

    async def flush(self, topic: TopicName) -> None:
        """Upload everything that is durable now; raises what the stores raise."""
        await self._maintenance[topic].flush()

    async def upkeep(self, topic: TopicName) -> None:
        """Do all upkeep that is due; raises what the stores raise."""
        await self._maintenance[topic].run_upkeep()

    @asynccontextmanager
    async def undisturbed(self, topic: TopicName) -> AsyncIterator[None]:
        """No upkeep replaces or deletes objects of the topic within this block."""
        async with self._maintenance[topic].upkeep_lock:
            yield

    # -- shutdown

    async def close(self) -> None:
        """Upload the remaining messages, if the stores answer in time, and stop."""
        self._started = False
        self._host.clock.jumps.unwatch(self._clock_jumped)
        for maintenance in self._maintenance.values():
            maintenance.stop()
        seconds = self._host.settings.close_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._drain()
                await self._flush_all()
        except TimeoutError:
            _events.warning("uploads_given_up_at_shutdown", seconds=seconds)
            for maintenance in self._maintenance.values():
                maintenance.cancel()
            await self._drain()

    async def _drain(self) -> None:
        """Wait until no job of any topic is in progress."""
        for maintenance in list(self._maintenance.values()):
            await maintenance.drain()

    async def _flush_all(self) -> None:
        for topic in [topic for topic in self.topics if self.lag_bytes(topic)]:
            if topic not in self._maintenance:
                continue
            try:
                await self.flush(topic)
            except (PenstockError, OSError) as error:
                _events.warning("not_uploaded_at_shutdown", topic=str(topic), reason=str(error))

    # -- details

    def _clock_jumped(self) -> None:
        """Upkeep that is due by the time of day is due at another time."""
        for maintenance in self._maintenance.values():
            if maintenance.upkeep_at is not None:
                maintenance.changed()

    def _end(self, topic: TopicName, reason: str) -> TopicMaintenance | None:
        maintenance = self._maintenance.pop(topic, None)
        if maintenance is not None:
            maintenance.cancel()
            log = maintenance.tier.log
            log.refusal = reason
            log.writer.give_up_uploads(DurabilityUnmet(log.topic, reason))
        return maintenance

    async def _load(self, manifest: Manifest, topic: TopicName) -> None:
        """Read the manifest.

        If the bucket is unavailable, delete vectors in it are not read; the log must contain them.
        """
        try:
            await manifest.load()
        except ObjectStoreError as error:
            await manifest.load(with_deletes=False)
            if (log := self._logs.get(topic)) is None or not continues(log, manifest.head):
                raise
            _events.warning("deletions_not_read", topic=str(topic), reason=str(error))

    async def _settle_uploads(
        self, manifest: Manifest, host: TierHost, epoch: Epoch, topic: TopicName
    ) -> None:
        """Settle the recorded uploads.

        If the bucket is unavailable, they remain; the log must contain their messages.
        """
        try:
            await settle_sessions(manifest, host.store, host.counters, epoch, host.trash_until_us())
        except ObjectStoreError as error:
            if (log := self._logs.get(topic)) is None or not continues(log, manifest.head):
                raise
            _events.warning("uploads_not_settled", topic=str(topic), reason=str(error))

    async def _open_log(
        self, topic: TopicName, manifest: Manifest, durability: Durability, first_offset: int
    ) -> Log:
        log, head = self._logs.get(topic), manifest.head
        if log is not None and continues(log, head):
            return log
        if not head.lineage:
            return await self._logs.create(topic, durability, first_offset)
        if log is not None:
            await self._set_aside(topic, log)
        return await take_over(self._logs, topic, manifest.head, manifest.index)

    async def _set_aside(self, topic: TopicName, log: Log) -> None:
        """Rename the directory of a WAL that another broker has overtaken."""
        name = f"{log.directory.name}{OVERTAKEN_SUFFIX}{log.state.lineage}"
        await self._logs.set_aside(topic, name)
        _events.warning("wal_set_aside", topic=str(topic), directory=name)
        self._set_aside_wal(topic, log.directory.with_name(name))
