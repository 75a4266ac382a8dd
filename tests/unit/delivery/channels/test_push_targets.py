"""When endpoints may be called, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.delivery.channels.entities import Channel, Endpoint
from penstock.delivery.channels.push_targets import Attempt, PushTarget, TargetQueue
from penstock.delivery.channels.settings import ChannelSettings
from penstock.ledger.job_column import Column
from penstock.ledger.job_states import JobRules
from penstock.ledger.jobs import JobLedger

NOW = 1_700_000_000_000_000
CHANNEL = Channel("c", "c", "t", "k", 1, 0, 0)
ENDPOINT = Endpoint("c", "k", "k", "t", "http://a/", "push", 1, "u", 0, ["whsec_AAAA"], 0, 0)


def target(**changes: Any) -> PushTarget:
    ledger = JobLedger(1, 0, JobRules(1, 1), Column("u4"))
    ledger.offer(0, 3)
    jobs: Any = SimpleNamespace(ledgers={1: ledger}, writable=True)
    settings = ChannelSettings(disable_after_seconds=100, concurrency=2)
    return PushTarget(CHANNEL, msgspec.structs.replace(ENDPOINT, **changes), jobs, settings)


def attempt(at_us: int, status: int = 500) -> Attempt:
    return Attempt(0, 0, 1, at_us, status, 1.0, "")


def test_only_an_enabled_push_endpoint_with_jobs_can_be_called() -> None:
    assert target().can_deliver()
    assert not target(type="pull").can_deliver()
    assert not target(disabled_reason="by hand").can_deliver()
    idle = target()
    idle.jobs.ledgers[1] = JobLedger(1, 0, JobRules(1, 1), Column("u4"))
    assert not idle.can_deliver()
    idle.jobs.ledgers.clear()
    assert not idle.can_deliver()
    refused: Any = target()
    refused.jobs.writable = False
    assert not refused.can_deliver()


def test_concurrent_calls_are_limited() -> None:
    default, limited = target(), target(concurrency=1)
    for called, maximum in ((default, 2), (limited, 1)):
        for _ in range(maximum):
            assert called.can_deliver()
            called.start_call(NOW)
        assert not called.can_deliver()


@pytest.mark.feature("C21")
def test_a_rate_limit_spaces_calls() -> None:
    limited = target(rate_per_second=4)
    assert limited.delay_us(NOW) <= 0
    limited.start_call(NOW)
    assert limited.delay_us(NOW) == 250_000
    limited.start_call(NOW + 250_000)
    assert limited.delay_us(NOW + 250_000) == 250_000
    assert limited.delay_us(NOW + 10_000_000) <= 0


@pytest.mark.feature("C05")
def test_a_pause_ends_when_the_endpoint_is_disabled_or_enabled() -> None:
    paused = target()
    paused.pause(NOW + 5_000_000)
    paused.pause(NOW + 1_000_000)
    assert paused.delay_us(NOW) == 5_000_000
    paused.update(CHANNEL, msgspec.structs.replace(ENDPOINT, disabled_reason="x"))
    assert paused.delay_us(NOW) <= 0


@pytest.mark.feature("C21")
def test_an_endpoint_whose_calls_all_fail_for_long_fails_too_long() -> None:
    failing = target()
    failing.record(attempt(NOW), succeeded=False)
    failing.record(attempt(NOW + 50_000_000), succeeded=False)
    assert not failing.fails_too_long(NOW + 99_000_000)
    assert failing.fails_too_long(NOW + 101_000_000)
    failing.record(attempt(NOW + 102_000_000, 200), succeeded=True)
    assert not failing.fails_too_long(NOW + 500_000_000)
    assert [each.status for each in failing.attempts] == [500, 500, 200]


@pytest.mark.feature("C18")
def test_previous_secrets_sign_too_during_the_overlap_time() -> None:
    rotated = target(secrets=["whsec_AAAA", "whsec_BBBB"], rotated_us=NOW)
    overlap = ChannelSettings().secret_overlap_seconds * 1_000_000
    assert len(rotated.signing_keys(NOW + overlap - 1)) == 2
    assert rotated.signing_keys(NOW + overlap) == rotated.signing_keys(NOW)[:1]


def queued_target(running: int = 0) -> PushTarget:
    waiting = PushTarget(CHANNEL, ENDPOINT, None, ChannelSettings())  # type: ignore[arg-type]
    waiting.running = running
    return waiting


@pytest.mark.feature("C05")
def test_endpoints_take_turns() -> None:
    queue, targets = TargetQueue(3), [queued_target() for _ in range(3)]
    for each in targets:
        queue.add(each)
    assert [queue.take(0) for _ in range(4)] == [*targets, None]


@pytest.mark.feature("C05")
def test_an_endpoint_without_calls_is_served_before_one_with_calls() -> None:
    queue, idle, busy = TargetQueue(8), queued_target(), queued_target(1)
    queue.add(busy)
    queue.add(idle)
    assert [queue.take(1), queue.take(2)] == [idle, busy]


@pytest.mark.feature("C05")
def test_the_last_quarter_of_the_workers_serves_endpoints_without_calls() -> None:
    queue, idle, busy = TargetQueue(8), queued_target(), queued_target(6)
    queue.add(busy)
    assert queue.take(6) is None
    queue.add(idle)
    assert queue.take(7) is idle
    assert queue.take(8) is None
    assert queue.take(5) is busy


@pytest.mark.feature("C05")
def test_a_queued_endpoint_whose_calls_end_is_served_first_again() -> None:
    queue, waiting = TargetQueue(8), queued_target(1)
    queue.add(waiting)
    queue.call_ended(waiting)
    assert queue.take(7) is None
    waiting.running = 0
    queue.call_ended(waiting)
    assert queue.take(7) is waiting
    assert queue.take(0) is None
    queue.call_ended(waiting)
    assert queue.take(0) is None
