"""Deliveries: their order, their limits, and what their outcomes change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.delivery.channels.messages import JobMessage
from penstock.delivery.channels.push import PushWorkers, delay_seconds, with_jitter
from penstock.delivery.channels.push_targets import PushTarget
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.webhook import Fields, Outcome
from penstock.ledger.job_column import Column
from penstock.ledger.job_records import Change
from penstock.ledger.job_states import JobRules, JobState
from penstock.ledger.jobs import JobLedger
from penstock.model.errors import DataDamaged, PenstockError, ReadFailed
from penstock.model.units import Offset, PartitionId
from tests.eventually import eventually
from tests.unit.delivery.channels.test_push_targets import CHANNEL, ENDPOINT, NOW
from tests.unit.log.disks import Hand

SETTINGS = ChannelSettings(workers=3, concurrency=2, backoff_seconds=(5.0,), retries_max=1)


class Jobs:
    """A ledger of three jobs, and messages that exist or not."""

    def __init__(
        self, failure: PenstockError | None = None, missing: int = -1, header: str = "X-A"
    ) -> None:
        ledger = JobLedger(1, 0, JobRules(1, 1), Column("u4"))
        ledger.offer(0, 3)
        self.ledgers, self.writable = {1: ledger}, True
        self.stored: list[Change] = []
        self._failure, self._missing, self._header = failure, missing, header

    async def message(self, offset: int) -> JobMessage | None:
        if self._failure is not None:
            raise self._failure
        if offset == self._missing:
            return None
        headers = [(self._header, "1")]
        return JobMessage(offset, NOW, "", "p", 0, "text/plain", headers, b"%d" % offset, 2)

    def store(self, change: Change) -> None:
        self.stored.append(change)


class Lab:
    """Workers whose calls have a given outcome."""

    def __init__(self) -> None:
        self.disabled: list[str] = []
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.outcome = Outcome(200, "", 1.0)
        self.hold = asyncio.Event()
        self.hold.set()
        client: Any = SimpleNamespace(call=self._call, close=self._close)
        self.workers = PushWorkers(
            SETTINGS, Hand(NOW), lambda _, reason: self.disabled.append(reason), client
        )

    async def _call(self, url: str, headers: Fields, body: bytes, now: int) -> Outcome:
        self.calls.append((dict(headers), body))
        await self.hold.wait()
        return self.outcome

    async def _close(self) -> None:
        """Nothing is open."""

    def target(self, jobs: Jobs) -> PushTarget:
        return PushTarget(CHANNEL, ENDPOINT, jobs, SETTINGS)  # type: ignore[arg-type]

    async def idle(self) -> None:
        async def over() -> bool:
            return not self.workers.running

        await eventually(over)


@asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    setup = Lab()
    yield setup
    setup.hold.set()
    await setup.workers.close(5)


@pytest.mark.feature("C05")
async def test_jobs_are_delivered_in_order_and_within_the_limits() -> None:
    async with lab() as setup:
        one, two = Jobs(), Jobs()
        setup.hold.clear()
        for jobs in (one, two):
            setup.workers.wake(setup.target(jobs))
        await asyncio.sleep(0.01)
        assert setup.workers.running == 3
        assert [body for _, body in setup.calls] == [b"0", b"1", b"0"]
        setup.hold.set()
        await setup.idle()
        assert len(setup.calls) == 6
        assert {change.state for change in one.stored + two.stored} == {JobState.DELIVERED}
        assert setup.workers.delivered == 6


@pytest.mark.feature("C05")
@pytest.mark.parametrize(
    ("outcome", "states", "disabled"),
    [
        (Outcome(500, "", 1.0), [JobState.QUEUED] * 3, []),
        (Outcome(410, "", 1.0), [JobState.DEAD] * 3, ["it answered 410 Gone"] * 3),
        (Outcome(0, "reset", 1.0), [JobState.QUEUED] * 3, []),
        (Outcome(429, "", 1.0, 60.0), [JobState.QUEUED] * 2, []),
    ],
)
async def test_a_failed_call_is_retried_or_ends_its_job_as_its_outcome_demands(
    outcome: Outcome, states: list[JobState], disabled: list[str]
) -> None:
    async with lab() as setup:
        setup.outcome = outcome
        jobs = Jobs()
        setup.workers.wake(setup.target(jobs))
        await setup.idle()
        assert [change.state for change in jobs.stored] == states
        assert setup.disabled == disabled
        waits = [change.until_us - NOW for change in jobs.stored if change.until_us]
        least = 60_000_000 if outcome.retry_after_seconds else 5_000_000
        assert all(wait >= least for wait in waits)


async def test_an_exception_in_a_call_is_a_failed_attempt_and_the_job_is_retried() -> None:
    async with lab() as setup:

        async def broken(*call: object) -> Outcome:
            raise KeyError("hunter2")

        setup.workers._client = SimpleNamespace(call=broken, close=setup._close)  # type: ignore[assignment]
        jobs = Jobs()
        target = setup.target(jobs)
        with capture_logs() as logs:
            setup.workers.wake(target)
            await setup.idle()
        assert [change.state for change in jobs.stored] == [JobState.QUEUED] * 3
        assert {attempt.error for attempt in target.attempts} == {
            "the broker failed on this delivery; its log says why"
        }
        assert [log["event"] for log in logs] == ["delivery_failed"] * 3


async def test_the_job_of_a_deleted_message_is_dropped() -> None:
    async with lab() as setup:
        jobs = Jobs(missing=1)
        setup.workers.wake(setup.target(jobs))
        await setup.idle()
        assert [body for _, body in setup.calls] == [b"0", b"2"]
        assert jobs.ledgers[1].facts(1) is None


async def test_the_job_of_a_damaged_message_is_dead_and_that_of_an_unreadable_one_waits() -> None:
    place = ("c", PartitionId(0), Offset(0))
    async with lab() as setup:
        damaged = Jobs(DataDamaged(*place, Offset(3), "torn"))
        setup.workers.wake(setup.target(damaged))
        await setup.idle()
        assert {change.state for change in damaged.stored} == {JobState.DEAD}
        slow = Jobs(ReadFailed(*place, "busy"))
        target = setup.target(slow)
        setup.workers.wake(target)
        await setup.idle()
        assert slow.stored == []
        assert slow.ledgers[1].counts()[JobState.QUEUED] == 3
        assert target.delay_us(NOW) > 0
        assert setup.calls == []


@pytest.mark.feature("C15")
async def test_a_call_that_closing_cancels_leaves_its_job_queued() -> None:
    setup, jobs = Lab(), Jobs()
    setup.hold.clear()
    setup.workers.wake(setup.target(jobs))
    await asyncio.sleep(0.01)
    await setup.workers.close(0.01)
    assert jobs.stored == []
    assert jobs.ledgers[1].counts()[JobState.QUEUED] == 3


@pytest.mark.feature("C18")
async def test_headers_of_the_broker_override_those_of_the_message() -> None:
    async with lab() as setup:
        setup.workers.wake(setup.target(Jobs()))
        await setup.idle()
        headers, _ = setup.calls[0]
        assert headers["X-A"] == "1"
        assert headers["X-Broker-Metadata-Headers"] == "X-A"
        assert headers["webhook-signature"].startswith("v1,")
        assert headers["webhook-id"] == headers["X-Broker-Message-ID"]
        assert setup.workers.headers_dropped == 2 * 3


@pytest.mark.feature("C17")
async def test_no_header_of_a_message_replaces_the_token_in_any_case() -> None:
    async with lab() as setup:
        setup.workers.wake(setup.target(Jobs(header=SETTINGS.token_header.upper())))
        await setup.idle()
        headers, _ = setup.calls[0]
        tokens = [value for name, value in headers.items() if name.lower().endswith("-token")]
        assert tokens == [ENDPOINT.token]
        assert headers["X-Broker-Metadata-Headers"] == ""
        assert setup.workers.headers_dropped == 3 * 3


@pytest.mark.feature("C05")
@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ((5, 30, 60), [5, 30, 60, 120, 180]),
        ((1,), [1, 2, 3, 4, 5]),
        ((5, 1), [5, 1, 2, 3, 4]),
    ],
)
def test_delays_come_from_the_list_and_then_grow(
    delays: tuple[int, ...], expected: list[int]
) -> None:
    assert [delay_seconds(delays, attempt) for attempt in range(1, 6)] == expected


@pytest.mark.feature("C05")
def test_jitter_adds_up_to_a_tenth() -> None:
    assert with_jitter(10, lambda: 0.0) == 10
    assert with_jitter(10, lambda: 1.0) == 11
    assert 10 <= with_jitter(10) <= 11


def test_a_job_in_flight_times_out_after_the_call_timeout_the_slack_and_the_delay() -> None:
    settings = ChannelSettings(timeout_seconds=30, rational_delay_seconds=2, retries_max=5)
    assert settings.rules == (5, 32_250_000)
