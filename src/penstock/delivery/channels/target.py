"""A consumer that is pushed to: how much of it goes on now, and what it has answered lately."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.delivery.channels import signing
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.settings import ChannelSettings
from penstock.ledger.jobs import JobLedger
from penstock.metadata.channel_records import PUSH, Channel, Consumer


class Attempt(NamedTuple):
    """One delivery that was tried."""

    offset: int
    message_us: int
    """When the message was stored; the time of the attempt if the message cannot be read."""
    number: int
    """Which attempt at this job, from 1."""
    at_us: int
    status: int
    """0 when there was no answer."""
    latency_ms: float
    error: str


class Target:
    """One consumer of one channel."""

    def __init__(
        self, channel: Channel, consumer: Consumer, jobs: ChannelJobs, settings: ChannelSettings
    ) -> None:
        self.channel, self.consumer, self.jobs = channel, consumer, jobs
        self._settings = settings
        self._keys = [signing.key_of(secret) for secret in consumer.secrets]
        self.running = 0
        self.waiting = False
        """Whether it stands in line for a worker."""
        self.attempts: deque[Attempt] = deque(maxlen=settings.attempts_kept)
        self.failing_since_us = 0
        self._pause_until_us = 0
        self._next_us = 0.0

    def renew(self, channel: Channel, consumer: Consumer) -> None:
        """The records have changed."""
        if consumer.disabled != self.consumer.disabled:
            self.failing_since_us = self._pause_until_us = 0
        self.channel, self.consumer = channel, consumer
        self._keys = [signing.key_of(secret) for secret in consumer.secrets]

    def keys(self, now_us: int) -> list[bytes]:
        """What deliveries are signed with: the newest alone once the others have had their time."""
        overlap_us = self._settings.secret_overlap_seconds * 1_000_000
        return self._keys[: 1 if now_us >= self.consumer.rotated_us + overlap_us else None]

    @property
    def ledger(self) -> JobLedger | None:
        return self.jobs.ledgers.get(self.consumer.number)

    def willing(self) -> bool:
        """Whether there is something to deliver, and one more delivery may be under way."""
        ledger, consumer = self.ledger, self.consumer
        if ledger is None or not ledger.ready or consumer.type != PUSH or consumer.disabled:
            return False
        # What cannot be kept would be delivered again and again.
        if not self.jobs.writable:
            return False
        return self.running < (consumer.concurrency or self._settings.concurrency)

    def wait_us(self, now_us: int) -> float:
        """How long the next delivery must wait for its turn; 0 when it need not."""
        return max(self._pause_until_us, self._next_us) - now_us

    def begin(self, now_us: int) -> None:
        """A delivery begins: the next one comes not before the rate allows."""
        self.running += 1
        if self.consumer.rate_per_second:
            gap = 1_000_000 / self.consumer.rate_per_second
            self._next_us = max(self._next_us, now_us) + gap

    def pause(self, until_us: int) -> None:
        self._pause_until_us = max(self._pause_until_us, until_us)

    def note(self, attempt: Attempt, good: bool) -> None:
        self.attempts.append(attempt)
        if good:
            self.failing_since_us = 0
        elif not self.failing_since_us:
            self.failing_since_us = attempt.at_us

    def failed_long(self, now_us: int) -> bool:
        """Whether nothing was delivered for so long that trying on is of no use."""
        limit = self._settings.disable_after_seconds
        since = self.failing_since_us
        return bool(limit and since) and now_us - since > limit * 1_000_000
