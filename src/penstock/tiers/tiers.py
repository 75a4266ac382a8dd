"""The tiers of all topics: who is uploaded when, and what happens when a store fails.

A topic is due when enough of it is new or the oldest new thing is old enough; a few rounds run at
once. A round that fails is tried again with growing, jittered delays, for as long as it takes: the
WAL absorbs an outage. When too much waits, producers meet the pressure policy. Upkeep is apart from
uploads, so that neither waits for the other's failures. Topics in which nothing happens are not
looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

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
from penstock.tiers.maintenance import TopicMaintenance, Work
from penstock.tiers.manifest.entries import decode_head
from penstock.tiers.manifest.manifest import Deposed, Manifest
from penstock.tiers.settings import Pressure
from penstock.tiers.takeover.gap_filling import fill_gaps
from penstock.tiers.takeover.overtaken_logs import OVERTAKEN_SUFFIX
from penstock.tiers.takeover.takeover import continues, skipped_gap, take_over
from penstock.tiers.topic_tier import TierHost, TopicTier
from penstock.tiers.upkeep.upkeep import Upkeep
from penstock.tiers.upload.upload_sessions import settle_sessions

TICK_SECONDS: Final = 0.05
UPKEEP_SECONDS: Final = 1.0
"""From a change of a topic to its upkeep, and between two steps while it changes."""

REST_SECONDS: Final = 1.0
"""Between uploads of a topic unless very much is new: objects are few and large."""

UPKEEPS_AT_ONCE: Final = 2
"""Over all topics: a merge holds its objects in memory."""

CLOSE_SECONDS: Final = 30.0
"""How long the end of a broker waits for uploads; what is left is in the WAL."""

SLOW_SECONDS: Final = 0.1
"""What a publish waits under the policy `slow`."""

_events = structlog.get_logger(__name__)

Step = Callable[[TopicMaintenance], Awaitable[None]]


class Tiers:
    """Uploads, keeps in order and reads back the topics this broker owns."""

    def __init__(
        self,
        host: TierHost,
        logs: Logs,
        metadata: Metadata,
        keys: MetadataKeys,
        ownership: Ownership,
        broker: str,
    ) -> None:
        self._logs = logs
        self.host = self._host = host
        self._metadata, self._keys = metadata, keys
        self._ownership, self._broker = ownership, broker
        self._duties: dict[TopicName, TopicMaintenance] = {}
        self._awake: set[TopicMaintenance] = set()
        self._slots = asyncio.Semaphore(host.settings.uploads_at_once)
        self._upkeep_slots = asyncio.Semaphore(UPKEEPS_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._lost = Notifier[[TopicName, str]]()
        self._set_aside_wal = Notifier[[TopicName, Path]]()

    @property
    def topics(self) -> list[TopicName]:
        return list(self._duties)

    def __getitem__(self, topic: TopicName) -> TopicTier:
        return self._duties[topic].tier

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
        """Begin to look after the topics."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._host.clock.jumps.watch(self._clock_jumped)

    async def add(
        self,
        topic: TopicName,
        limits: TopicRetention | None = None,
        durability: Durability = Durability.FSYNC,
        store: ObjectStore | None = None,
        first_offset: int = 0,
    ) -> TopicTier:
        """Own the topic and open its tiers; raises OwnedElsewhere, or NotOwner if it loses it.

        Without a log on this disk, or with one that another broker has overtaken, the log goes on
        from the manifest, above every offset that may have been given out elsewhere. A topic that
        never had a log gets one with this durability and first offset. Its objects are in `store`,
        or in that of all topics.
        """
        epoch = await self.own(topic)
        await self._logs.load(topic)
        guard = self._ownership.guard(topic)
        host = self._host if store is None else replace(self._host, store=store)
        manifest = Manifest(self._metadata, self._keys, topic, host.store, guard)
        await self._load(manifest, topic)
        await self._settle(manifest, host, epoch, topic)
        before = manifest.head
        log = await self._log_of(topic, manifest, durability, first_offset)
        taken_over = before.lineage not in ("", log.state.lineage)
        gap = skipped_gap(before, log.state.nexts) if taken_over else None
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
        lock = asyncio.Lock()
        upkeep = Upkeep(host, tier, limits or TopicRetention(), lock)
        uploaded = log.stored_bytes - tier.backlog_bytes
        duty = self._duties[topic] = TopicMaintenance(tier, upkeep, lock, self._awake, uploaded)
        duty.start()
        return tier

    async def own(self, topic: TopicName) -> Epoch:
        """Own the topic, or find that this is so; raises OwnedElsewhere."""
        while (epoch := await self._ownership.acquire(topic)) is None:
            owner = await find_owner(self._metadata, self._keys, topic)
            if owner is None:
                continue
            if owner.broker != self._broker:
                raise OwnedElsewhere(str(topic), owner.broker, owner.address)
            # Ours from before a crash: nobody else has this broker's id.
            key = self._keys.owner(topic)
            stale = Compare(key, CompareTarget.CREATE_REVISION, owner.epoch)
            await self._metadata.transaction([stale], [DeleteKeys(key)])
        return epoch

    async def is_settled_elsewhere(self, topic: TopicName) -> bool:
        """Whether a topic that another broker owns has no WAL here, or none any more.

        One that its owner has overtaken is set aside, so that its messages are returned.
        """
        log = await self._logs.load(topic)
        if log is None:
            return True
        entry = await self._metadata.get(self._keys.manifest(topic))
        if entry is None or decode_head(entry.value).lineage in ("", log.state.lineage):
            return False
        await self._set_aside(topic, log)
        return True

    def lag_bytes(self, topic: TopicName) -> int:
        """Bytes of the topic that are in no object yet."""
        duty = self._duties[topic]
        return duty.tier.log.stored_bytes - duty.uploaded_bytes

    def metrics(self) -> list[Metric]:
        """Bytes that wait for upload, by topic."""
        lags: list[tuple[dict[str, str], float | Histogram]] = [
            ({"topic": str(topic)}, self.lag_bytes(topic)) for topic in self.topics
        ]
        return [
            Metric("penstock_upload_lag_bytes", "gauge", "Bytes that are in no object yet.", lags)
        ]

    async def flush(self, topic: TopicName) -> None:
        """Upload everything that is durable now; raises what the stores raise."""
        duty = self._duties[topic]
        async with duty.uploads_lock:
            durable = duty.tier.log.writer.durable_number
            while await self._round(duty) and duty.tier.collected_frame < durable:
                pass

    async def upkeep(self, topic: TopicName) -> None:
        duty = self._duties[topic]
        async with duty.upkeep_lock:
            await duty.upkeep.step()

    @asynccontextmanager
    async def undisturbed(self, topic: TopicName) -> AsyncIterator[None]:
        """While no upkeep replaces or drops objects of the topic."""
        async with self._duties[topic].upkeep_lock:
            yield

    def lost(self, topic: TopicName, reason: str) -> None:
        """Another broker may own the topic: stop at once, and refuse with this reason."""
        self._let_go(topic, reason)
        self._lost(topic, reason)

    async def remove(self, topic: TopicName, reason: str = "the topic is deleted") -> None:
        """Stop looking after a topic; appends are refused with this reason."""
        duty = self._let_go(topic, reason)
        if duty is not None and duty.tasks():
            await asyncio.wait(duty.tasks())

    async def close(self) -> None:
        """Upload what is left, if the stores answer in time, and stop."""
        self._host.clock.jumps.unwatch(self._clock_jumped)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._finish()
        except TimeoutError:
            _events.warning("uploads_given_up_at_shutdown", seconds=CLOSE_SECONDS)
            tasks = self._under_way()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- details

    async def _finish(self) -> None:
        """Let what is under way end, and upload the rest."""
        if tasks := self._under_way():
            await asyncio.wait(tasks)
        for topic in [topic for topic in self._duties if self.lag_bytes(topic)]:
            if topic not in self._duties:
                continue
            try:
                await self.flush(topic)
            except (PenstockError, OSError) as error:
                _events.warning("not_uploaded_at_shutdown", topic=str(topic), reason=str(error))

    def _clock_jumped(self) -> None:
        """What is due by the time of day is due at another moment."""
        for duty in self._duties.values():
            if duty.upkeep_at is not None:
                duty.change()

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for duty in self._duties.values() for task in duty.tasks()]

    def _let_go(self, topic: TopicName, reason: str) -> TopicMaintenance | None:
        duty = self._duties.pop(topic, None)
        if duty is not None:
            duty.end()
            log = duty.tier.log
            log.refusal = reason
            log.writer.give_up_uploads(DurabilityUnmet(log.topic, reason))
        return duty

    async def _load(self, manifest: Manifest, topic: TopicName) -> None:
        """Read the manifest; what it keeps in a store that is away is not needed, if the log has
        everything.
        """
        try:
            await manifest.load()
        except ObjectStoreError as error:
            await manifest.load(with_deletes=False)
            if (log := self._logs.get(topic)) is None or not continues(log, manifest.head):
                raise
            _events.warning("deletions_not_read", topic=str(topic), reason=str(error))

    async def _settle(
        self, manifest: Manifest, host: TierHost, epoch: Epoch, topic: TopicName
    ) -> None:
        """Settle the uploads on record; not while the store refuses, if the log has everything."""
        try:
            await settle_sessions(manifest, host.store, host.counters, epoch, host.trash_until_us())
        except ObjectStoreError as error:
            if (log := self._logs.get(topic)) is None or not continues(log, manifest.head):
                raise
            _events.warning("uploads_not_settled", topic=str(topic), reason=str(error))

    async def _log_of(
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
        """Move a WAL out of the way that another broker has overtaken."""
        name = f"{log.directory.name}{OVERTAKEN_SUFFIX}{log.state.lineage}"
        await self._logs.set_aside(topic, name)
        _events.warning("wal_set_aside", topic=str(topic), directory=name)
        self._set_aside_wal(topic, log.directory.with_name(name))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for duty in list(self._awake):
                self._look(duty, loop.time())

    def _look(self, duty: TopicMaintenance, now: float) -> None:
        """Begin what is due; a topic for which nothing is to be done is not looked at again until
        it changes, or its upkeep is due.
        """
        if duty.take_change():
            duty.want_upkeep(now + UPKEEP_SECONDS)
        self._note_pressure(duty)
        # Apart from the uploads: offsets must not run out while a store is slow or away.
        if duty.tier.needs_reservation and duty.reserving.may_start(now):
            self._begin(duty, duty.reserving, self._reserve)
        if self._ripe(duty, now) and duty.uploading.may_start(now):
            self._begin(duty, duty.uploading, self._upload)
        due = duty.upkeep_at is not None and now >= duty.upkeep_at
        if due and duty.keeping.may_start(now):
            self._begin(duty, duty.keeping, self._keep)
        busy = duty.waiting_since is not None or duty.tier.needs_reservation
        if not busy and (not due or duty.keeping.task is not None):
            duty.rest()

    def _begin(
        self,
        duty: TopicMaintenance,
        work: Work,
        call: Step,
    ) -> None:
        work.task = asyncio.get_running_loop().create_task(self._try(duty, work, call))

    async def _try(
        self,
        duty: TopicMaintenance,
        work: Work,
        call: Step,
    ) -> None:
        topic = duty.tier.topic
        try:
            await call(duty)
            work.failures = 0
        except Deposed:
            self._ownership.deposed(topic, duty.tier.epoch)
        except (PenstockError, OSError) as error:
            self._host.counters.upload_retries += work is duty.uploading
            delay = work.back_off(self._host.settings, asyncio.get_running_loop().time())
            facts = {"reason": str(error), "again_in_seconds": delay}
            _events.warning(work.failed_event, topic=str(topic), **facts)
        finally:
            work.task = None
            duty.awake.add(duty)

    async def _upload(self, duty: TopicMaintenance) -> None:
        async with self._slots, duty.uploads_lock:
            if self._ripe(duty, asyncio.get_running_loop().time()):
                try:
                    await self._round(duty)
                finally:
                    duty.change()

    async def _keep(self, duty: TopicMaintenance) -> None:
        loop = asyncio.get_running_loop()
        async with self._upkeep_slots, duty.upkeep_lock:
            # What changes from here on makes another step due.
            duty.upkeep_at = None
            try:
                wanted = await duty.upkeep.step()
            except BaseException:
                duty.want_upkeep(loop.time())
                raise
        if wanted is not None:
            duty.want_upkeep(loop.time() + max(wanted, UPKEEP_SECONDS))

    async def _reserve(self, duty: TopicMaintenance) -> None:
        await duty.tier.reserve()

    def _ripe(self, duty: TopicMaintenance, now: float) -> bool:
        """Whether what is new is old or large enough to be uploaded."""
        settings, stored = self._host.settings, duty.tier.log.stored_bytes
        if stored == duty.uploaded_bytes:
            duty.waiting_since = None
            return False
        if duty.waiting_since is None:
            duty.waiting_since = now
        cloud = duty.tier.log.durability is Durability.CLOUD
        patience = settings.linger_seconds if cloud else settings.interval_seconds
        waited, new = now - duty.waiting_since, stored - duty.uploaded_bytes
        if waited < min(patience, REST_SECONDS):
            return new >= settings.backlog_bytes_max
        return waited >= patience or new >= settings.batch_bytes_max

    async def _round(self, duty: TopicMaintenance) -> bool:
        """One round of uploads; whether there may be more."""
        tier, log = duty.tier, duty.tier.log
        stored, durable = log.stored_bytes, log.writer.durable_number
        size = await tier.upload_round()
        if tier.collected_frame >= durable:
            duty.uploaded_bytes = stored
            duty.waiting_since = None
        else:
            duty.uploaded_bytes = min(duty.uploaded_bytes + size, stored)
        return bool(size)

    def _note_pressure(self, duty: TopicMaintenance) -> None:
        settings, log = self._host.settings, duty.tier.log
        over = log.stored_bytes - duty.uploaded_bytes > settings.lag_bytes_max
        log.pressure_seconds = SLOW_SECONDS if over and settings.pressure is Pressure.SLOW else 0.0
        refuse = over and settings.pressure is Pressure.REFUSE
        log.refusal = "the object store is too far behind" if refuse else ""
