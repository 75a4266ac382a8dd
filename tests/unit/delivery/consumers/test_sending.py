from collections.abc import Sequence
from dataclasses import replace

from penstock.delivery.consumers.sending import Parcel, Sender
from penstock.topics.streams.rows import Rows
from tests.unit.delivery.heard import Heard

ROWS = Rows(
    range(4, 7),
    [b"a", b"b", b"c"],
    [b"", b"NATS/1.0\r\nX: y\r\n\r\n", b""],
    [b"0", b"11", b""],
    [7, 8, 9],
)


def parcel(rows: Rows = ROWS, pin: str = "", *, headers_only: bool = False) -> Parcel:
    sender = Sender(Heard(), "S", "d", headers_only=headers_only)
    return sender.parcel(rows, [1, 2, 1], 10, range(5, 2, -1), pin)


def test_a_message_keeps_its_subject_and_headers_and_gets_an_ack_subject() -> None:
    assert parcel() == Parcel(
        ROWS.subjects,
        [
            b"$JS.ACK.S.d.1.5.10.7000.5",
            b"$JS.ACK.S.d.2.6.11.8000.4",
            b"$JS.ACK.S.d.1.7.12.9000.3",
        ],
        ROWS.headers,
        ROWS.payloads,
    )


def test_offsets_with_holes_are_told_as_they_are() -> None:
    rows = replace(ROWS, offsets=[4, 9, 11])
    seqs = [reply.split(b".")[5] for reply in parcel(rows).replies]
    assert seqs == [b"5", b"10", b"12"]


def test_headers_only_tells_the_size_of_what_is_left_out() -> None:
    made = parcel(headers_only=True)
    assert made.payloads == [b"", b"", b""]
    assert made.headers == [
        b"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\n",
        b"NATS/1.0\r\nX: y\r\nNats-Msg-Size: 2\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n",
    ]


def test_a_pin_is_told_with_every_message() -> None:
    made = parcel(replace(ROWS, headers=None), "p1")
    assert made.headers == [b"NATS/1.0\r\nNats-Pin-Id: p1\r\n\r\n"] * 3


def test_sizes_count_subject_ack_subject_headers_and_payload() -> None:
    made = parcel()
    assert made.sizes() == [25 + 1 + 1, 25 + 1 + 18 + 2, 25 + 1]
    assert made.size() == sum(made.sizes())


def test_a_part_is_taken_by_positions() -> None:
    made = parcel()
    assert made.take(range(3)) is made
    assert made.take(range(1, 3)).subjects == [b"b", b"c"]
    assert made.take([0, 2]).payloads == [b"0", b""]
    assert parcel(replace(ROWS, headers=None)).take([1]).headers is None


def test_sending_says_how_many_got_through() -> None:
    heard = Heard(room=2)
    sender = Sender(heard, "S", "d", headers_only=False)
    assert sender.send(b"in", parcel()) == 2
    sent: Sequence[tuple[bytes, bytes]] = [(row.inbox, row.subject) for row in heard.rows]
    assert sent == [(b"in", b"a"), (b"in", b"b")]
