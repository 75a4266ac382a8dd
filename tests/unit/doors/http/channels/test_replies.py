"""Replies of the channel API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.http.channels.replies import (
    empty,
    from_moment,
    http_date,
    json,
    moment,
    problem,
    text,
)


def test_json_is_safe_inside_html() -> None:
    reply = json({"a": "<&>\u2028\u2029"})
    assert reply.body == b'{"a":"\\u003c\\u0026\\u003e\\u2028\\u2029"}\n'


def test_texts_and_nothing() -> None:
    assert text(404, "no", (b"a", b"b"))[:3] == (404, b"no", ((b"a", b"b"),))
    assert empty(202)[:2] == (202, b"")
    assert problem(400, "bad").content_type == b"application/problem+json"


@given(st.integers(0, 4_000_000_000_000_000))
def test_a_time_comes_back(us: int) -> None:
    assert from_moment(moment(us)) == us


@pytest.mark.parametrize(
    ("told", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00.5+01:00", 500_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1970-01-01t00:00:01z", 1_000_000),
    ],
)
def test_times_of_others(told: str, us: int) -> None:
    assert from_moment(told) == us


@pytest.mark.parametrize("told", ["", "1970-01-01", "1970-01-01T00:00:00.0", "x" * 30, "now"])
def test_what_is_no_time(told: str) -> None:
    with pytest.raises(ValueError, match="time"):
        from_moment(told)


def test_dates_of_http() -> None:
    assert http_date(1_700_000_000_999_999) == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert moment(1_700_000_000_100_000) == "2023-11-14T22:13:20.1Z"
