import pytest

from penstock.client.nats.errors import NatsError
from penstock.client.nats.outgoing import (
    Inbox,
    header_block,
    publish,
    subject_bytes,
    subscribe,
    unsubscribe,
)


def test_commands_are_these_bytes() -> None:
    assert subscribe(Inbox(b"_INBOX.a", b"7")) == b"SUB _INBOX.a 7\r\n"
    assert unsubscribe(b"7") == b"UNSUB 7\r\n"
    assert unsubscribe(b"7", 6) == b"UNSUB 7 6\r\n"
    assert publish(b"a", b"", b"hi") == b"PUB a 2\r\nhi\r\n"
    assert publish(b"a", b"r", b"") == b"PUB a r 0\r\n\r\n"
    assert publish(b"a", b"r", b"hi", b"NATS/1.0\r\n\r\n") == (
        b"HPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    )


def test_headers_are_a_block() -> None:
    assert header_block(None) == b""
    assert header_block({"Nats-Msg-Id": "x", "A": "b"}) == (
        b"NATS/1.0\r\nNats-Msg-Id: x\r\nA: b\r\n\r\n"
    )


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0"])
def test_a_subject_cannot_break_its_line(subject: str) -> None:
    with pytest.raises(NatsError, match="a subject is a word"):
        subject_bytes(subject)


@pytest.mark.parametrize("fields", [{"": "x"}, {"a:b": "c"}, {"a": "b\r\nc: d"}, {"a\n": "b"}])
def test_a_header_cannot_break_its_block(fields: dict[str, str]) -> None:
    with pytest.raises(NatsError, match="a header is a name and one line"):
        header_block(fields)
