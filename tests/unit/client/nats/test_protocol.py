from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.nats.errors import NatsError, NatsProtocolError
from penstock.client.nats.protocol import (
    CONTROL_LINE_MAX,
    Arrival,
    ControlEvent,
    ErrorEvent,
    Inbox,
    InfoEvent,
    ServerEvent,
    ServerParser,
    header_block,
    publish,
    subject_bytes,
    subscribe,
    unsubscribe,
)

SENT = (
    b'INFO {"server_id":"x"} \r\n'
    b"PONG\r\n"
    b"MSG a.b 1 2\r\nhi\r\n"
    b"MSG a.b 1 reply.to 0\r\n\r\n"
    b"HMSG c 22 reply 12 15\r\nNATS/1.0\r\n\r\nx\r\n\r\n"
    b"HMSG _INBOX.1 3 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n"
    b"MSG d 4  1\r\nz\r\n"
    b"+OK\r\n"
    b"PING\r\n"
    b"-ERR 'Stale Connection'\r\n"
)
EVENTS: list[ServerEvent] = [
    InfoEvent(b'{"server_id":"x"}'),
    ControlEvent.PONG,
    Arrival(b"a.b", b"1", b"", b"", b"hi"),
    Arrival(b"a.b", b"1", b"reply.to", b"", b""),
    Arrival(b"c", b"22", b"reply", b"NATS/1.0\r\n\r\n", b"x\r\n"),
    Arrival(b"_INBOX.1", b"3", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""),
    Arrival(b"d", b"4", b"", b"", b"z"),
    ControlEvent.OK,
    ControlEvent.PING,
    ErrorEvent("Stale Connection"),
]


def test_every_line_of_a_server_is_parsed() -> None:
    assert ServerParser().receive(SENT) == EVENTS


@given(st.lists(st.integers(0, len(SENT)), max_size=12))
def test_how_the_bytes_are_cut_does_not_change_the_events(cuts: list[int]) -> None:
    incoming = ServerParser()
    edges = [0, *sorted(cuts), len(SENT)]
    events = [
        event for start, stop in pairwise(edges) for event in incoming.receive(SENT[start:stop])
    ]
    assert events == EVENTS


def test_bytes_that_are_not_nats_are_an_error() -> None:
    with pytest.raises(NatsProtocolError, match=r"^the server sends what is not NATS: 'HTTP/1.1"):
        ServerParser().receive(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_line_without_an_end_is_an_error() -> None:
    incoming = ServerParser()
    assert incoming.receive(b"INFO " + b"x" * 100) == []
    with pytest.raises(NatsProtocolError, match="without an end"):
        incoming.receive(b"x" * CONTROL_LINE_MAX)


def test_every_command_has_its_bytes() -> None:
    assert subscribe(Inbox(b"_INBOX.a", b"7")) == b"SUB _INBOX.a 7\r\n"
    assert unsubscribe(b"7") == b"UNSUB 7\r\n"
    assert unsubscribe(b"7", 6) == b"UNSUB 7 6\r\n"
    assert publish(b"a", b"", b"hi") == b"PUB a 2\r\nhi\r\n"
    assert publish(b"a", b"r", b"") == b"PUB a r 0\r\n\r\n"
    assert publish(b"a", b"r", b"hi", b"NATS/1.0\r\n\r\n") == (
        b"HPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    )


def test_headers_are_encoded_as_a_block() -> None:
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
