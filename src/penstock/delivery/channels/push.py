"""Pushes jobs to callbacks, with a limit on concurrent calls in all and to each endpoint.

Endpoints with jobs wait in a queue (push_targets.py). An endpoint that is paused, rate-limited or
busy leaves the queue and returns when it may be called again. Without jobs no task runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import SystemRandom
from typing import Final

import structlog

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.headers import CONTENT_TYPE, MESSAGE_ID
from penstock.delivery.channels.messages import METADATA_HEADERS, PRIORITY, JobMessage
from penstock.delivery.channels.push_targets import Attempt, PushTarget, TargetQueue
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.webhook import (
    CallResult,
    Fields,
    Outcome,
    WebhookClient,
    signatures,
    signed_id,
)
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Tasks, Timer
from penstock.model.errors import DataDamaged, PenstockError

READ_RETRY_SECONDS: Final = 1.0
JITTER: Final = 0.1
"""Up to this share of a delay is added to it, so that jobs that failed together spread out."""
UNREADABLE: Final = Outcome(0, "the message cannot be read", 0.0)
"""The outcome for a damaged message; further attempts would fail too."""
BROKER_FAILED: Final = Outcome(0, "the broker failed on this delivery; its log says why", 0.0)
_random: Final = SystemRandom()
_events = structlog.get_logger(__name__)


class PushWorkers:
    """Runs all deliveries of a broker."""

    def __init__(
        self,
        settings: ChannelSettings,
        clock: Clock,
        disable: Callable[[PushTarget, str], None],
        client: WebhookClient | None = None,
    ) -> None:
        """`disable` receives an endpoint that must not be called any more, and the reason."""
        self._settings, self._clock, self._disable = settings, clock, disable
        addresses = Addresses(settings.allowed_networks, settings.loopback)
        self._client = client or WebhookClient(addresses, settings.timeout_seconds)
        self._queue = TargetQueue(settings.workers)
        self._calls = Tasks()
        self._timers: set[Timer] = set()
        self._closing = False
        self.delivered = 0
        self.failed = 0
        self.headers_dropped = 0

    @property
    def running(self) -> int:
        return len(self._calls)

    def wake(self, target: PushTarget) -> None:
        """Queue an endpoint if it can be called."""
        if not target.queued and target.can_deliver():
            target.queued = True
            self._queue.add(target)
            self._start_calls()

    async def close(self, seconds: float) -> None:
        """Start no more calls; cancel those that are still running after `seconds`."""
        self._closing = True
        for timer in self._timers:
            timer.stop()
        await self._calls.drain(seconds)
        await self._client.close()

    def _start_calls(self) -> None:
        """Start deliveries while workers are free and endpoints are queued."""
        while not self._closing and (target := self._queue.take(len(self._calls))) is not None:
            target.queued = False
            if not target.can_deliver():
                continue
            now = self._clock.now_us()
            delay_us = target.delay_us(now)
            if delay_us > 0:
                self._wake_later(target, delay_us / 1e6)
                continue
            ledger = target.ledger
            offset = None if ledger is None else ledger.take(now)
            if offset is None:
                continue
            target.start_call(now)
            task = self._calls.start(self._deliver(target, offset))
            task.add_done_callback(partial(self._call_ended, target))
            if target.can_deliver():
                target.queued = True
                self._queue.add(target)

    def _call_ended(self, target: PushTarget, task: asyncio.Task[None]) -> None:
        target.running -= 1
        self._queue.call_ended(target)
        if not task.cancelled() and (error := task.exception()) is not None:
            _events.error("delivery_failed", consumer=target.endpoint.id, exc_info=error)
        self.wake(target)
        self._start_calls()

    def _wake_later(self, target: PushTarget, seconds: float) -> None:
        target.queued = True

        def wake() -> None:
            self._timers.discard(timer)
            target.queued = False
            self.wake(target)

        timer = Timer(wake)
        timer.after(seconds)
        self._timers.add(timer)

    async def _deliver(self, target: PushTarget, offset: int) -> None:
        try:
            message = await target.jobs.message(offset)
            ledger = target.ledger
            if ledger is None:
                return
            if message is None:
                ledger.drop(offset)
                return
            now = self._clock.now_us()
            facts = ledger.facts(offset)
            number = 1 if facts is None else facts.retries + 1
            outcome = await self._call(target, message, now, number)
            result = outcome.status, outcome.latency_ms, outcome.error
            attempt = Attempt(offset, message.timestamp_us, number, now, *result)
            self._settle(target, attempt, outcome)
        except asyncio.CancelledError:
            if (ledger := target.ledger) is not None:
                ledger.put_back(offset)
            raise
        except DataDamaged as error:
            now = self._clock.now_us()
            _events.error("message_damaged", channel=target.channel.id, reason=str(error))
            self._settle(target, Attempt(offset, now, 1, now, 0, 0.0, str(error)), UNREADABLE)
        except PenstockError as error:
            _events.warning("message_not_read", topic=target.channel.id, reason=str(error))
            target.pause(self._clock.now_us() + int(READ_RETRY_SECONDS * 1e6))
            if (ledger := target.ledger) is not None:
                ledger.put_back(offset)

    async def _call(
        self, target: PushTarget, message: JobMessage, now_us: int, number: int
    ) -> Outcome:
        headers = self._headers(target, message, now_us, number)
        url = target.endpoint.callback_url
        try:
            return await self._client.call(url, headers, message.payload, now_us)
        except Exception:
            # Counts as a failed attempt: without a result the job would stay in flight.
            _events.exception("delivery_failed", consumer=target.endpoint.id)
            return BROKER_FAILED

    def _settle(self, target: PushTarget, attempt: Attempt, outcome: Outcome) -> None:
        now, result = self._clock.now_us(), outcome.result
        target.record(attempt, succeeded=result is CallResult.DELIVERED)
        ledger = target.ledger
        if ledger is None:
            return
        if result is CallResult.DELIVERED:
            self.delivered += 1
            change = ledger.succeeded(attempt.offset, now)
        else:
            self.failed += 1
            retry_us = now + int(self._retry_delay(attempt, outcome) * 1e6)
            final = outcome is UNREADABLE or result is CallResult.GONE
            change = ledger.failed(attempt.offset, now, retry_us, final)
            if result is CallResult.BUSY:
                target.pause(retry_us)
            if result is CallResult.GONE:
                self._disable(target, "it answered 410 Gone")
            elif target.fails_too_long(now):
                self._disable(target, "all deliveries failed for too long")
        if change is not None:
            target.jobs.store(change)

    def _retry_delay(self, attempt: Attempt, outcome: Outcome) -> float:
        delay = with_jitter(delay_seconds(self._settings.backoff_seconds, attempt.number))
        return max(delay, outcome.retry_after_seconds or 0.0)

    def _headers(self, target: PushTarget, message: JobMessage, now_us: int, number: int) -> Fields:
        channel, endpoint = target.channel, target.endpoint
        id_ = message.public_id(channel.key)
        seconds, keys = now_us // 1_000_000, target.signing_keys(now_us)
        token = self._settings.token_header.lower()
        headers = [header for header in message.headers if header[0].lower() != token]
        names = {name.lower(): name for name, _ in reversed(headers)}
        self.headers_dropped += message.dropped_headers + len(message.headers) - len(headers)
        ours = {
            CONTENT_TYPE: message.content_type,
            "User-Agent": self._settings.user_agent,
            PRIORITY: str(message.priority),
            "X-Broker-Channel-ID": channel.id,
            "X-Broker-Consumer-ID": endpoint.id,
            MESSAGE_ID: id_,
            "X-Broker-Attempt": str(number),
            self._settings.token_header: endpoint.token,
            "X-Request-ID": unique_name(),
            METADATA_HEADERS: ",".join(sorted(names.values())),
            "webhook-id": signed_id(id_),
            "webhook-timestamp": str(seconds),
            "webhook-signature": signatures(keys, signed_id(id_), seconds, message.payload),
        }
        # aiohttp replaces a header by a later one whose name differs in case only.
        return [*((names[name.lower()], value) for name, value in headers), *ours.items()]


def delay_seconds(delays: Sequence[float], attempt: int) -> float:
    """The delay before retry number `attempt`: from the list, then multiples of its last."""
    if attempt < len(delays):
        return delays[attempt - 1]
    return (attempt - len(delays) + 1) * delays[-1]


def with_jitter(seconds: float, chance: Callable[[], float] = _random.random) -> float:
    """A delay with up to JITTER of it added."""
    return seconds * (1 + JITTER * chance())
