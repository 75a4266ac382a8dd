"""What is done for a topic beside uploading: merge, prune, limits, trash, snapshots."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from penstock.host.entropy import unique_name
from penstock.host.shared_memory import SharedFile, mapped_view, shared_memory
from penstock.model.errors import DataDamaged
from penstock.model.limits import RETENTION_SECONDS_MAX
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects import ObjectDamaged, ObjectMissing
from penstock.tiers import merge, retention, snapshot
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import ObjectEntry, Snapshot, Trash
from penstock.tiers.sessions import abort_failed
from penstock.tiers.tier import TierHost, TopicTier

PURGE_SECONDS: Final = 0.02
"""How long a purge may take to reach the disk before an upload looks for it."""

REST_SECONDS_MAX: Final = 3600.0
"""The clock that grace and age are counted by may be set back."""

AGE_SECONDS_MIN: Final = 1.0
AGE_SECONDS_MAX: Final = 60.0
"""Bounds of how often the age of messages is looked at, from when the first may be too old."""

NEVER_US: Final = 1 << 62

_events = structlog.get_logger(__name__)


class Upkeep:
    """Keeps one topic's tiers in order; steps run one at a time, beside uploads.

    `uploads` is held while frames are collected and uploaded.
    """

    def __init__(
        self, host: TierHost, tier: TopicTier, limits: TopicRetention, uploads: asyncio.Lock
    ) -> None:
        self._host, self._tier, self._limits = host, tier, limits
        self._uploads = uploads
        self._snapshot_of = ""
        self._damaged: set[str] = set()
        self._trash: list[Trash] = []
        self._seen: dict[str, int] = {}
        """Of the trash, by object, up to which frame links may name it."""

    async def step(self) -> float | None:
        """Everything that is due; raises what the stores raise and goes on next time.

        In so many seconds there will be something to do again; None when only a change of the topic
        brings that about.
        """
        tier, host = self._tier, self._host
        async with self._uploads:
            await tier.refresh()
            # No upload is under way now: what is on record as such has failed, and what was looked
            # at is in the manifest.
            failed, entered_frame = list(tier.manifest.noted), tier.collected_frame
        until_us = host.trash_until_us()
        await abort_failed(tier.manifest, host.store, host.counters, failed, until_us)
        await tier.reserve()
        await self._apply_limits()
        await self._drop_objects()
        merged = await self._merge()
        await self._prune()
        # In this order: what the newest snapshot names is there.
        await self._snapshot()
        await self._empty_trash(entered_frame)
        return 0.0 if merged else self._next_seconds()

    def _next_seconds(self) -> float | None:
        now = self._host.clock.now_us()
        again = now + int(self._host.settings.retry_seconds_max * 1_000_000)
        times = [item.until_us if item.until_us > now else again for item in self._trash]
        times += [time for time in (self._prune_at(), self._merge_at(), self._age_at()) if time]
        if not times:
            return None
        return min(max(0.0, (min(times) - now) / 1e6), REST_SECONDS_MAX)

    def _prune_at(self) -> int | None:
        log = self._tier.log
        return retention.prunable_at(
            log.files.all(), self._tier.uploaded_frame, self._host.settings, log.state.settle_floor
        )

    def _merge_at(self) -> int | None:
        """When a few small objects are left alone long enough to be merged."""
        if not self._choose(NEVER_US):
            return None
        newest = max(entry.created_at for entry in self._tier.manifest.index)
        return newest + int(self._host.settings.object_seconds_max * 1_000_000)

    def _age_at(self) -> int | None:
        """When the oldest message may be too old, as far as that is known without reading it."""
        log, age = self._tier.log, self._limits.max_age_seconds
        if age is None or not any(log.live_count(p) for p in log.partitions()):
            return None
        oldest = min(
            [log.files.all()[0].header.created_us]
            + [entry.first_timestamp for entry in self._tier.manifest.index]
        )
        patience = min(max(age / 20, AGE_SECONDS_MIN), AGE_SECONDS_MAX)
        soonest = self._host.clock.now_us() + int(patience * 1_000_000)
        return max(oldest + _microseconds(age), soonest)

    def _choose(self, now_us: int) -> list[ObjectEntry]:
        manifest, recorded = self._tier.manifest, self._tier.log.state.gap_is_recorded
        return merge.choose(
            manifest.index,
            self._host.settings,
            now_us,
            recorded,
            self._damaged,
            manifest.head.gaps,
        )

    async def _merge(self) -> bool:
        tier, host = self._tier, self._host
        now = host.clock.now_us()
        run = self._choose(now)
        with shared_memory() as memory:
            entry = await self._merged(run, now, memory)
            if entry is None:
                return bool(run)
            data = mapped_view(memory)
        await tier.replace(run, await tier.put(entry, data))
        host.counters.merges += 1
        _events.info(
            "objects_merged", topic=str(tier.topic), count=len(run), object=entry.object_id
        )
        return True

    async def _merged(
        self, run: list[ObjectEntry], now_us: int, memory: SharedFile
    ) -> ObjectEntry | None:
        """The merged object, its bytes in `memory`; None where there is nothing to merge. What it
        was made from is in memory no more.
        """
        tier = self._tier
        bodies = await self._bodies(run)
        if not bodies:
            return None
        deletions = Deletions.of(tier.log.state)
        arguments = (tier.topic, run, bodies, deletions, now_us, unique_name(), memory)
        return await self._host.threads.run(merge.merge, *arguments)

    async def _bodies(self, run: list[ObjectEntry]) -> list[bytes]:
        """What is to be merged; nothing when an object is missing or damaged, which is then left
        alone: a merged object must not hide that.
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
        """Move the starts of the partitions to where the topic's limits want them."""
        limits, log, tier = self._limits, self._tier.log, self._tier
        wanted: dict[int, int] = {}
        if limits.max_bytes is not None:
            wanted |= retention.starts_by_bytes(tier.manifest.index, limits.max_bytes)
        for partition in log.partitions():
            start = wanted.get(partition, 0)
            if limits.max_messages is not None:
                kept = retention.start_by_count(log.state, partition, limits.max_messages)
                start = max(start, kept)
            if limits.max_age_seconds is not None:
                start = max(start, await self._start_by_age(partition, limits.max_age_seconds))
            if start > log.start_offset(partition):
                await self._purge(partition, Offset(start))

    async def _start_by_age(self, partition: PartitionId, seconds: float) -> Offset:
        oldest = self._host.clock.now_us() - _microseconds(seconds)
        try:
            return await self._tier.offset_at(partition, Microseconds(oldest))
        except DataDamaged as error:
            # How old the damaged ones are is not known; all before them are too old.
            return error.first

    async def _purge(self, partition: PartitionId, start: Offset) -> None:
        """Purge; where a change counts once it is uploaded, that is done here, nobody else can."""
        tier = self._tier
        purge = asyncio.create_task(tier.log.purge(partition, start, "retention"))
        try:
            while tier.log.durability is Durability.CLOUD and not purge.done():
                await asyncio.wait([purge], timeout=PURGE_SECONDS)
                async with self._uploads:
                    await tier.round()
            await purge
        finally:
            purge.cancel()

    async def _drop_objects(self) -> None:
        tier = self._tier
        dead = retention.dead_objects(tier.manifest.index, tier.log.state.starts())
        if dead:
            await tier.drop(dead)

    async def _empty_trash(self, entered_frame: int) -> None:
        """Remove what is due; but not what may be linked again by a frame that is not entered into
        the manifest yet, which is one before the object was seen here.
        """
        manifest, store = self._tier.manifest, self._host.store
        async with manifest.removing:
            # The time first: what gets due while this process is stopped may be claimed elsewhere.
            now = self._host.clock.now_us()
            found, linked_frame = await manifest.trash(), self._tier.linked_frame
            seen = {item.object_id: self._seen.get(item.object_id, linked_frame) for item in found}
            due = [
                item
                for item in found
                if item.until_us <= now
                and (item.unfinished or seen[item.object_id] <= entered_frame)
            ]
            count = {entry.object_id for entry in manifest.index}
            for item in due:
                if item.object_id in count:
                    continue  # Linked again before it was dropped.
                if item.unfinished:
                    await store.abort_uploads(item.object_id)
                await store.delete(item.object_id)
            await manifest.emptied(due)
            removed = {item.object_id for item in due}
            self._trash = [item for item in found if item.object_id not in removed]
            self._seen = {item.object_id: seen[item.object_id] for item in self._trash}

    async def _snapshot(self) -> None:
        """Lay the manifest beside the objects when it has changed."""
        manifest = self._tier.manifest
        if manifest.head.change == self._snapshot_of or manifest.lacks_deletes:
            return
        entries = sorted(manifest.index, key=lambda entry: entry.sequence)
        now = self._host.clock.now_us()
        head = msgspec.structs.replace(manifest.head, deletes_object=None)
        content = Snapshot(head, entries, now)
        await snapshot.write(self._host.store, self._tier.topic, content, unique_name())
        self._snapshot_of = manifest.head.change


def _microseconds(age_seconds: float) -> int:
    # Topics of earlier versions may have any limit, infinity included.
    return int(min(age_seconds, RETENTION_SECONDS_MAX) * 1_000_000)
