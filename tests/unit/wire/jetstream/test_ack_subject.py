import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.jetstream.ack_subject import (
    AckKind,
    Acks,
    ack_subjects,
    kind_of,
    nak_delay_ns,
    next_request,
    parse_acks,
    term_reason,
)
from penstock.wire.jetstream.requests import NextRequest

NAMES = st.text("abz%_-é0", min_size=1, max_size=5)


def _subject(stream: str, consumer: str, seq: int) -> bytes:
    return b"$JS.ACK.%b.%b.1.%d.3.1794772760933089185.5" % (
        stream.encode(),
        consumer.encode(),
        seq,
    )


def test_a_run_has_one_subject_for_each_message() -> None:
    made = ack_subjects("S%d", "c", [1, 2], range(7, 9), (3, 4), [50, 60], [1, 0])
    assert made == [b"$JS.ACK.S%d.c.1.7.3.50000.1", b"$JS.ACK.S%d.c.2.8.4.60000.0"]


def test_a_run_may_share_its_time_and_number_of_deliveries() -> None:
    made = ack_subjects("S%d", "c", [2, 2], range(7, 9), (3, 4), [50, 50], [1, 0])
    assert made == [b"$JS.ACK.S%d.c.2.7.3.50000.1", b"$JS.ACK.S%d.c.2.8.4.50000.0"]
    again = ack_subjects("S%d", "c", [1, 2], range(7, 9), (3, 4), [50, 50], [1, 0])
    assert again == [b"$JS.ACK.S%d.c.1.7.3.50000.1", b"$JS.ACK.S%d.c.2.8.4.50000.0"]


def test_columns_of_different_length_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        ack_subjects("S", "c", [1], [1, 2], [1], [1], [1])


@given(NAMES, NAMES, st.lists(st.integers(1, 10**18 - 1), min_size=1))
def test_encoded_ack_subjects_are_parsed_again(stream: str, consumer: str, seqs: list[int]) -> None:
    ones = [1] * len(seqs)
    made = ack_subjects(stream, consumer, ones, seqs, ones, ones, ones)
    assert parse_acks(made) == [Acks(stream, consumer, range(len(seqs)), seqs)]


@given(st.lists(st.tuples(st.sampled_from("ST"), st.sampled_from("cd"), st.integers(1, 99))))
def test_a_mixed_run_is_sorted_by_consumer(run: list[tuple[str, str, int]]) -> None:
    found = parse_acks([b"$JS.ACK.odd", *(_subject(*one) for one in run)])
    told = {
        place: (acks.stream, acks.consumer, seq)
        for acks in found
        for place, seq in zip(acks.positions, acks.seqs, strict=True)
    }
    assert told == dict(enumerate(run, 1))
    assert len({(acks.stream, acks.consumer) for acks in found}) == len(found)


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.ACK.S.c.1.2.3.4",
        b"$JS.ACK.S.c.1.2.3.4.5.6",
        b"$JS.ACK.S.c.1.x.3.4.5",
        b"$JS.ACK.S.c.1.-2.3.4.5",
        b"$JS.ACK.S.c.1.9999999999999999999.3.4.5",
        b"$JS.ACK._.hash.S.c.1.2.3.4.5",
        b"$JS.ACK.",
    ],
)
def test_a_subject_of_another_form_is_left_out(subject: bytes) -> None:
    assert parse_acks([subject]) == []
    assert parse_acks([_subject("S", "c", 2), subject]) == [Acks("S", "c", [0], [2])]


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", AckKind.ACK),
        (b"+ACK", AckKind.ACK),
        (b"+OK", AckKind.ACK),
        (b"-NAK", AckKind.NAK),
        (b'-NAK {"delay":5}', AckKind.NAK),
        (b"+WPI", AckKind.PROGRESS),
        (b"+TERM", AckKind.TERM),
        (b"+TERM because", AckKind.TERM),
        (b"+NXT", AckKind.NEXT),
        (b"+NXT 5", AckKind.NEXT),
        (b"garbage", None),
        (b"+TER", None),
        (b"+ACKX", None),
    ],
)
def test_ack_payloads_are_recognised(payload: bytes, kind: AckKind | None) -> None:
    assert kind_of(payload) is kind


@pytest.mark.parametrize(
    ("payload", "delay"),
    [
        (b"-NAK", 0),
        (b'-NAK {"delay":300000000}', 300_000_000),
        (b"-NAK 300ms", 300_000_000),
        (b'-NAK {"delay":-5}', 0),
        (b'-NAK {"delay":"x"}', 0),
        (b"-NAK bogus", 0),
        (b"-NAK \xff", 0),
        (b"-NAK " + b"9" * 100_000, 0),
        (b'-NAK {"delay":' + b"[" * 2000 + b"]" * 2000 + b"}", 0),
    ],
)
def test_how_long_a_refused_message_is_held_back(payload: bytes, delay: int) -> None:
    assert nak_delay_ns(payload) == delay


def test_the_rest_of_a_payload() -> None:
    assert term_reason(b"+TERM") == ""
    assert term_reason(b"+TERM no such order") == "no such order"
    assert next_request(b"+NXT") == NextRequest(batch=1)
    assert next_request(b"+NXT 2") == NextRequest(batch=2)
    assert next_request(b'+NXT {"batch":3,"no_wait":true}') == NextRequest(3, no_wait=True)
