"""Schedules the work for one topic: reservations of offsets, uploads and upkeep.

A look starts what is due and sets a timer for what is due later. A look is made shortly after the
log has changed, shortly after a job has ended, and when the timer expires. A topic without new
messages has no task, and no timer unless its upkeep is due at some time.

Uploads begin when enough messages are new or the oldest new one is old enough. A job that fails is
repeated with growing, jittered delays for as long as necessary, while the WAL absorbs the outage.
Upkeep, uploads and reservations are separate jobs, so that none waits for the failures of another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from penstock.host.notifier import Cancel
from penstock.host.tasks import Backoff, Tasks, Timer
from penstock.log import LogObserver
from penstock.model.errors import PenstockError
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.tiers.manifest.manifest import Deposed
from penstock.tiers.settings import Pressure, TierSettings
from penstock.tiers.topic_tier import TierHost, TopicTier
from penstock.tiers.upkeep.upkeep import Upkeep

SLOW_SECONDS: Final = 0.1
"""The delay of a publish under the back-pressure policy `slow`."""

UPKEEPS_AT_ONCE: Final = 2
"""Upkeep steps in progress, over all topics: a merge has its inputs in memory."""

_events = structlog.get_logger(__name__)


class SharedSlots:
    """Limits the jobs in progress over all topics."""

    def __init__(self, settings: TierSettings) -> None:
        self.uploads = asyncio.Semaphore(settings.uploads_at_once)
        self.upkeep = asyncio.Semaphore(UPKEEPS_AT_ONCE)


class Job:
    """One kind of work for a topic: at most one task at a time, delayed after failures."""

    def __init__(
        self, work: Callable[[], Awaitable[None]], failed_event: str, settings: TierSettings
    ) -> None:
        self.work = work
        self.failed_event = failed_event
        self.failures = 0
        """Failures since the last success."""
        self.not_before = 0.0
        self.task: asyncio.Task[None] | None = None
        self._backoff = Backoff(settings.retry_seconds, settings.retry_seconds_max)

    def succeeded(self) -> None:
        self.failures = 0
        self._backoff.reset()

    def failed(self, now: float) -> float:
        """Delay the next attempt, more after each failure, up to a limit; returns the delay."""
        self.failures += 1
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        delay = self._backoff.next_seconds() * jitter
        self.not_before = now + delay
        return delay


class TopicMaintenance(LogObserver):
    """Schedules the jobs of one topic between `start` and `stop`."""

    def __init__(
        self,
        host: TierHost,
        tier: TopicTier,
        limits: TopicRetention,
        slots: SharedSlots,
        deposed: Callable[[], object],
    ) -> None:
        """`deposed` is called if a job finds that this broker no longer owns the topic."""
        self._host, self._settings, self._slots = host, host.settings, slots
        self._deposed = deposed
        self.tier = tier
        self.uploads_lock = asyncio.Lock()
        """Held while frames are collected and uploaded."""
        self.upkeep_lock = asyncio.Lock()
        self.upkeep = Upkeep(host, tier, limits, self.uploads_lock)
        self.uploaded_bytes = tier.log.stored_bytes - tier.backlog_bytes
        """The log's `stored_bytes` up to which everything is uploaded."""
        self.upkeep_at: float | None = None
        """When the next step is due; None if only a change of the topic makes one due."""
        self.uploading = Job(self._upload, "upload_failed", host.settings)
        self.upkeeping = Job(self._maintain, "upkeep_failed", host.settings)
        self.reserving = Job(tier.reserve, "not_reserved", host.settings)
        self._waiting_since: float | None = None
        """When the oldest new message was noticed."""
        self._changed = False
        self._tasks = Tasks()
        self._timer = Timer(self.look)
        self._stop_observing: Cancel | None = None
        self._active = False

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log that are in no object yet."""
        return self.tier.log.stored_bytes - self.uploaded_bytes

    @property
    def is_idle(self) -> bool:
        """Whether no job runs and no look is due before the next upkeep."""
        return not self._tasks and self._timer.when in (None, self.upkeep_at)

    # -- life cycle

    def start(self) -> None:
        """Begin to schedule jobs."""
        self._active = True
        if self.tier.log.durability is not Durability.MEMORY:
            self._stop_observing = self.tier.log.observe(self)
        self.changed()

    def stop(self) -> None:
        """Start no more jobs; those in progress continue."""
        self._active = False
        self._timer.stop()
        if self._stop_observing is not None:
            self._stop_observing()

    def cancel(self) -> None:
        """Stop, and cancel the jobs in progress."""
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def drain(self) -> None:
        """Wait until no job is in progress."""
        await self._tasks.drain()

    def group_committed(self) -> None:
        self.changed()

    def changed(self) -> None:
        """The log or the manifest has changed, so that upkeep may have work."""
        self._changed = True
        self._look_soon()

    # -- uploads and upkeep for callers that wait for them

    async def flush(self) -> None:
        """Upload everything that is durable now; raises what the stores raise."""
        async with self.uploads_lock:
            durable = self.tier.log.writer.durable_number
            while await self.upload_round() and self.tier.collected_frame < durable:
                pass

    async def run_upkeep(self) -> None:
        """Do all upkeep that is due; raises what the stores raise."""
        async with self.upkeep_lock:
            await self.upkeep.step()

    async def upload_round(self) -> bool:
        """Run one round of uploads; returns whether it uploaded anything."""
        tier, log = self.tier, self.tier.log
        stored, durable = log.stored_bytes, log.writer.durable_number
        size = await tier.upload_round()
        if tier.collected_frame >= durable:
            self.uploaded_bytes = stored
            self._waiting_since = None
        else:
            self.uploaded_bytes = min(self.uploaded_bytes + size, stored)
        return bool(size)

    # -- scheduling

    def _look_soon(self) -> None:
        if self._active:
            self._timer.at_latest(self._now() + self._settings.look_seconds)

    def look(self) -> None:
        """Start the jobs that are due, and set the timer for the next one that will be."""
        now = self._now()
        if self._changed:
            self._changed = False
            self.request_upkeep(now + self._settings.upkeep_seconds)
        self.apply_pressure()
        # A separate job: offsets must not run out while the bucket is slow or unavailable.
        reserve_at = now if self.tier.needs_reservation else None
        times = [
            self._start_if_due(self.reserving, reserve_at, now),
            self._start_if_due(self.uploading, self.upload_at(now), now),
            self._start_if_due(self.upkeeping, self.upkeep_at, now),
        ]
        later = [time for time in times if time is not None]
        if later:
            self._timer.at_latest(min(later))

    def upload_at(self, now: float) -> float | None:
        """When the new messages are to be uploaded; None if there are none."""
        settings, new_bytes = self._settings, self.lag_bytes
        if not new_bytes:
            self._waiting_since = None
            return None
        if self._waiting_since is None:
            self._waiting_since = now
        cloud = self.tier.log.durability is Durability.CLOUD
        interval = settings.linger_seconds if cloud else settings.interval_seconds
        if new_bytes >= settings.backlog_bytes_max:
            return self._waiting_since
        if new_bytes >= settings.batch_bytes_max:
            return self._waiting_since + min(interval, settings.upload_pause_seconds)
        return self._waiting_since + interval

    def request_upkeep(self, at: float) -> None:
        """A step is due at this time, or earlier if one was requested before."""
        self.upkeep_at = at if self.upkeep_at is None else min(at, self.upkeep_at)

    def apply_pressure(self) -> None:
        """Delay or refuse publishes while the lag exceeds its limit, according to the policy."""
        settings, log = self._settings, self.tier.log
        over = self.lag_bytes > settings.lag_bytes_max
        log.pressure_seconds = SLOW_SECONDS if over and settings.pressure is Pressure.SLOW else 0.0
        refuse = over and settings.pressure is Pressure.REFUSE
        log.refusal = "the object store is too far behind" if refuse else ""

    def _start_if_due(self, job: Job, due_at: float | None, now: float) -> float | None:
        """Start the job if it is due and not running; returns when to try again, if necessary."""
        if due_at is None or job.task is not None:
            return None
        start_at = max(due_at, job.not_before)
        if start_at > now:
            return start_at
        self.start_job(job)
        return None

    def start_job(self, job: Job) -> None:
        """Start a job that is not running, due or not."""
        job.task = self._tasks.start(self.run_job(job))

    async def run_job(self, job: Job) -> None:
        """Do the work of a job now; a failure delays its next attempt."""
        topic = self.tier.topic
        try:
            await job.work()
            job.succeeded()
        except Deposed:
            self._deposed()
        except (PenstockError, OSError) as error:
            self._host.counters.upload_retries += job is self.uploading
            delay = job.failed(self._now())
            facts = {"reason": str(error), "again_in_seconds": delay}
            _events.warning(job.failed_event, topic=str(topic), **facts)
        finally:
            job.task = None
            self._look_soon()

    async def _upload(self) -> None:
        async with self._slots.uploads, self.uploads_lock:
            due_at = self.upload_at(self._now())
            if due_at is not None and due_at <= self._now():
                try:
                    await self.upload_round()
                finally:
                    self.changed()

    async def _maintain(self) -> None:
        async with self._slots.upkeep, self.upkeep_lock:
            # A change from here on makes another step due.
            self.upkeep_at = None
            try:
                again_seconds = await self.upkeep.step()
            except BaseException:
                self.request_upkeep(self._now())
                raise
        if again_seconds is not None:
            again_seconds = max(again_seconds, self._settings.upkeep_seconds)
            self.request_upkeep(self._now() + again_seconds)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
