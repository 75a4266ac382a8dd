import pytest

from penstock.client import BrokerRefused, BrokerReply, BrokerUnreachable, broker_url
from penstock.client.exchange import DEFAULT_URL, checked


def test_the_broker_s_url_is_an_argument_or_from_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    assert broker_url(None) == DEFAULT_URL
    monkeypatch.setenv("PENSTOCK_URL", "http://other:1/")
    assert broker_url(None) == "http://other:1"
    assert broker_url("https://given:2") == "https://given:2"
    assert broker_url("http://[::1]:2/") == "http://[::1]:2"


@pytest.mark.parametrize(
    "url",
    [
        "other:1",
        "ftp://a",
        "http://",
        "http://[::1",
        "http://::1]:80",
        "http://a:99999",
        "http://a:b",
    ],
)
def test_the_error_of_a_malformed_url_shows_the_right_form(url: str) -> None:
    with pytest.raises(BrokerUnreachable, match=r"it must be written http://HOST:PORT"):
        broker_url(url)


def test_a_successful_reply_is_its_body() -> None:
    assert checked(BrokerReply(201, b"x")) == b"x"


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"message":"no"}', "no"), (b"<html>", "<html>"), (b"", "HTTP status 502")],
)
def test_an_error_reply_is_raised_with_its_message(body: bytes, message: str) -> None:
    with pytest.raises(BrokerRefused) as caught:
        checked(BrokerReply(502, body))
    assert (str(caught.value), caught.value.status) == (message, 502)


def test_a_refusal_has_the_code_of_the_brokers_error() -> None:
    with pytest.raises(BrokerRefused) as caught:
        checked(BrokerReply(404, b'{"message":"topic t does not exist","code":"topic_not_found"}'))
    assert (caught.value.status, caught.value.code) == (404, "topic_not_found")
