"""Replies of the channel API."""

import pytest

from penstock.protocols.http.channels.replies import (
    consumer_path,
    empty,
    http_date,
    job_path,
    json_reply,
    message_path,
    problem,
    producer_path,
    public_url,
    scheduled_path,
    text,
)


def test_json_is_safe_inside_html() -> None:
    reply = json_reply({"a": "<&>\u2028\u2029"})
    assert reply.body == b'{"a":"\\u003c\\u0026\\u003e\\u2028\\u2029"}\n'


def test_text_empty_and_problem_replies() -> None:
    assert text(404, "no", (b"a", b"b"))[:3] == (404, b"no", ((b"a", b"b"),))
    assert empty(202)[:2] == (202, b"")
    assert problem(400, "bad").content_type == b"application/problem+json"


def test_http_dates() -> None:
    assert http_date(1_700_000_000_999_999) == "Tue, 14 Nov 2023 22:13:20 GMT"


def test_names_in_paths_are_encoded() -> None:
    assert producer_path("a b") == "/producer/a%20b"
    assert consumer_path("c", "a/b") == "/channel/c/consumer/a%2Fb"
    assert message_path("c", "m?#") == "/channel/c/message/m%3F%23"
    assert scheduled_path("c", "ä") == "/channel/c/scheduled-message/%C3%A4"
    assert job_path("c", "k", "j") == "/channel/c/consumer/k/job/j"


@pytest.mark.feature("C17")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@a.example:8080/cb?x=1", "http://a.example:8080/cb?x=1"),
        ("https://token@[::1]/", "https://[::1]/"),
        ("http://a/@b", "http://a/@b"),
        ("http://a", "http://a"),
    ],
)
def test_a_public_url_has_no_credentials(url: str, shown: str) -> None:
    assert public_url(url) == shown
