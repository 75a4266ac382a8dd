"""Headers that callbacks receive."""

import pytest

from penstock.delivery.channels.headers import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    ID_CHARACTERS_MAX,
    Passed,
    excess,
    field_value,
    passed,
    passed_on,
)
from penstock.formats import header_block


def test_secrets_are_never_passed_on() -> None:
    for name in ("Authorization", "COOKIE", "X-Broker-Channel-Token", "webhook-id", "Nats-Msg-Id"):
        assert not passed_on(name)
    assert passed_on("traceparent")


@pytest.mark.parametrize("name", ["Proxy", "proxy-status", "Proxy-Connection"])
def test_no_header_of_a_proxy_is_passed_on(name: str) -> None:
    assert not passed_on(name)


@pytest.mark.parametrize("name", ["Content_Length", "X_Broker_Consumer-Token", "webhook_id"])
def test_a_name_that_cgi_does_not_tell_from_a_reserved_one_is_not_passed_on(name: str) -> None:
    assert passed([(name, "1")], None) == Passed([], 1)
    assert passed_on("x_my_header")


@pytest.mark.parametrize(
    "name", ["", "X A", "X-A ", "X:A", "X-ä", "X\tA", "X(A)", "Transfer-Encoding "]
)
def test_only_a_token_is_a_name(name: str) -> None:
    assert not passed_on(name)


def test_every_character_of_a_token_may_stand_in_a_name() -> None:
    assert passed_on("!#$%&'*+-.^_`|~0aZ")


def test_a_value_has_no_control_characters_but_tabs() -> None:
    assert field_value(" a\tb ä ") == "a\tb ä"
    for code in (*range(9), *range(10, 32), 127):
        assert field_value(f"a{chr(code)}b") is None


def test_unlisted_headers_are_left_out_and_reserved_ones_dropped() -> None:
    pairs = [("A", "1"), ("B", "2"), ("Host", "h"), ("X-Broker-Attempt", "1")]
    assert passed(pairs, {"a", "host"}) == Passed([("A", "1")], 1)
    assert passed(pairs, None) == Passed([("A", "1"), ("B", "2")], 1)


def test_a_block_is_within_its_limits_or_its_excess_is_named() -> None:
    full = [(f"X-{n}", "1") for n in range(HEADERS_MAX)]
    own = [
        ("X-Broker-Message-ID", "ä" * ID_CHARACTERS_MAX),
        ("Nats-Msg-Id", "n"),
        ("Content-Type", "t"),
    ]
    assert excess(b"") is None
    assert excess(header_block.encode([*own, *full])) is None
    assert excess(header_block.encode([*full, ("X-More", "1")])) == (
        "a message has 101 headers, HEADERS_MAX is 100"
    )
    assert excess(header_block.encode([("x-broker-message-id", "x" * 256)])) == (
        "X-Broker-Message-ID has 256 characters, ID_CHARACTERS_MAX is 255"
    )
    large = header_block.encode([("X", "x" * HEADER_BYTES_MAX)])
    assert excess(large) == (
        f"a message has {len(large)} bytes of headers, HEADER_BYTES_MAX is {HEADER_BYTES_MAX}"
    )
