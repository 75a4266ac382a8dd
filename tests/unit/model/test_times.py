from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.times import (
    long_time_text_us,
    parse_time,
    parse_time_us,
    time_text,
    time_text_us,
)

US = st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_794_772_760_933_089_185, "2026-11-15T19:59:20.933089185Z"),
        (1_794_772_760_000_000_500, "2026-11-15T19:59:20.0000005Z"),
        (1_794_772_760_900_000_000, "2026-11-15T19:59:20.9Z"),
        (-62_135_596_800 * 10**9, "0001-01-01T00:00:00Z"),
    ],
)
def test_a_time_is_written_without_trailing_zeros(ns: int, text: str) -> None:
    assert time_text(ns) == text
    assert parse_time(text) == ns


@given(st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9))
def test_a_time_reads_back_as_it_was(ns: int) -> None:
    assert parse_time(time_text(ns)) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T01:00:00.5+01:00", 500_000_000),
        ("1969-12-31T23:30:00-00:30", 0),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * 10**9),
    ],
)
def test_a_time_may_name_its_zone_and_too_many_digits(text: str, ns: int) -> None:
    assert parse_time(text) == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bad",
        "2020-01-01",
        "2020-01-01 00:00:00Z",
        "2020-01-01T24:00:00Z",
        "2020-02-30T00:00:00Z",
        "2020-01-01T00:00:00",
        "2020-01-01T00:00:00Z ",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-00:01",
        "0001-01-01T00:00:00+00:01",
    ],
)
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="parsing time"):
        parse_time(text)


@given(US)
def test_a_time_in_microseconds_reads_back_as_it_was(us: int) -> None:
    assert parse_time_us(time_text_us(us)) == us
    assert parse_time_us(long_time_text_us(us)) == us


def test_a_time_in_microseconds_is_written_with_or_without_trailing_zeros() -> None:
    assert time_text_us(1_700_000_000_100_000) == "2023-11-14T22:13:20.1Z"
    assert long_time_text_us(1_700_000_000_100_000) == "2023-11-14T22:13:20.100000Z"
    assert long_time_text_us(0) == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00.5+01:00", 500_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1970-01-01t00:00:01z", 1_000_000),
        ("1970-01-01 00:00:01Z", 1_000_000),
        ("1970-01-01T00:01Z", 60_000_000),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140 * 10**6),
    ],
)
def test_microseconds_are_read_from_any_form_of_iso_8601(text: str, us: int) -> None:
    assert parse_time_us(text) == us


@pytest.mark.parametrize("text", ["", "1970-01-01", "1970-01-01T00:00:00.0", "x" * 30, "now"])
def test_a_text_that_is_no_time_or_has_no_zone_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a date and time|no time zone"):
        parse_time_us(text)


def test_times_are_those_of_the_standard_library() -> None:
    moment = datetime(2026, 11, 15, 19, 43, 26, 420_099, UTC)
    assert parse_time_us(moment.isoformat()) == round(moment.timestamp() * 1_000_000)
