"""Cron schedules and their times."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from penstock.wire.jetstream.cron import Cron

NEW_YORK = ZoneInfo("America/New_York")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
MONDAY = datetime(2026, 11, 16, 10, 20, 30, tzinfo=UTC)


def after(text: str, at: datetime = MONDAY) -> datetime:
    return Cron(text, at.tzinfo or UTC).after(int(at.timestamp()))


def utc(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0
) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * * *", utc(2026, 11, 16, 10, 20, 31)),
        ("30 * * * * *", utc(2026, 11, 16, 10, 21, 30)),
        ("*/15 * * * * *", utc(2026, 11, 16, 10, 20, 45)),
        ("10/25 * * * * *", utc(2026, 11, 16, 10, 20, 35)),
        ("0 */7 8-11 * * *", utc(2026, 11, 16, 10, 21)),
        ("0 0 8-9,22 * * *", utc(2026, 11, 16, 22)),
        ("0 0 0 1 1 *", utc(2027, 1, 1)),
        ("0 0 0 1 * ?", utc(2026, 12, 1)),
        ("0 0 0 * * 0", utc(2026, 11, 22)),
        ("0 0 0 ? jan-MAR Wed-fri", utc(2027, 1, 1)),
        ("0 0 0 29 2 *", utc(2028, 2, 29)),
        ("59 59 23 31 12 *", utc(2026, 12, 31, 23, 59, 59)),
        ("0,0,,5 +3 * * * *", utc(2026, 11, 16, 11, 3)),
        ("0 0 0 */40 * *", utc(2026, 12, 1)),
    ],
)
def test_the_next_time_is_the_first_that_fits(text: str, expected: datetime) -> None:
    assert after(text) == expected


def test_with_both_days_restricted_either_is_enough() -> None:
    assert after("0 30 4 1,18 * 5") == utc(2026, 11, 18, 4, 30)
    assert after("0 30 4 1,18 * 5", utc(2026, 11, 18, 5)) == utc(2026, 11, 20, 4, 30)
    assert after("0 30 4 1,18 * *") == utc(2026, 11, 18, 4, 30)
    assert after("0 30 4 * * 5") == utc(2026, 11, 20, 4, 30)
    # With a step a star restricts, too.
    assert after("0 0 0 */31 * 2") == utc(2026, 11, 17)


def test_times_go_on_without_a_gap_or_a_repetition() -> None:
    at, seen = MONDAY, []
    for _ in range(5):
        at = after("0 0 */6 * * *", at)
        seen.append((at.day, at.hour))
    assert seen == [(16, 12), (16, 18), (17, 0), (17, 6), (17, 12)]


def test_a_skipped_hour_does_not_fire_and_a_repeated_hour_fires_twice() -> None:
    spring = datetime(2026, 3, 7, 12, tzinfo=NEW_YORK)
    assert after("0 30 2 * * *", spring).isoformat() == "2026-03-09T02:30:00-04:00"
    autumn = after("0 30 1 * * *", datetime(2026, 10, 31, 12, tzinfo=NEW_YORK))
    assert autumn.isoformat() == "2026-11-01T01:30:00-04:00"
    again = Cron("0 30 1 * * *", NEW_YORK).after(int(autumn.timestamp()))
    assert again.isoformat() == "2026-11-01T01:30:00-05:00"


def test_clocks_that_move_by_half_an_hour() -> None:
    day = datetime(2026, 4, 4, 12, tzinfo=LORD_HOWE)
    assert after("0 45 1 5 4 *", day).isoformat() == "2026-04-05T01:45:00+11:00"


def test_a_day_may_begin_without_its_midnight() -> None:
    beirut = ZoneInfo("Asia/Beirut")
    day = datetime(2026, 3, 28, 12, tzinfo=beirut)
    assert after("0 0 * 29 3 *", day).isoformat() == "2026-03-29T01:00:00+03:00"


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * * *", "* * * * * * *", "60 * * * * *", "* 60 * * * *", "* * 24 * * *"),
        *("* * * 0 * *", "* * * 32 * *", "* * * * 0 *", "* * * * 13 *", "* * * * * 7"),
        *("5-1 * * * * *", "1-2-3 * * * * *", "1/2/3 * * * * *", "*/0 * * * * *"),
        *(", * * * * *", "x * * * * *", "-1 * * * * *", "1.5 * * * * *", "1- * * * * *"),
        *("* * * * monday *", "* * * * * jan", "0 0 0 31 2 *", "0 0 0 31 4,6 *", "1_0 * * * * *"),
    ],
)
def test_invalid_schedules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fields|within|hyphens|slashes|number|no value"):
        Cron(text, UTC)
