"""What is done for a topic beside uploading: merge, prune, limits, trash, snapshots."""

from __future__ import annotations

import msgspec
import structlog

from penstock.host.entropy import unique_name
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.tiers import merge, retention, snapshot
from penstock.tiers.entries import Snapshot
from penstock.tiers.retention import TopicRetention
from penstock.tiers.tier import TierHost, TopicTier

_events = structlog.get_logger(__name__)


class Upkeep:
    """Keeps one topic's tiers in order; steps run one at a time, between uploads."""

    def __init__(self, host: TierHost, tier: TopicTier, limits: TopicRetention) -> None:
        self._host, self._tier, self._limits = host, tier, limits
        self._snapshot_of = tier.manifest.head.change

    async def step(self) -> None:
        """Everything that is due; raises what the stores raise and goes on next time."""
        await self._tier.reserve()
        await self._apply_limits()
        await self._drop_objects()
        await self._merge()
        await self._prune()
        await self._empty_trash()
        await self._snapshot()

    async def _merge(self) -> None:
        tier, host = self._tier, self._host
        state, now = tier.log.state, host.clock.now_us()
        run = merge.choose(tier.manifest.index, host.settings, now, state.gap_is_recorded)
        if not run:
            return
        bodies = [await host.store.get(entry.object_id) for entry in run]
        built = await host.threads.run(
            merge.merge,
            tier.topic,
            run,
            bodies,
            lambda partition: state.bitmap(PartitionId(partition)),
            now,
            unique_name(),
        )
        await tier.replace(run, built)
        host.counters.merges += 1
        _events.info(
            "objects_merged", topic=str(tier.topic), count=len(run), object=built.entry.object_id
        )

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
                start = max(start, log.next_offset(partition) - limits.messages_max)
            if limits.age_seconds_max is not None:
                oldest = self._host.clock.now_us() - int(limits.age_seconds_max * 1_000_000)
                start = max(start, await tier.offset_at(partition, Microseconds(oldest)))
            if start > log.start_offset(partition):
                await log.purge(partition, Offset(start), "retention")

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
