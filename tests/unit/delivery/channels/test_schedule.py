"""When a failed delivery is tried again."""

import pytest
from hypothesis import given
from hypothesis.strategies import builds, integers, sampled_from, text

from penstock.delivery.channels.schedule import (
    RETRY_AFTER_SECONDS_MAX,
    delay_seconds,
    retry_after,
    with_jitter,
)

pytestmark = pytest.mark.feature("C05")
NOW_US = 1_700_000_000_000_000


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


def test_jitter_adds_up_to_a_tenth() -> None:
    assert with_jitter(10, lambda: 0.0) == 10
    assert with_jitter(10, lambda: 1.0) == 11
    assert 10 <= with_jitter(10) <= 11


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 5 ", 5.0),
        ("0", 0.0),
        ("99999999999999", 86_400.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:14:20", 60.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("9" * 8000, 86_400.0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2001 00:00:00 +99999999999", None),
        ("Mon, 99999999999999999999 Jan 2001 00:00:00 GMT", None),
        ("\udcff", None),
    ],
)
def test_what_a_receiver_asks_for(value: str, seconds: float | None) -> None:
    assert retry_after(value, NOW_US) == seconds


@given(
    text()
    | builds(
        "{} {} {} {}:{}:{} {}".format,
        *(integers(), sampled_from(["Jan", "Feb", "xyz", ""]), integers()),
        *(integers(), integers(), integers(), integers() | text()),
    )
)
def test_any_text_is_a_bounded_delay_or_none(value: str) -> None:
    seconds = retry_after(value, NOW_US)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_SECONDS_MAX
