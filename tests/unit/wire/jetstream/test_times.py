import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.times import time_text_us
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.times import (
    TTL_NEVER,
    duration_text,
    parse_duration,
    parse_ttl,
    stamps,
)

NOW_US = 1_794_772_760_933_089


@given(st.lists(st.integers(0, 4_000_000_000_000_000)), st.booleans())
def test_a_run_of_times_is_written_as_each_would_be(us: list[int], near: bool) -> None:
    run = [NOW_US + value % 3_000_000 for value in us] if near else us
    assert stamps(run) == [time_text_us(value).encode() for value in run]


def test_a_run_of_many_equal_times_is_written_as_each_would_be() -> None:
    run = [NOW_US, NOW_US, NOW_US, NOW_US + 5, NOW_US, NOW_US + 5, NOW_US + 2_000_000]
    assert stamps(run * 3) == [time_text_us(value).encode() for value in run * 3]


def test_a_run_within_one_second_is_written_as_each_would_be() -> None:
    second = NOW_US // 1_000_000 * 1_000_000
    run = [second, second + 1, second + 100_000, second + 120, second + 999_999, second]
    assert stamps(run) == [time_text_us(value).encode() for value in run]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("0s", 0),
        ("1s", 10**9),
        ("300ms", 300 * 10**6),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1h2m3s", 3723 * 10**9),
        ("1us", 1000),
        ("1µs", 1000),
        ("-2m", -120 * 10**9),
        ("+5ns", 5),
    ],
)
def test_a_duration_is_read_with_its_units(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "1d", "1s1", "--1s", "9999999999h", "-"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 100_000, "1s" * 50_000, "1" + "." * 100_000])
def test_a_text_too_long_for_a_duration_is_refused_without_being_read(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration") as refused:
        parse_duration(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5µs"),
        (300 * 10**6, "300ms"),
        (1_000_000_001, "1.000000001s"),
        (10**10, "10s"),
        (90 * 10**9, "1m30s"),
        (3600 * 10**9, "1h0m0s"),
        (-(10**9), "-1s"),
    ],
)
def test_a_duration_is_written_in_its_largest_units(ns: int, text: str) -> None:
    assert duration_text(ns) == text


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_a_duration_reads_back_as_it_was(ns: int) -> None:
    assert parse_duration(duration_text(ns)) == ns


@pytest.mark.parametrize(
    ("value", "ns"),
    [(b"10", 10 * 10**9), (b"1s", 10**9), (b"1h", 3600 * 10**9), (b"never", TTL_NEVER)],
)
def test_a_time_to_live_is_seconds_or_a_duration_or_never(value: bytes, ns: int) -> None:
    assert parse_ttl(value) == ns


@pytest.mark.parametrize("value", [b"0", b"bogus", b"500ms", b"-1", b"", b"\xff", b"-5s"])
def test_a_time_to_live_under_a_second_or_of_no_sense_is_refused(value: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_ttl(value)
    assert refused.value.err_code == 10165
