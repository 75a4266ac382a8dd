import pytest

from penstock.client.exchange import (
    DEFAULT_URL,
    BrokerRefused,
    BrokerUnreachable,
    Reply,
    broker_url,
    checked,
)


def test_the_broker_is_the_one_given_else_the_environment_s_else_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    assert broker_url(None) == DEFAULT_URL
    monkeypatch.setenv("PENSTOCK_URL", "http://other:1/")
    assert broker_url(None) == "http://other:1"
    assert broker_url("https://given:2") == "https://given:2"


@pytest.mark.parametrize("url", ["other:1", "ftp://a", "http://"])
def test_a_malformed_url_says_how_it_is_written(url: str) -> None:
    with pytest.raises(BrokerUnreachable, match=r"it must be written http://HOST:PORT"):
        broker_url(url)


def test_a_good_reply_is_its_body() -> None:
    assert checked(Reply(201, b"x")) == b"x"


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"message":"no"}', "no"), (b"<html>", "<html>"), (b"", "HTTP status 502")],
)
def test_a_bad_reply_is_raised_with_its_words(body: bytes, message: str) -> None:
    with pytest.raises(BrokerRefused) as caught:
        checked(Reply(502, body))
    assert (str(caught.value), caught.value.status) == (message, 502)
