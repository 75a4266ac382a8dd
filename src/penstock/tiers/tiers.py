"""The tiers of all topics: who is uploaded when, and what happens when a store fails.

A topic is due when enough of it is new or the oldest new thing is old enough; a few rounds run at
once. A round that fails is tried again with growing, jittered delays, for as long as it takes: the
WAL absorbs an outage. When too much waits, producers meet the pressure policy.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

import structlog

from penstock.log.log import Log
from penstock.log.logs import Logs
from penstock.log.writer import Writer
from penstock.metadata.interface import Compare, Delete, Metadata, MetadataUnavailable, Target
from penstock.metadata.keys import Keys
from penstock.metadata.ownership import Epoch, Ownership, find_owner
from penstock.model.durability import Durability
from penstock.model.errors import DurabilityUnmet, LogError, PenstockError
from penstock.model.names import TopicName
from penstock.objects.interface import ObjectStoreError
from penstock.tiers.entries import Head
from penstock.tiers.manifest import Deposed, Manifest
from penstock.tiers.retention import TopicRetention
from penstock.tiers.sessions import settle
from penstock.tiers.settings import Pressure
from penstock.tiers.takeover import take_over
from penstock.tiers.tier import TierHost, TopicTier
from penstock.tiers.upkeep import Upkeep

TICK_SECONDS: Final = 0.05
UPKEEP_SECONDS: Final = 1.0
DOUBLINGS_MAX: Final = 30
"""A delay is not doubled more often, however long an outage lasts."""

SLOW_SECONDS: Final = 0.1
"""What a publish waits under the policy `slow`."""

_events = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Duty:
    """One topic's turn."""

    tier: TopicTier
    upkeep: Upkeep
    uploaded_bytes: int = 0
    """`stored_bytes` of the log up to which everything was uploaded."""
    seen_bytes: int = 0
    waiting_since: float | None = None
    failures: int = 0
    not_before: float = 0.0
    upkeep_at: float = 0.0
    task: asyncio.Task[None] | None = None
    reserve_at: float = 0.0
    reserving: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way."""
        return [task for task in (self.task, self.reserving) if task is not None]


class Tiers:
    """Uploads, keeps in order and reads back the topics this broker owns."""

    def __init__(
        self,
        host: TierHost,
        logs: Logs,
        metadata: Metadata,
        keys: Keys,
        ownership: Ownership,
        broker: str,
    ) -> None:
        self._logs = logs
        self._host, self._metadata, self._keys = host, metadata, keys
        self._ownership, self._broker = ownership, broker
        self._duties: dict[TopicName, _Duty] = {}
        self._slots = asyncio.Semaphore(host.settings.uploads_at_once)
        self._task: asyncio.Task[None] | None = None

    @property
    def topics(self) -> list[TopicName]:
        return list(self._duties)

    def __getitem__(self, topic: TopicName) -> TopicTier:
        return self._duties[topic].tier

    async def start(self) -> None:
        """Begin to look after the topics."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def add(self, topic: TopicName, limits: TopicRetention | None = None) -> TopicTier:
        """Own the topic and take up its tiers; raises LogError when another broker owns it.

        Without a log on this disk, or with one that another broker has overtaken, the log goes on
        from the manifest, above every offset that may have been given out elsewhere.
        """
        epoch = await self._own(topic)
        guard = self._ownership.guard(topic)
        manifest = Manifest(self._metadata, self._keys, topic, self._host.store, guard)
        await manifest.load()
        await settle(manifest, self._host.store, self._host.counters, epoch)
        log = await self._log_of(topic, manifest, epoch)
        tier = TopicTier(self._host, topic, log, manifest, epoch)
        await tier.open()
        if isinstance(log.writer, Writer):
            log.writer.may_ack = lambda: self._ownership.may_ack(topic, epoch)
            if log.durability is Durability.CLOUD:
                log.writer.hold_for_upload()
        upkeep = Upkeep(self._host, tier, limits or TopicRetention())
        uploaded = log.stored_bytes - tier.backlog_bytes
        self._duties[topic] = _Duty(tier, upkeep, uploaded)
        return tier

    def lag_bytes(self, topic: TopicName) -> int:
        """Bytes of the topic that are in no object yet."""
        duty = self._duties[topic]
        return duty.tier.log.stored_bytes - duty.uploaded_bytes

    async def flush(self, topic: TopicName) -> None:
        """Upload everything that is durable now; raises what the stores raise."""
        duty = self._duties[topic]
        async with duty.lock:
            durable = duty.tier.log.writer.durable_number
            while await self._round(duty) and duty.tier.collected_frame < durable:
                pass

    async def upkeep(self, topic: TopicName) -> None:
        """Do the upkeep of a topic now; raises what the stores raise."""
        duty = self._duties[topic]
        async with duty.lock:
            await duty.upkeep.step()

    def lost(self, topic: TopicName, epoch: Epoch) -> None:
        """Another broker may own the topic: stop at once."""
        duty = self._duties.pop(topic, None)
        if duty is not None:
            log = duty.tier.log
            log.refusal = "another broker owns the topic now"
            log.writer.give_up_uploads(DurabilityUnmet(log.topic, log.refusal))
            for task in duty.tasks():
                task.cancel()
            _events.warning("topic_lost", topic=str(topic), epoch=epoch)

    async def close(self) -> None:
        """Upload what is left, if the stores answer, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        tasks = [task for duty in self._duties.values() for task in duty.tasks()]
        if tasks:
            await asyncio.wait(tasks)
        for topic in list(self._duties):
            try:
                await self.flush(topic)
            except PenstockError as error:
                _events.warning("not_uploaded_at_shutdown", topic=str(topic), reason=str(error))

    # -- details

    async def _log_of(self, topic: TopicName, manifest: Manifest, epoch: Epoch) -> Log:
        log, head = self._logs.get(topic), manifest.head
        if log is not None and _continues(log, head):
            return log
        if not head.lineage:
            return await self._logs.create(topic)
        if log is not None:
            aside = f"{log.directory.name}.overtaken-{epoch}"
            await self._logs.set_aside(topic, aside)
            _events.warning("wal_set_aside", topic=str(topic), directory=aside)
        return await take_over(self._logs, topic, manifest.head, manifest.index)

    async def _own(self, topic: TopicName) -> Epoch:
        epoch = await self._ownership.acquire(topic)
        if epoch is None:
            owner = await find_owner(self._metadata, self._keys, topic)
            if owner is not None and owner.broker == self._broker:
                # Ours from before a crash: nobody else has this broker's id.
                key = self._keys.owner(topic)
                stale = Compare(key, Target.CREATE_REVISION, owner.epoch)
                await self._metadata.transaction([stale], [Delete(key)])
                epoch = await self._ownership.acquire(topic)
        if epoch is None:
            raise LogError(str(topic), "another broker owns it")
        return epoch

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            for duty in list(self._duties.values()):
                self._note_pressure(duty)
                if duty.reserving is None and now >= duty.reserve_at:
                    self._look_after_reservation(duty)
                if duty.task is None and now >= duty.not_before and self._due(duty, now):
                    duty.task = loop.create_task(self._work(duty))

    def _due(self, duty: _Duty, now: float) -> bool:
        return now >= duty.upkeep_at or self._ripe(duty, now)

    def _ripe(self, duty: _Duty, now: float) -> bool:
        """Whether what is new is old or large enough to be uploaded."""
        settings, stored = self._host.settings, duty.tier.log.stored_bytes
        if stored == duty.uploaded_bytes:
            duty.waiting_since = None
            return False
        if duty.waiting_since is None:
            duty.waiting_since = now
        cloud = duty.tier.log.durability is Durability.CLOUD
        patience = settings.linger_seconds if cloud else settings.interval_seconds
        old = now - duty.waiting_since >= patience
        return old or stored - duty.uploaded_bytes >= settings.batch_bytes_max

    async def _work(self, duty: _Duty) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._slots, duty.lock:
                if self._ripe(duty, loop.time()):
                    await self._round(duty)
                if loop.time() >= duty.upkeep_at:
                    await duty.upkeep.step()
                    duty.upkeep_at = loop.time() + UPKEEP_SECONDS
            duty.failures = 0
        except Deposed:
            self.lost(duty.tier.topic, Epoch(0))
        except (ObjectStoreError, MetadataUnavailable, PenstockError, OSError) as error:
            self._back_off(duty, error)
        finally:
            duty.task = None

    async def _round(self, duty: _Duty) -> bool:
        """One round of uploads; whether there may be more."""
        tier, log = duty.tier, duty.tier.log
        stored, durable = log.stored_bytes, log.writer.durable_number
        size = await tier.round()
        if tier.collected_frame >= durable:
            duty.uploaded_bytes = stored
            duty.waiting_since = None
        else:
            duty.uploaded_bytes = min(duty.uploaded_bytes + size, stored)
        return bool(size)

    def _look_after_reservation(self, duty: _Duty) -> None:
        """Apart from the uploads: offsets must not run out while a store is slow or away."""
        if duty.tier.needs_reservation:
            duty.reserving = asyncio.get_running_loop().create_task(self._reserve(duty))

    async def _reserve(self, duty: _Duty) -> None:
        try:
            await duty.tier.reserve()
        except Deposed:
            self.lost(duty.tier.topic, Epoch(0))
        except PenstockError as error:
            duty.reserve_at = asyncio.get_running_loop().time() + self._host.settings.retry_seconds
            _events.warning("not_reserved", topic=str(duty.tier.topic), reason=str(error))
        finally:
            duty.reserving = None

    def _back_off(self, duty: _Duty, error: Exception) -> None:
        settings = self._host.settings
        duty.failures += 1
        self._host.counters.upload_retries += 1
        doubled = settings.retry_seconds * 2 ** min(duty.failures - 1, DOUBLINGS_MAX)
        delay = min(doubled, settings.retry_seconds_max)
        delay *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        duty.not_before = asyncio.get_running_loop().time() + delay
        _events.warning(
            "upload_failed", topic=str(duty.tier.topic), reason=str(error), again_in_seconds=delay
        )

    def _note_pressure(self, duty: _Duty) -> None:
        settings, log = self._host.settings, duty.tier.log
        over = log.stored_bytes - duty.uploaded_bytes > settings.lag_bytes_max
        log.pressure_seconds = SLOW_SECONDS if over and settings.pressure is Pressure.SLOW else 0.0
        refuse = over and settings.pressure is Pressure.REFUSE
        log.refusal = "the object store is too far behind" if refuse else ""


def _continues(log: Log, head: Head) -> bool:
    """Whether the log is what the manifest was made from.

    The same WAL of before the last upload, an old copy, would give out offsets again.
    """
    same = head.lineage in ("", log.state.lineage)
    return same and log.writer.durable_number >= head.uploaded_frame
