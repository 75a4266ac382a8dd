"""Header blocks; see also tests/unit/formats/test_header_block.py for how they are stored."""

import pytest

from penstock.wire import headers

BLOCK = b"NATS/1.0\r\nA: b\r\nNats-Msg-Id:  one \r\nA: c\r\nEmpty:\r\n\r\n"


@pytest.mark.feature("P01")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"A", b"b"),
        (b"Nats-Msg-Id", b"one"),
        (b"Empty", b""),
        (b"nats-msg-id", None),
        (b"Msg-Id", None),
        (b"one", None),
        (b"NATS/1.0", None),
    ],
)
def test_a_field_is_found_by_its_exact_name_and_its_value_is_trimmed(
    name: bytes, value: bytes | None
) -> None:
    assert headers.get(BLOCK, name) == value


def test_a_name_is_no_pattern() -> None:
    assert headers.get(b"NATS/1.0\r\nAxB: 1\r\nA.B: 2\r\n\r\n", b"A.B") == b"2"


@pytest.mark.feature("P01")
def test_a_status_has_a_code_perhaps_a_text_and_fields() -> None:
    assert headers.status(404, b"No Messages") == b"NATS/1.0 404 No Messages\r\n\r\n"
    nobody = headers.status(503, b"", (b"Nats-Subject", b"nobody"))
    assert nobody == b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n"


def test_fields_are_put_behind_those_that_are_there() -> None:
    fields = [(b"C", b"1"), (b"D", b"2")]
    assert headers.with_fields(b"", fields) == b"NATS/1.0\r\nC: 1\r\nD: 2\r\n\r\n"
    given = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert headers.with_fields(given, fields) == b"NATS/1.0\r\nA: b\r\nC: 1\r\nD: 2\r\n\r\n"
    assert headers.with_fields(b"NATS/1.0\r\n\r\n", []) == b"NATS/1.0\r\n\r\n"


def test_fields_are_left_out_by_name() -> None:
    left = headers.without(BLOCK, frozenset([b"A", b"Empty", b"nats-msg-id"]))
    assert left == b"NATS/1.0\r\nNats-Msg-Id:  one \r\n\r\n"
    assert headers.without(b"", frozenset([b"A"])) == b""
    assert headers.without(b"NATS/1.0 503\r\n\r\n", frozenset([b"A"])) == b"NATS/1.0 503\r\n\r\n"


@pytest.mark.parametrize("block", [b"NATS/1.0\r\nA: b", b"NATS/1.0\r\nA: b\r\n"])
def test_a_block_that_a_client_did_not_end_loses_nothing(block: bytes) -> None:
    assert headers.with_fields(block, [(b"C", b"1")]) == b"NATS/1.0\r\nA: b\r\nC: 1\r\n\r\n"
    assert headers.without(block, frozenset([b"C"])) == b"NATS/1.0\r\nA: b\r\n\r\n"
