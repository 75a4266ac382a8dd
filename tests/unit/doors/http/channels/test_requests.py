"""Requests to the channel API."""

import pytest

from penstock.doors.http.body import Bodies
from penstock.doors.http.channels.replies import Plain
from penstock.doors.http.channels.requests import ChannelRequest, form, same, text_of
from penstock.doors.http.reply import Event


def request(body: bytes = b"", query: bytes = b"", *headers: tuple[bytes, bytes]) -> ChannelRequest:
    async def receive() -> Event:
        return {"type": "http.request", "body": body, "more_body": False}

    return ChannelRequest({"query_string": query, "headers": headers}, receive, {})


FORM = (b"content-type", b"application/x-www-form-urlencoded; charset=utf-8")


async def test_the_first_of_each_field_counts() -> None:
    given = request(b"a=1&a=2&b=%C3%A4+x&c=", b"", FORM)
    assert await form(given, Bodies(100, 100)) == {"a": "1", "b": "ä x", "c": ""}


async def test_what_is_no_form_is_refused() -> None:
    with pytest.raises(Plain, match="Media type not supported"):
        await form(request(b"a=1"), Bodies(100, 100))
    with pytest.raises(Plain, match="too many"):
        await form(request(b"&".join([b"a=1"] * 200), b"", FORM), Bodies(1000, 1000))
    with pytest.raises(Plain, match="percent-encoded"):
        await form(request(b"a=\xff", b"", FORM), Bodies(1000, 1000))


def test_parameters_and_headers() -> None:
    given = request(b"", b"a=1&a=2&b=", (b"x", b"one"), (b"x", b"two"))
    assert given.query() == {"a": ["1", "2"], "b": [""]}
    assert (given.single("a"), given.single("c")) == ("1", None)
    assert (given.header(b"x"), given.header(b"y")) == ("one", None)


@pytest.mark.feature("C17")
def test_tokens_are_compared_whole() -> None:
    assert same("secret", "secret")
    assert not any(same(given, "secret") for given in (None, "", "Secret", "secre", "secrets"))
    assert same("ä", "ä")


def test_headers_are_text_whatever_they_are() -> None:
    assert text_of("ä".encode()) == "ä"
    assert text_of(b"\xe4") == "ä"
