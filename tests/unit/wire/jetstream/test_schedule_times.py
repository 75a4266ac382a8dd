"""The times of scheduled messages."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.jetstream.schedule_times import PREDEFINED, At, Every, Next, parse_times

SECOND = 1_000_000


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


NOW = us("2026-11-16T10:20:30.400000Z")


def test_a_time_is_due_once() -> None:
    for text in ("2009-11-10T23:00:00Z", "2009-11-11T01:00:00+02:00", "2009-11-10T23:00:00.000Z"):
        times = parse_times(f"@at {text}", None)
        assert times == At(us("2009-11-10T23:00:00Z"))
        assert times.first(NOW, NOW + 1) == us("2009-11-10T23:00:00Z")
        assert times.next(NOW, NOW) is None


def test_an_interval_counts_from_whole_seconds() -> None:
    times = parse_times("@every 1m30s", None)
    assert times == Every(90 * SECOND)
    first = times.first(NOW, 0)
    assert first == us("2026-11-16T10:22:00Z")
    assert times.next(first, first + 7) == Next(us("2026-11-16T10:23:30Z"), b"2026-11-16T10:23:30Z")


def test_missed_times_are_skipped() -> None:
    late = us("2026-11-16T12:00:00.600000Z")
    every = parse_times("@every 1.5s", None)
    assert every is not None
    assert every.next(NOW, late) == Next(us("2026-11-16T12:00:02.5Z"), b"2026-11-16T12:00:02.5Z")
    cron = parse_times("*/10 * * * * *", None)
    assert cron is not None
    assert cron.next(NOW, late) == Next(us("2026-11-16T12:00:10Z"), b"2026-11-16T12:00:10Z")


@given(
    st.integers(SECOND, 10_000 * SECOND),
    st.integers(0, 10**15),
    st.integers(0, 10**12),
)
def test_an_interval_continues_in_its_original_phase(interval: int, stored: int, down: int) -> None:
    """Firing every due time up to a moment leads to the same next time as starting after it."""
    every = Every(interval)
    first = every.first(stored, 0)
    done = first + down % (50 * interval)
    due = first
    while due <= done:
        next_ = every.next(due, due)
        assert next_ is not None
        due = next_.us
    assert every.first(stored, done) == due


def test_cron_times_are_in_its_time_zone() -> None:
    cron = parse_times("0 0 5 * * *", ZoneInfo("Asia/Kolkata"))
    assert cron is not None
    assert cron.first(NOW, 0) == us("2026-11-16T23:30:00Z")
    assert cron.next(NOW, NOW) == Next(us("2026-11-16T23:30:00Z"), b"2026-11-17T05:00:00+05:30")
    london = parse_times("@daily", ZoneInfo("Europe/London"))
    assert london is not None
    assert london.next(NOW, NOW) == Next(us("2026-11-17T00:00:00Z"), b"2026-11-17T00:00:00Z")
    assert cron.first(NOW, us("2026-11-18T00:00:00Z")) == us("2026-11-18T23:30:00Z")


def test_the_predefined_ones() -> None:
    expected = {
        "@yearly": "2027-01-01T00:00:00Z",
        "@annually": "2027-01-01T00:00:00Z",
        "@monthly": "2026-12-01T00:00:00Z",
        "@weekly": "2026-11-22T00:00:00Z",
        "@daily": "2026-11-17T00:00:00Z",
        "@midnight": "2026-11-17T00:00:00Z",
        "@hourly": "2026-11-16T11:00:00Z",
    }
    assert set(expected) == set(PREDEFINED)
    for name, text in expected.items():
        times = parse_times(name, None)
        assert times is not None
        assert times.first(NOW, 0) == us(text), name


def test_nothing_is_no_schedule() -> None:
    assert parse_times("", None) is None


@pytest.mark.parametrize(
    "text",
    ["@at", "@at ", "@at soon", "@at 2009-13-10T23:00:00Z", "@every", "@every 999ms", "@every -1s",
     "@every 1", "@Hourly", "@reboot", "hourly"],
)  # fmt: skip
def test_invalid_documents_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fields|parsing time|invalid duration|at least a second"):
        parse_times(text, None)


@pytest.mark.parametrize("text", ["@at 2009-11-10T23:00:00Z", "@every 5s"])
def test_only_cron_has_a_time_zone(text: str) -> None:
    with pytest.raises(ValueError, match="has no time zone of its own"):
        parse_times(text, UTC)
