"""The parts of a broker that the tiers of all topics share."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.threads import WorkerThreads
from penstock.objects import ObjectStore
from penstock.tiers.counters import TierCounters
from penstock.tiers.settings import TierSettings


@dataclass(frozen=True, slots=True)
class TierHost:
    """The bucket, the settings and the workers of every topic's tiers."""

    store: ObjectStore
    settings: TierSettings
    clock: Clock
    threads: WorkerThreads
    child: Child
    counters: TierCounters

    def trash_until_us(self) -> int:
        """When an object that leaves the manifest now may be deleted."""
        return self.clock.now_us() + int(self.settings.trash_seconds * 1_000_000)
