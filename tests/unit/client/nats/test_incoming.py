from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.nats.errors import NatsProtocolError
from penstock.client.nats.incoming import (
    CONTROL_LINE_MAX,
    Arrival,
    Event,
    Incoming,
    Info,
    Refusal,
    Sign,
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
EVENTS: list[Event] = [
    Info(b'{"server_id":"x"}'),
    Sign.PONG,
    Arrival(b"a.b", b"1", b"", b"", b"hi"),
    Arrival(b"a.b", b"1", b"reply.to", b"", b""),
    Arrival(b"c", b"22", b"reply", b"NATS/1.0\r\n\r\n", b"x\r\n"),
    Arrival(b"_INBOX.1", b"3", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""),
    Arrival(b"d", b"4", b"", b"", b"z"),
    Sign.OK,
    Sign.PING,
    Refusal("Stale Connection"),
]


def test_everything_a_server_says_is_understood() -> None:
    assert Incoming().receive(SENT) == EVENTS


@given(st.lists(st.integers(0, len(SENT)), max_size=12))
def test_how_the_bytes_are_cut_does_not_change_the_events(cuts: list[int]) -> None:
    incoming = Incoming()
    edges = [0, *sorted(cuts), len(SENT)]
    events = [
        event for start, stop in pairwise(edges) for event in incoming.receive(SENT[start:stop])
    ]
    assert events == EVENTS


def test_what_is_not_nats_is_an_error() -> None:
    with pytest.raises(NatsProtocolError, match=r"^the server sends what is not NATS: 'HTTP/1.1"):
        Incoming().receive(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_line_without_an_end_is_an_error() -> None:
    incoming = Incoming()
    assert incoming.receive(b"INFO " + b"x" * 100) == []
    with pytest.raises(NatsProtocolError, match="without an end"):
        incoming.receive(b"x" * CONTROL_LINE_MAX)
