"""What is done for a topic beside uploading: merge, prune, limits, trash, snapshots."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from penstock.host.entropy import unique_name
from penstock.model.durability import Durability
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects.interface import ObjectDamaged, ObjectMissing
from penstock.tiers import merge, retention, snapshot
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import ObjectEntry, Snapshot
from penstock.tiers.retention import TopicRetention
from penstock.tiers.tier import TierHost, TopicTier

PURGE_SECONDS: Final = 0.02
"""How long a purge may take to reach the disk before an upload looks for it."""

_events = structlog.get_logger(__name__)


class Upkeep:
    """Keeps one topic's tiers in order; steps run one at a time, between uploads."""

    def __init__(self, host: TierHost, tier: TopicTier, limits: TopicRetention) -> None:
        self._host, self._tier, self._limits = host, tier, limits
        self._snapshot_of = ""
        self._damaged: set[str] = set()

    async def step(self) -> None:
        """Everything that is due; raises what the stores raise and goes on next time."""
        await self._tier.refresh()
        await self._tier.reserve()
        await self._apply_limits()
        await self._drop_objects()
        await self._merge()
        await self._prune()
        # In this order: what the newest snapshot names is there.
        await self._snapshot()
        await self._empty_trash()

    async def _merge(self) -> None:
        tier, host = self._tier, self._host
        state, now = tier.log.state, host.clock.now_us()
        whole = [e for e in tier.manifest.index if e.object_id not in self._damaged]
        run = merge.choose(whole, host.settings, now, state.gap_is_recorded)
        bodies = await self._bodies(run)
        if not bodies:
            return
        built = await host.threads.run(
            merge.merge,
            tier.topic,
            run,
            bodies,
            Deletions.of(state, {span.partition for entry in run for span in entry.ranges}),
            now,
            unique_name(),
        )
        await tier.replace(run, built)
        host.counters.merges += 1
        _events.info(
            "objects_merged", topic=str(tier.topic), count=len(run), object=built.entry.object_id
        )

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
            tier.log.settle_floor,
        )
        if files:
            await tier.log.prune(files)

    async def _apply_limits(self) -> None:
        """Move the starts of the partitions to where the topic's limits want them."""
        limits, log, tier = self._limits, self._tier.log, self._tier
        wanted: dict[int, int] = {}
        if limits.bytes_max is not None:
            wanted |= retention.starts_by_bytes(tier.manifest.index, limits.bytes_max)
        for partition in log.partitions():
            start = wanted.get(partition, 0)
            if limits.messages_max is not None:
                kept = retention.start_by_count(log.state, partition, limits.messages_max)
                start = max(start, kept)
            if limits.age_seconds_max is not None:
                oldest = self._host.clock.now_us() - int(limits.age_seconds_max * 1_000_000)
                start = max(start, await tier.offset_at(partition, Microseconds(oldest)))
            if start > log.start_offset(partition):
                await self._purge(partition, Offset(start))

    async def _purge(self, partition: PartitionId, start: Offset) -> None:
        """Purge; where a change counts once it is uploaded, that is done here, nobody else can."""
        tier = self._tier
        purge = asyncio.create_task(tier.log.purge(partition, start, "retention"))
        try:
            while tier.log.durability is Durability.CLOUD and not purge.done():
                await asyncio.wait([purge], timeout=PURGE_SECONDS)
                await tier.round()
            await purge
        finally:
            purge.cancel()

    async def _drop_objects(self) -> None:
        tier = self._tier
        dead = retention.dead_objects(tier.manifest.index, tier.log.state.starts())
        if dead:
            await tier.drop(dead)

    async def _empty_trash(self) -> None:
        due = await self._tier.manifest.trash(self._host.clock.now_us())
        for item in due:
            await self._host.store.delete(item.object_id)
        await self._tier.manifest.emptied(due)

    async def _snapshot(self) -> None:
        """Lay the manifest beside the objects when it has changed."""
        manifest = self._tier.manifest
        if manifest.head.change == self._snapshot_of:
            return
        entries = sorted(manifest.index, key=lambda entry: entry.sequence)
        now = self._host.clock.now_us()
        head = msgspec.structs.replace(manifest.head, deletes_object=None)
        content = Snapshot(head, entries, now)
        await snapshot.write(self._host.store, self._tier.topic, content, unique_name())
        self._snapshot_of = manifest.head.change
