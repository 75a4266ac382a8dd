"""What is to be done for one topic, and when; one for which nothing is to be done is at rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.log import LogObserver
from penstock.model.resources import Durability
from penstock.tiers.settings import TierSettings
from penstock.tiers.topic_tier import TopicTier
from penstock.tiers.upkeep.upkeep import Upkeep

DOUBLINGS_MAX: Final = 30
"""A delay is not doubled more often, however long an outage lasts."""


@dataclass(slots=True)
class Work:
    """One kind of work for a topic: at most one task at a time, and later after a failure."""

    failed_event: str
    failures: int = 0
    not_before: float = 0.0
    task: asyncio.Task[None] | None = None

    def may_start(self, now: float) -> bool:
        return self.task is None and now >= self.not_before

    def back_off(self, settings: TierSettings, now: float) -> float:
        """It failed once more: wait longer, up to a limit; how long."""
        self.failures += 1
        doubled = settings.retry_seconds * 2 ** min(self.failures - 1, DOUBLINGS_MAX)
        delay: float = min(doubled, settings.retry_seconds_max)
        delay *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self.not_before = now + delay
        return delay


@dataclass(slots=True, eq=False)
class TopicMaintenance(LogObserver):
    """One topic's turn; it is among `awake` while there is something to do or to wait for."""

    tier: TopicTier
    upkeep: Upkeep
    uploads_lock: asyncio.Lock
    """Held while frames are collected and uploaded."""
    awake: set[TopicMaintenance]
    uploaded_bytes: int = 0
    """`stored_bytes` of the log up to which everything was uploaded."""
    waiting_since: float | None = None
    upkeep_at: float | None = None
    """When the next step is due; None when only a change makes one so."""
    uploading: Work = field(default_factory=lambda: Work("upload_failed"))
    keeping: Work = field(default_factory=lambda: Work("upkeep_failed"))
    reserving: Work = field(default_factory=lambda: Work("not_reserved"))
    upkeep_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: bool = True
    _timer: asyncio.TimerHandle | None = None
    _stop_observing: Callable[[], None] | None = None

    def start(self) -> None:
        """Look at the topic now, and whenever its log has changed."""
        if self.tier.log.durability is not Durability.MEMORY:
            self._stop_observing = self.tier.log.observe(self)
        self.change()

    def group_committed(self) -> None:
        self.change()

    def change(self) -> None:
        """The log or the manifest is not what it was: there may be upkeep to do."""
        self._changed = True
        self.awake.add(self)

    def take_change(self) -> bool:
        """Whether something has changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def want_upkeep(self, at: float) -> None:
        """A step is due then, or sooner if that was said before."""
        self.upkeep_at = at if self.upkeep_at is None else min(at, self.upkeep_at)

    def rest(self) -> None:
        """Sleep until something changes, work that is under way ends, or upkeep is due."""
        self.awake.discard(self)
        self._stop_timer()
        if self.upkeep_at is not None and self.keeping.task is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self.upkeep_at, self.awake.add, self)

    def end(self) -> None:
        """Nothing is done for the topic any more, whatever changes."""
        if self._stop_observing is not None:
            self._stop_observing()
        self.awake.discard(self)
        self.awake = set()
        self._stop_timer()
        for task in self.tasks():
            task.cancel()

    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way."""
        works = (self.uploading, self.keeping, self.reserving)
        return [work.task for work in works if work.task is not None]

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
