"""A consumer that is pushed to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.target import Attempt, Target
from penstock.ledger.job_column import Column
from penstock.ledger.job_states import JobRules
from penstock.ledger.jobs import JobLedger
from penstock.metadata.channel_records import Channel, Consumer

NOW = 1_700_000_000_000_000
CHANNEL = Channel("c", "c", "t", "k", 1, 0, 0)
CONSUMER = Consumer("c", "k", "k", "t", "http://a/", "push", 1, "u", 0, ["whsec_AAAA"], 0, 0)


def target(**changes: Any) -> Target:
    ledger = JobLedger(1, 0, JobRules(1, 1), Column("u4"))
    ledger.offer(0, 3)
    jobs: Any = SimpleNamespace(ledgers={1: ledger}, writable=True)
    settings = ChannelSettings(disable_after_seconds=100, concurrency=2)
    return Target(CHANNEL, msgspec.structs.replace(CONSUMER, **changes), jobs, settings)


def attempt(at_us: int, status: int = 500) -> Attempt:
    return Attempt(0, 0, 1, at_us, status, 1.0, "")


def test_only_a_consumer_that_may_be_pushed_to_is_willing() -> None:
    assert target().willing()
    assert not target(type="pull").willing()
    assert not target(disabled="by hand").willing()
    idle = target()
    idle.jobs.ledgers[1] = JobLedger(1, 0, JobRules(1, 1), Column("u4"))
    assert not idle.willing()
    idle.jobs.ledgers.clear()
    assert not idle.willing()
    refused: Any = target()
    refused.jobs.writable = False
    assert not refused.willing()


def test_no_more_than_the_limit_is_under_way() -> None:
    usual, own = target(), target(concurrency=1)
    for one, most in ((usual, 2), (own, 1)):
        for _ in range(most):
            assert one.willing()
            one.begin(NOW)
        assert not one.willing()


@pytest.mark.feature("C21")
def test_a_rate_spaces_deliveries() -> None:
    limited = target(rate_per_second=4)
    assert limited.wait_us(NOW) <= 0
    limited.begin(NOW)
    assert limited.wait_us(NOW) == 250_000
    limited.begin(NOW + 250_000)
    assert limited.wait_us(NOW + 250_000) == 250_000
    assert limited.wait_us(NOW + 10_000_000) <= 0


@pytest.mark.feature("C05")
def test_a_pause_is_kept_until_the_consumer_is_enabled_anew() -> None:
    paused = target()
    paused.pause(NOW + 5_000_000)
    paused.pause(NOW + 1_000_000)
    assert paused.wait_us(NOW) == 5_000_000
    paused.renew(CHANNEL, msgspec.structs.replace(CONSUMER, disabled="x"))
    assert paused.wait_us(NOW) <= 0


@pytest.mark.feature("C21")
def test_a_consumer_that_takes_nothing_for_long_has_failed_long() -> None:
    failing = target()
    failing.note(attempt(NOW), good=False)
    failing.note(attempt(NOW + 50_000_000), good=False)
    assert not failing.failed_long(NOW + 99_000_000)
    assert failing.failed_long(NOW + 101_000_000)
    failing.note(attempt(NOW + 102_000_000, 200), good=True)
    assert not failing.failed_long(NOW + 500_000_000)
    assert [one.status for one in failing.attempts] == [500, 500, 200]


@pytest.mark.feature("C18")
def test_old_secrets_sign_along_for_their_time() -> None:
    rotated = target(secrets=["whsec_AAAA", "whsec_BBBB"], rotated_us=NOW)
    overlap = ChannelSettings().secret_overlap_seconds * 1_000_000
    assert len(rotated.keys(NOW + overlap - 1)) == 2
    assert rotated.keys(NOW + overlap) == rotated.keys(NOW)[:1]
