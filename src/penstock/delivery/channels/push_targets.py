"""Endpoints that receive pushes: when each may be called, and the order in which they are served.

Endpoints take turns, one job each. The last quarter of the workers is reserved for endpoints that
have no running call: receivers that do not respond occupy the other workers until their calls time
out, and must not delay deliveries to other endpoints.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from penstock.delivery.channels.entities import PUSH, Channel, Endpoint
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.webhook import signing_key
from penstock.ledger.jobs import JobLedger

RESERVED_PART: Final = 4
"""One in this many workers is reserved for endpoints without a running call."""


class Attempt(NamedTuple):
    """One attempt to deliver a job."""

    offset: int
    message_us: int
    """When the message was stored; the time of the attempt if the message cannot be read."""
    number: int
    """Counts the attempts at this job from 1."""
    at_us: int
    status: int
    """0 without a response."""
    latency_ms: float
    error: str


class PushTarget:
    """One endpoint of a channel: its limits, its running calls and its recent attempts."""

    def __init__(
        self, channel: Channel, endpoint: Endpoint, jobs: ChannelJobs, settings: ChannelSettings
    ) -> None:
        self.channel, self.endpoint, self.jobs = channel, endpoint, jobs
        self._settings = settings
        self._keys = [signing_key(secret) for secret in endpoint.secrets]
        self.running = 0
        self.queued = False
        """Whether it waits for a worker or for its next time to be called."""
        self.attempts: deque[Attempt] = deque(maxlen=settings.attempts_kept)
        self.failing_since_us = 0
        self._paused_until_us = 0
        self._next_call_us = 0.0

    def update(self, channel: Channel, endpoint: Endpoint) -> None:
        """Apply changed entities."""
        if endpoint.disabled_reason != self.endpoint.disabled_reason:
            self.failing_since_us = self._paused_until_us = 0
        self.channel, self.endpoint = channel, endpoint
        self._keys = [signing_key(secret) for secret in endpoint.secrets]

    def signing_keys(self, now_us: int) -> list[bytes]:
        """The keys to sign with: after the overlap time only the newest."""
        overlap_us = self._settings.secret_overlap_seconds * 1_000_000
        return self._keys[: 1 if now_us >= self.endpoint.rotated_us + overlap_us else None]

    @property
    def ledger(self) -> JobLedger | None:
        return self.jobs.ledgers.get(self.endpoint.number)

    def can_deliver(self) -> bool:
        """Whether there is a job to deliver and the endpoint accepts another call."""
        ledger, endpoint = self.ledger, self.endpoint
        if ledger is None or not ledger.ready or endpoint.type != PUSH or endpoint.disabled_reason:
            return False
        # A delivery whose result cannot be stored would be repeated again and again.
        if not self.jobs.writable:
            return False
        return self.running < (endpoint.concurrency or self._settings.concurrency)

    def delay_us(self, now_us: int) -> float:
        """How long to wait before the next call; not positive if it may start now."""
        return max(self._paused_until_us, self._next_call_us) - now_us

    def start_call(self, now_us: int) -> None:
        """Count a call, and delay the next one as the rate limit demands."""
        self.running += 1
        if self.endpoint.rate_per_second:
            gap = 1_000_000 / self.endpoint.rate_per_second
            self._next_call_us = max(self._next_call_us, now_us) + gap

    def pause(self, until_us: int) -> None:
        self._paused_until_us = max(self._paused_until_us, until_us)

    def record(self, attempt: Attempt, *, succeeded: bool) -> None:
        self.attempts.append(attempt)
        if succeeded:
            self.failing_since_us = 0
        elif not self.failing_since_us:
            self.failing_since_us = attempt.at_us

    def fails_too_long(self, now_us: int) -> bool:
        """Whether all attempts have failed for longer than the configured limit."""
        limit = self._settings.disable_after_seconds
        since = self.failing_since_us
        return bool(limit and since) and now_us - since > limit * 1_000_000


class TargetQueue:
    """Endpoints that wait for one of the workers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._shared_workers = workers - workers // RESERVED_PART
        """Workers that serve endpoints with running calls too."""
        self._idle: OrderedDict[PushTarget, None] = OrderedDict()
        self._busy: OrderedDict[PushTarget, None] = OrderedDict()

    def add(self, target: PushTarget) -> None:
        """Append an endpoint to the queue."""
        (self._busy if target.running else self._idle)[target] = None

    def call_ended(self, target: PushTarget) -> None:
        """Serve a queued endpoint first again if none of its calls is running any more."""
        if not target.running and target in self._busy:
            del self._busy[target]
            self._idle[target] = None

    def take(self, running: int) -> PushTarget | None:
        """Remove and return the next endpoint; None if no call may start now.

        `running` is the number of occupied workers.
        """
        if self._idle and running < self._workers:
            return self._idle.popitem(last=False)[0]
        if self._busy and running < self._shared_workers:
            return self._busy.popitem(last=False)[0]
        return None
