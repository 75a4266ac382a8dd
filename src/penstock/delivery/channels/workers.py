"""Pushes jobs to callbacks: so many calls at a time in all, and so many to each consumer.

Consumers with jobs stand in line (turns.py); a consumer that is paused, slowed
down or busy leaves the line and comes back when its time has come. There is no task while there is
nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.headers import CONTENT_TYPE, MESSAGE_ID
from penstock.delivery.channels.messages import (
    METADATA_HEADERS,
    PRIORITY,
    JobMessage,
)
from penstock.delivery.channels.schedule import delay_seconds, with_jitter
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.signing import signatures, signed_id
from penstock.delivery.channels.target import Attempt, Target
from penstock.delivery.channels.turns import Turns
from penstock.delivery.channels.webhook import Caller, Fields, Outcome, Verdict
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.ledger.job_ids import message_id
from penstock.model.errors import DataDamaged, PenstockError

READ_RETRY_SECONDS: Final = 1.0
LOST: Final = Outcome(0, "the message cannot be read", 0.0)
"""Of a job whose message is damaged: no attempt will go better."""
BROKEN: Final = Outcome(0, "the broker failed on this delivery; its log says why", 0.0)
_events = structlog.get_logger(__name__)


class Workers:
    """All deliveries of a broker; `disable` is told whom to push nothing more, and why."""

    def __init__(
        self,
        settings: ChannelSettings,
        clock: Clock,
        disable: Callable[[Target, str], None],
    ) -> None:
        self._settings, self._clock, self._disable = settings, clock, disable
        addresses = Addresses(settings.allowed_networks, settings.loopback)
        self._caller = Caller(addresses, settings.timeout_seconds)
        self._turns = Turns(settings.workers)
        self._running: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._closing = False
        self.delivered = 0
        self.failed = 0
        self.headers_dropped = 0

    @property
    def running(self) -> int:
        return len(self._running)

    def wake(self, target: Target) -> None:
        """There may be something to deliver to this consumer."""
        if not target.waiting and target.willing():
            target.waiting = True
            self._turns.add(target)
            self._pump()

    async def close(self, seconds: float) -> None:
        """Begin nothing more; calls in hand may end within these seconds."""
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._caller.close()

    def _pump(self) -> None:
        """Begin deliveries while there are workers and consumers whose turn it is."""
        while not self._closing and (target := self._turns.take(len(self._running))) is not None:
            target.waiting = False
            if not target.willing():
                continue
            now = self._clock.now_us()
            wait_us = target.wait_us(now)
            if wait_us > 0:
                self._later(target, wait_us / 1e6)
                continue
            ledger = target.ledger
            offset = None if ledger is None else ledger.take(now)
            if offset is None:
                continue
            target.begin(now)
            task = asyncio.get_running_loop().create_task(self._deliver(target, offset))
            self._running.add(task)
            task.add_done_callback(partial(self._over, target))
            if target.willing():
                target.waiting = True
                self._turns.add(target)

    def _over(self, target: Target, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        target.running -= 1
        self._turns.ended(target)
        if not task.cancelled() and (error := task.exception()) is not None:
            _events.error("delivery_failed", consumer=target.consumer.id, exc_info=error)
        self.wake(target)
        self._pump()

    def _later(self, target: Target, seconds: float) -> None:
        target.waiting = True

        def come_back() -> None:
            self._timers.discard(timer)
            target.waiting = False
            self.wake(target)

        timer = asyncio.get_running_loop().call_later(seconds, come_back)
        self._timers.add(timer)

    async def _deliver(self, target: Target, offset: int) -> None:
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
            headers = self._headers(target, message, now, number)
            outcome = await self._call(target, headers, message.payload, now)
            self._judge(
                target,
                Attempt(offset, message.timestamp_us, number, now, *_facts(outcome)),
                outcome,
            )
        except asyncio.CancelledError:
            if (ledger := target.ledger) is not None:
                ledger.put_back(offset)
            raise
        except DataDamaged as error:
            now = self._clock.now_us()
            _events.error("message_damaged", channel=target.channel.id, reason=str(error))
            self._judge(target, Attempt(offset, now, 1, now, 0, 0.0, str(error)), LOST)
        except PenstockError as error:
            _events.warning("message_not_read", topic=target.channel.id, reason=str(error))
            target.pause(self._clock.now_us() + int(READ_RETRY_SECONDS * 1e6))
            if (ledger := target.ledger) is not None:
                ledger.put_back(offset)

    async def _call(self, target: Target, headers: Fields, body: bytes, now: int) -> Outcome:
        try:
            return await self._caller.call(target.consumer.callback_url, headers, body, now)
        except Exception:
            # It counts as a failed attempt: a job that is never settled is never delivered.
            _events.exception("delivery_failed", consumer=target.consumer.id)
            return BROKEN

    def _judge(self, target: Target, attempt: Attempt, outcome: Outcome) -> None:
        now, verdict = self._clock.now_us(), outcome.verdict
        target.note(attempt, verdict is Verdict.DELIVERED)
        ledger = target.ledger
        if ledger is None:
            return
        if verdict is Verdict.DELIVERED:
            self.delivered += 1
            change = ledger.succeeded(attempt.offset, now)
        else:
            self.failed += 1
            until = now + int(self._delay(attempt, outcome) * 1e6)
            final = outcome is LOST or verdict is Verdict.GONE
            change = ledger.failed(attempt.offset, now, until, final)
            if verdict is Verdict.BUSY:
                target.pause(until)
            if verdict is Verdict.GONE:
                self._disable(target, "it answered 410 Gone")
            elif target.failed_long(now):
                self._disable(target, "all deliveries failed for too long")
        if change is not None:
            target.jobs.keep(change)

    def _delay(self, attempt: Attempt, outcome: Outcome) -> float:
        usual = with_jitter(delay_seconds(self._settings.backoff_seconds, attempt.number))
        return max(usual, outcome.retry_after_seconds or 0.0)

    def _headers(self, target: Target, message: JobMessage, now_us: int, number: int) -> Fields:
        channel, consumer = target.channel, target.consumer
        id_ = message.id or message_id(channel.key.encode(), message.offset, message.timestamp_us)
        seconds, keys = now_us // 1_000_000, target.keys(now_us)
        token = self._settings.token_header.lower()
        headers = [header for header in message.headers if header[0].lower() != token]
        names = {name.lower(): name for name, _ in reversed(headers)}
        self.headers_dropped += message.dropped + len(message.headers) - len(headers)
        ours = {
            CONTENT_TYPE: message.content_type,
            "User-Agent": self._settings.user_agent,
            PRIORITY: str(message.priority),
            "X-Broker-Channel-ID": channel.id,
            "X-Broker-Consumer-ID": consumer.id,
            MESSAGE_ID: id_,
            "X-Broker-Attempt": str(number),
            self._settings.token_header: consumer.token,
            "X-Request-ID": unique_name(),
            METADATA_HEADERS: ",".join(sorted(names.values())),
            "webhook-id": signed_id(id_),
            "webhook-timestamp": str(seconds),
            "webhook-signature": signatures(keys, signed_id(id_), seconds, message.payload),
        }
        # The client library replaces a header by one whose name is written in another case.
        return [*((names[name.lower()], value) for name, value in headers), *ours.items()]


def _facts(outcome: Outcome) -> tuple[int, float, str]:
    return outcome.status, outcome.latency_ms, outcome.error
