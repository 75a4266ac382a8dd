"""Upkeep of one topic beside its uploads: limits, merges, pruning, snapshots and trash."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from penstock.host.entropy import unique_name
from penstock.host.shared_memory import SharedFile, mapped_view, shared_memory
from penstock.host.tasks import Tasks
from penstock.model.errors import DataDamaged
from penstock.model.limits import RETENTION_SECONDS_MAX
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects import ObjectDamaged, ObjectMissing
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest import snapshot
from penstock.tiers.manifest.entries import ObjectEntry, Snapshot, Trash
from penstock.tiers.tier_host import TierHost
from penstock.tiers.topic_tier import TopicTier
from penstock.tiers.upkeep import retention
from penstock.tiers.upkeep.merge import MergeRules, choose_run, merge_objects
from penstock.tiers.upload.upload_sessions import abort_failed

PURGE_SECONDS: Final = 0.02
"""The time for a purge to reach the disk before an upload collects it."""

IDLE_SECONDS_MAX: Final = 3600.0
"""Limit of the time until the next step, because the clock may be set back meanwhile."""

AGE_SECONDS_MIN: Final = 1.0
AGE_SECONDS_MAX: Final = 60.0
"""Bounds of the interval between two checks of the age limit, once a message may be too old."""

NEVER_US: Final = 1 << 62

_events = structlog.get_logger(__name__)


class Upkeep:
    """Maintains one topic's tiers; the caller runs one step at a time."""

    def __init__(
        self, host: TierHost, tier: TopicTier, limits: TopicRetention, uploads_lock: asyncio.Lock
    ) -> None:
        """`uploads_lock` is held while frames are collected and uploaded."""
        self._host, self._tier, self._limits = host, tier, limits
        self._uploads_lock = uploads_lock
        self._snapshot_change = ""
        """The change of the manifest that the last snapshot contains."""
        self._damaged: set[str] = set()
        self._trash: list[Trash] = []
        self._link_frames: dict[str, int] = {}
        """For each object in the trash: frames from this one on cannot link it any more."""
        self._tasks = Tasks()

    async def step(self) -> float | None:
        """Do all work that is due; raises what the stores raise, and the next step continues.

        Returns the seconds until time makes more work due; None if only a change of the topic does.
        """
        tier, host = self._tier, self._host
        async with self._uploads_lock:
            await tier.refresh()
            # No upload is in progress: recorded ones have failed, and collected frames are in the
            # manifest.
            failed, entered_frame = list(tier.manifest.sessions_recorded), tier.collected_frame
        until_us = host.trash_until_us()
        await abort_failed(tier.manifest, host.store, host.counters, failed, until_us)
        await tier.reserve()
        await self._apply_limits()
        await self._remove_expired()
        merged = await self._merge()
        await self._prune()
        # Before the trash is emptied: the newest snapshot must not name deleted objects.
        await self._write_snapshot()
        await self._empty_trash(entered_frame)
        return 0.0 if merged else self._seconds_until_due()

    # -- when more work is due

    def _seconds_until_due(self) -> float | None:
        now = self._host.clock.now_us()
        again = now + int(self._host.settings.retry_seconds_max * 1_000_000)
        times = [item.until_us if item.until_us > now else again for item in self._trash]
        times += [time for time in (self._prune_at(), self._merge_at(), self._age_at()) if time]
        if not times:
            return None
        return min(max(0.0, (min(times) - now) / 1e6), IDLE_SECONDS_MAX)

    def _prune_at(self) -> int | None:
        log = self._tier.log
        return retention.prunable_at(
            log.files.all(), self._tier.uploaded_frame, self._host.settings, log.state.settle_floor
        )

    def _merge_at(self) -> int | None:
        """When a few small objects will be merged if no object is added; None if there are none."""
        if not self._choose_run(NEVER_US):
            return None
        newest = max(entry.created_at for entry in self._tier.manifest.index)
        return newest + int(self._host.settings.object_seconds_max * 1_000_000)

    def _age_at(self) -> int | None:
        """When the oldest message may be too old, according to timestamps known without reading."""
        log, age = self._tier.log, self._limits.max_age_seconds
        if age is None or not any(log.live_count(p) for p in log.partitions()):
            return None
        oldest = min(
            [log.files.all()[0].header.created_us]
            + [entry.first_timestamp for entry in self._tier.manifest.index]
        )
        interval = min(max(age / 20, AGE_SECONDS_MIN), AGE_SECONDS_MAX)
        soonest = self._host.clock.now_us() + int(interval * 1_000_000)
        return max(oldest + _microseconds(age), soonest)

    # -- merges

    def _choose_run(self, now_us: int) -> list[ObjectEntry]:
        manifest = self._tier.manifest
        rules = MergeRules(
            self._host.settings,
            self._tier.log.state.gap_is_recorded,
            self._damaged,
            manifest.head.gaps,
        )
        return choose_run(manifest.index, rules, now_us)

    async def _merge(self) -> bool:
        """Merge one run of objects; returns whether there was one."""
        tier, host = self._tier, self._host
        now = host.clock.now_us()
        run = self._choose_run(now)
        with shared_memory() as memory:
            entry = await self._merge_run(run, now, memory)
            if entry is None:
                return bool(run)
            data = mapped_view(memory)
        await tier.replace(run, await tier.put(entry, data))
        host.counters.merges += 1
        _events.info(
            "objects_merged", topic=str(tier.topic), count=len(run), object=entry.object_id
        )
        return True

    async def _merge_run(
        self, run: list[ObjectEntry], now_us: int, memory: SharedFile
    ) -> ObjectEntry | None:
        """Write the merged object to `memory`; returns its entry, or None if nothing is merged.

        On return the inputs are no longer in memory.
        """
        tier = self._tier
        bodies = await self._read_inputs(run)
        if not bodies:
            return None
        deletions = Deletions.of(tier.log.state)
        arguments = (tier.topic, run, bodies, deletions, now_us, unique_name(), memory)
        return await self._host.threads.run(merge_objects, *arguments)

    async def _read_inputs(self, run: list[ObjectEntry]) -> list[bytes]:
        """The objects to merge; none if one is missing or damaged.

        That one is not merged any more: a merged object must not hide the damage.
        """
        bodies = []
        for entry in run:
            try:
                bodies.append(await self._host.store.get(entry.object_id, crc32c=entry.crc32c))
            except (ObjectMissing, ObjectDamaged) as error:
                self._damaged.add(entry.object_id)
                _events.error("object_damaged", topic=str(self._tier.topic), reason=str(error))
                return []
        return bodies

    # -- retention

    async def _prune(self) -> None:
        tier = self._tier
        files = retention.prunable(
            tier.log.files.all(),
            tier.uploaded_frame,
            self._host.settings,
            self._host.clock.now_us(),
            tier.log.state.settle_floor,
        )
        if files:
            await tier.log.prune(files)

    async def _apply_limits(self) -> None:
        """Move the log start offsets of the partitions according to the topic's limits."""
        limits, log, tier = self._limits, self._tier.log, self._tier
        starts: dict[int, int] = {}
        if limits.max_bytes is not None:
            starts |= retention.starts_by_bytes(tier.manifest.index, limits.max_bytes)
        for partition in log.partitions():
            start = starts.get(partition, 0)
            if limits.max_messages is not None:
                by_count = retention.start_by_count(log.state, partition, limits.max_messages)
                start = max(start, by_count)
            if limits.max_age_seconds is not None:
                start = max(start, await self._start_by_age(partition, limits.max_age_seconds))
            if start > log.start_offset(partition):
                await self._purge(partition, Offset(start))

    async def _start_by_age(self, partition: PartitionId, seconds: float) -> Offset:
        oldest = self._host.clock.now_us() - _microseconds(seconds)
        try:
            return await self._tier.offset_at(partition, Microseconds(oldest))
        except DataDamaged as error:
            # The age of damaged messages is unknown; all messages before them are too old.
            return error.first

    async def _purge(self, partition: PartitionId, start: Offset) -> None:
        """Purge the messages before `start`.

        With durability `cloud` the purge waits for an upload, which nobody else makes meanwhile.
        """
        tier = self._tier
        purge = self._tasks.start(tier.log.purge(partition, start, "retention"))
        try:
            while tier.log.durability is Durability.CLOUD and not purge.done():
                await asyncio.wait([purge], timeout=PURGE_SECONDS)
                async with self._uploads_lock:
                    await tier.upload_round()
            await purge
        finally:
            purge.cancel()

    async def _remove_expired(self) -> None:
        tier = self._tier
        expired = retention.expired_objects(tier.manifest.index, tier.log.state.starts())
        if expired:
            await tier.remove_entries(expired)

    # -- trash and snapshots

    async def _empty_trash(self, entered_frame: int) -> None:
        """Delete objects in the trash whose grace time is over.

        An object remains while a link to it may be in a frame that is not in the manifest yet: such
        a frame is older than the first time the object was seen in the trash.
        """
        manifest, store = self._tier.manifest, self._host.store
        async with manifest.removing:
            # The time is read first: another broker may claim what becomes due later, if this
            # process is suspended.
            now = self._host.clock.now_us()
            trash, linked_frame = await manifest.trash(), self._tier.linked_frame
            link_frames = {
                item.object_id: self._link_frames.get(item.object_id, linked_frame)
                for item in trash
            }
            due = [
                item
                for item in trash
                if item.until_us <= now
                and (item.unfinished or link_frames[item.object_id] <= entered_frame)
            ]
            named = {entry.object_id for entry in manifest.index}
            for item in due:
                if item.object_id in named:
                    continue  # It was linked again before it was removed from the manifest.
                if item.unfinished:
                    await store.abort_uploads(item.object_id)
                await store.delete(item.object_id)
            await manifest.forget_trash(due)
            deleted = {item.object_id for item in due}
            self._trash = [item for item in trash if item.object_id not in deleted]
            self._link_frames = {
                item.object_id: link_frames[item.object_id] for item in self._trash
            }

    async def _write_snapshot(self) -> None:
        """Put a copy of the manifest into the bucket if the manifest has changed."""
        manifest = self._tier.manifest
        if manifest.head.change == self._snapshot_change or manifest.lacks_deletes:
            return
        now = self._host.clock.now_us()
        head = msgspec.structs.replace(manifest.head, deletes_object=None)
        content = Snapshot(head, manifest.index.ordered(), now)
        await snapshot.write(self._host.store, self._tier.topic, content, unique_name())
        self._snapshot_change = manifest.head.change


def _microseconds(age_seconds: float) -> int:
    # Topics of earlier versions may have any limit, infinity included.
    return int(min(age_seconds, RETENTION_SECONDS_MAX) * 1_000_000)
