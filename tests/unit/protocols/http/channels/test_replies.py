"""Replies of the channel API."""

from penstock.protocols.http.channels.replies import empty, http_date, json, problem, text


def test_json_is_safe_inside_html() -> None:
    reply = json({"a": "<&>\u2028\u2029"})
    assert reply.body == b'{"a":"\\u003c\\u0026\\u003e\\u2028\\u2029"}\n'


def test_texts_and_nothing() -> None:
    assert text(404, "no", (b"a", b"b"))[:3] == (404, b"no", ((b"a", b"b"),))
    assert empty(202)[:2] == (202, b"")
    assert problem(400, "bad").content_type == b"application/problem+json"


def test_dates_of_http() -> None:
    assert http_date(1_700_000_000_999_999) == "Tue, 14 Nov 2023 22:13:20 GMT"
