import pytest

from penstock.wire.jetstream.direct_rows import (
    batch_headers,
    end_of_batch,
    reply_headers,
)

TIME_US = 1_794_771_806_420_099
PLACE = (
    b"Nats-Stream: D\r\nNats-Subject: d.a\r\nNats-Sequence: 6\r\n"
    b"Nats-Time-Stamp: 2026-11-15T19:43:26.420099Z\r\n"
)


def test_a_message_without_headers_receives_descriptive_fields() -> None:
    made = reply_headers("D", [b"d.a"], None, [6], [TIME_US])
    assert made == [b"NATS/1.0\r\n" + PLACE + b"\r\n"]


def test_a_messages_own_headers_precede_the_added_fields() -> None:
    own = [b"NATS/1.0\r\nX: y\r\n\r\n", b""]
    made = reply_headers("D", [b"d.a"] * 2, own, [6, 6], [TIME_US] * 2)
    assert made == [
        b"NATS/1.0\r\nX: y\r\n" + PLACE + b"\r\n",
        b"NATS/1.0\r\n" + PLACE + b"\r\n",
    ]


@pytest.mark.feature("G04")
@pytest.mark.parametrize(
    "name",
    [
        b"Nats-Stream",
        b"Nats-Subject",
        b"Nats-Sequence",
        b"Nats-Time-Stamp",
        b"Nats-Num-Pending",
        b"Nats-Pending-Messages",
        b"Nats-Last-Sequence",
        b"Nats-UpTo-Sequence",
    ],
)
def test_a_stored_header_cannot_pretend_to_be_ours(name: bytes) -> None:
    own = [b"NATS/1.0\r\nK: 1\r\n%b: evil\r\nNats-Msg-Id: 5\r\n\r\n" % name]
    made = reply_headers("D", [b"d.a"], own, [6], [TIME_US])
    assert made == [b"NATS/1.0\r\nK: 1\r\nNats-Msg-Id: 5\r\n" + PLACE + b"\r\n"]


def test_a_batch_counts_down_and_names_the_one_before() -> None:
    made = batch_headers("D", [b"d.a", b"d.b"], None, [6, 8], [TIME_US] * 2, 5, 3)
    assert made == [
        b"NATS/1.0\r\n" + PLACE + b"Nats-Num-Pending: 4\r\nNats-Last-Sequence: 3\r\n\r\n",
        b"NATS/1.0\r\n"
        + PLACE.replace(b"d.a", b"d.b").replace(b": 6", b": 8")
        + b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 6\r\n\r\n",
    ]


def test_names_may_hold_a_percent_sign() -> None:
    (block,) = reply_headers("%d", [b"%b"], None, [1], [TIME_US])
    assert b"Nats-Stream: %d\r\nNats-Subject: %b\r\n" in block


def test_the_end_of_a_batch_names_the_pending_messages() -> None:
    assert end_of_batch(5, 3) == (
        b"NATS/1.0 204 EOB\r\nNats-Pending-Messages: 5\r\nNats-Num-Pending: 5\r\n"
        b"Nats-Last-Sequence: 3\r\n\r\n"
    )
    assert end_of_batch(0, 8, 8).endswith(b"Nats-Last-Sequence: 8\r\nNats-UpTo-Sequence: 8\r\n\r\n")
