"""Messages as jobs carry them."""

import pyarrow as pa
import pytest

from penstock.delivery.channels.messages import (
    JobMessage,
    Outgoing,
    keys_of,
    message_at,
    passed_on,
    priorities,
    priority,
    subject,
)
from penstock.formats import header_block
from penstock.ledger.job_states import PRIORITY_MAX, key_of
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId


def batch(headers: list[bytes | None] | None, first: int = 10) -> Batch:
    count = 3 if headers is None else len(headers)
    column = None if headers is None else pa.array(headers, pa.binary())
    payloads = pa.array([b"%d" % n for n in range(count)], pa.binary())
    columns = Columns(b"c", payloads, column)
    return Batch(PartitionId(0), Offset(first), count, Microseconds(99), columns)


def block(*pairs: tuple[str, str]) -> bytes:
    return header_block.encode(pairs)


def test_a_message_of_ours_comes_back_as_it_was_sent() -> None:
    sent = Outgoing("m 1", "p", 7, "text/plain", [("X-A", "ä"), ("b", "2")], b"hi")
    message = message_at(batch([sent.block()]), 0, 10)
    assert message == JobMessage(
        10, 99, "m 1", "p", 7, "text/plain", [("X-A", "ä"), ("b", "2")], b"0"
    )


def test_of_a_message_of_another_door_all_headers_are_passed_on_but_ours() -> None:
    given = block(
        ("Nats-Msg-Id", "n"),
        ("X-One", "1"),
        ("Host", "evil"),
        ("Content-Length", "9"),
        ("x-broker-consumer-token", "evil"),
        ("webhook-signature", "evil"),
    )
    message = message_at(batch([b"", given, None]), 1, 11)
    assert message.headers == [("X-One", "1")]
    assert (message.id, message.producer, message.priority) == ("", "", 0)
    assert message.content_type == "application/octet-stream"


def test_a_header_that_is_not_listed_is_not_passed_on() -> None:
    given = block(("X-Broker-Metadata-Headers", "X-One"), ("x-one", "1"), ("X-Two", "2"))
    assert message_at(batch([given]), 0, 10).headers == [("x-one", "1")]


def test_a_row_of_a_typed_topic_is_json() -> None:
    rows = pa.record_batch({"id": [1, 2]})
    typed = Batch(PartitionId(0), Offset(0), 2, Microseconds(5), rows)
    message = message_at(typed, 1, 1)
    assert (message.payload, message.content_type) == (b'{"id":2}', "application/json")
    assert priorities(typed) == {}


def test_what_cannot_stand_in_a_header_is_refused() -> None:
    with pytest.raises(FormatError):
        Outgoing("a\r\nb", "p", 0, "x", [], b"x").block()
    with pytest.raises(FormatError):
        Outgoing("", "p", 0, "x", [("a b", "1")], b"x").block()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), (" 7 ", 7), ("-7", 7), ("x", 0), ("", 0), ("9" * 30, PRIORITY_MAX), ("٣", 0)],
)
def test_priorities(text: str, expected: int) -> None:
    assert priority(text) == expected


def test_only_messages_with_a_priority_are_looked_at() -> None:
    given = batch(
        [
            b"",
            block(("X-Broker-Message-Priority", "3")),
            block(("x-broker-message-priority", "4")),
            block(("A", "X-Broker-Message-Priority")),
            None,
        ]
    )
    assert priorities(given) == {11: 3, 12: 4}
    assert priorities(batch(None)) == {}
    assert keys_of(given, {11: 3})[:2] == [key_of(0, 10), key_of(3, 11)]


def test_different_ids_have_different_subjects() -> None:
    ids = ["a", "A", "a b", "a.b", "a*", ">", "ä", "x" * 300, "x" * 301]
    subjects = {subject("c", id_) for id_ in ids}
    assert len(subjects) == len(ids)
    assert all(text.startswith(b"c.") and b" " not in text for text in subjects)
    assert subject("c", "") == b"c"


def test_secrets_are_never_passed_on() -> None:
    for name in ("Authorization", "COOKIE", "X-Broker-Channel-Token", "webhook-id", "Nats-Msg-Id"):
        assert not passed_on(name)
    assert passed_on("traceparent")
