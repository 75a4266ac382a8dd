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
from typing import Final

import structlog

from penstock.log.log import Log
from penstock.log.logs import Logs
from penstock.log.writer import Writer
from penstock.metadata.interface import Compare, Delete, Metadata, Target
from penstock.metadata.keys import Keys
from penstock.metadata.ownership import Epoch, NotOwner, Ownership, find_owner
from penstock.model.durability import Durability
from penstock.model.errors import DurabilityUnmet, OwnedElsewhere, PenstockError
from penstock.model.names import TopicName
from penstock.objects.interface import ObjectStore, ObjectStoreError
from penstock.tiers.duty import Duty, Work
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
        self._duties: dict[TopicName, Duty] = {}
        self._awake: set[Duty] = set()
        self._slots = asyncio.Semaphore(host.settings.uploads_at_once)
        self._upkeep_slots = asyncio.Semaphore(UPKEEPS_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self.on_lost: Callable[[TopicName, str], None] = lambda topic, reason: None
        """Told of every topic that this broker owned and does not own any more, and why."""

    @property
    def topics(self) -> list[TopicName]:
        return list(self._duties)

    def __getitem__(self, topic: TopicName) -> TopicTier:
        return self._duties[topic].tier

    async def start(self) -> None:
        """Begin to look after the topics."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def add(
        self,
        topic: TopicName,
        limits: TopicRetention | None = None,
        durability: Durability = Durability.FSYNC,
        store: ObjectStore | None = None,
    ) -> TopicTier:
        """Own the topic and take up its tiers; raises OwnedElsewhere, or NotOwner if it is lost
        meanwhile.

        Without a log on this disk, or with one that another broker has overtaken, the log goes on
        from the manifest, above every offset that may have been given out elsewhere. A topic that
        never had a log gets one with this durability. Its objects are in `store`, or in that of
        all topics.
        """
        epoch = await self.own(topic)
        guard = self._ownership.guard(topic)
        host = self._host if store is None else replace(self._host, store=store)
        manifest = Manifest(self._metadata, self._keys, topic, host.store, guard)
        await self._load(manifest, topic)
        await self._settle(manifest, host, epoch, topic)
        log = await self._log_of(topic, manifest, epoch, durability)
        tier = TopicTier(host, topic, log, manifest, epoch)
        await tier.open()
        if self._ownership.epoch(topic) != epoch:
            raise NotOwner(topic)
        if isinstance(log.writer, Writer):
            log.writer.may_ack = lambda: self._ownership.may_ack(topic, epoch)
            if log.durability is Durability.CLOUD:
                log.writer.hold_for_upload()
        log.refusal = ""
        lock = asyncio.Lock()
        upkeep = Upkeep(host, tier, limits or TopicRetention(), lock)
        uploaded = log.stored_bytes - tier.backlog_bytes
        duty = self._duties[topic] = Duty(tier, upkeep, lock, self._awake, uploaded)
        if isinstance(log.writer, Writer):
            log.writer.on_commit = duty.change
        duty.change()
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
            stale = Compare(key, Target.CREATE_REVISION, owner.epoch)
            await self._metadata.transaction([stale], [Delete(key)])
        return epoch

    def lag_bytes(self, topic: TopicName) -> int:
        """Bytes of the topic that are in no object yet."""
        duty = self._duties[topic]
        return duty.tier.log.stored_bytes - duty.uploaded_bytes

    async def flush(self, topic: TopicName) -> None:
        """Upload everything that is durable now; raises what the stores raise."""
        duty = self._duties[topic]
        async with duty.uploads_lock:
            durable = duty.tier.log.writer.durable_number
            while await self._round(duty) and duty.tier.collected_frame < durable:
                pass

    async def upkeep(self, topic: TopicName) -> None:
        """Do the upkeep of a topic now; raises what the stores raise."""
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
        self.on_lost(topic, reason)

    async def remove(self, topic: TopicName) -> None:
        """Stop looking after a topic whose data goes: what is not uploaded stays so."""
        duty = self._let_go(topic, "the topic is deleted")
        if duty is not None and duty.tasks():
            await asyncio.wait(duty.tasks())

    async def close(self) -> None:
        """Upload what is left, if the stores answer in time, and stop."""
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

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for duty in self._duties.values() for task in duty.tasks()]

    def _let_go(self, topic: TopicName, reason: str) -> Duty | None:
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
            log = self._logs.get(topic)
            if log is None or not _continues(log, manifest.head):
                raise
            _events.warning("deletions_not_read", topic=str(topic), reason=str(error))

    async def _settle(
        self, manifest: Manifest, host: TierHost, epoch: Epoch, topic: TopicName
    ) -> None:
        """Settle the uploads on record; not while the store refuses, if the log has everything."""
        try:
            await settle(manifest, host.store, host.counters, epoch, host.trash_until_us())
        except ObjectStoreError as error:
            log = self._logs.get(topic)
            if log is None or not _continues(log, manifest.head):
                raise
            _events.warning("uploads_not_settled", topic=str(topic), reason=str(error))

    async def _log_of(
        self, topic: TopicName, manifest: Manifest, epoch: Epoch, durability: Durability
    ) -> Log:
        log, head = self._logs.get(topic), manifest.head
        if log is not None and _continues(log, head):
            return log
        if not head.lineage:
            return await self._logs.create(topic, durability)
        if log is not None:
            aside = f"{log.directory.name}.overtaken-{epoch}"
            await self._logs.set_aside(topic, aside)
            _events.warning("wal_set_aside", topic=str(topic), directory=aside)
        return await take_over(self._logs, topic, manifest.head, manifest.index)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for duty in list(self._awake):
                self._look(duty, loop.time())

    def _look(self, duty: Duty, now: float) -> None:
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

    def _begin(self, duty: Duty, work: Work, call: Callable[[Duty], Awaitable[None]]) -> None:
        work.task = asyncio.get_running_loop().create_task(self._try(duty, work, call))

    async def _try(self, duty: Duty, work: Work, call: Callable[[Duty], Awaitable[None]]) -> None:
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

    async def _upload(self, duty: Duty) -> None:
        async with self._slots, duty.uploads_lock:
            if self._ripe(duty, asyncio.get_running_loop().time()):
                try:
                    await self._round(duty)
                finally:
                    duty.change()

    async def _keep(self, duty: Duty) -> None:
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

    async def _reserve(self, duty: Duty) -> None:
        await duty.tier.reserve()

    def _ripe(self, duty: Duty, now: float) -> bool:
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

    async def _round(self, duty: Duty) -> bool:
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

    def _note_pressure(self, duty: Duty) -> None:
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
