"""Values of counters."""

from __future__ import annotations

from decimal import Decimal

import pytest

from penstock.wire.jetstream.counter_values import PAYLOAD, ZERO, add_up, increment_of, value_of
from penstock.wire.jetstream.errors import ApiError

LONG = "9" * 60_000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        ("0", 0),
        ("-0", 0),
        ("007", 7),
        ("12345678901234567890", None),
    ],
)
def test_an_integer_is_parsed(text: str, number: int | None) -> None:
    assert increment_of(text.encode()) == (int(text) if number is None else number)


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_0", "+ 1", "--1", "0x1", "1e3", "NaN", "1 "])
def test_nothing_else_is(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        increment_of(text.encode())
    assert refused.value.err_code == 10171


def test_sums_are_exact_whatever_their_size() -> None:
    sums = {b"a": ZERO, b"b": Decimal(5)}
    assert str(add_up(sums, b"a", increment_of(LONG.encode()))) == LONG
    assert str(add_up(sums, b"a", increment_of(b"1"))) == "1" + "0" * 60_000
    assert str(add_up(sums, b"a", increment_of(b"-1" + b"0" * 60_000))) == "0"
    assert str(add_up(sums, b"b", increment_of(b"-7"))) == "-2"
    assert str(add_up({b"a": ZERO}, b"a", increment_of(b"-0"))) == "0"


def test_stored_messages_are_read_again() -> None:
    for text in ("0", "-5", LONG):
        assert str(value_of(PAYLOAD % text.encode())) == text
    assert value_of(b'{"val":"3","more":[]}') == 3


@pytest.mark.parametrize("payload", [b"", b"x", b"{}", b'{"val":1}', b'{"val":"x"}', b"[]"])
def test_a_payload_without_a_counter_value_is_refused(payload: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        value_of(payload)
    assert refused.value.err_code == 10172
