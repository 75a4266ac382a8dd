"""What is on the wire, byte by byte: `C` lines are sent, other steps are what arrives."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import pytest

from penstock.client.nats.errors import NatsStatus, NatsTimeout
from penstock.client.nats.incoming import Arrival
from penstock.client.nats.outgoing import Inbox
from penstock.client.nats.pulling import (
    Asked,
    Await,
    Awaited,
    Conversation,
    Send,
    fetch,
    fetch_one,
    lingering,
    status_of,
)

NEXT = b"$JS.API.CONSUMER.MSG.NEXT.bar.dur"
ASKED = Asked(NEXT, 5.0)
INBOX = Inbox(b"_INBOX.n", b"1")
WILDCARD = Inbox(b"_INBOX.w", b"2")
ALONE = Inbox(b"_INBOX.a", b"3")
TIME_UP = Awaited(None, 0.0)

_T = TypeVar("_T")
Step: TypeAlias = bytes | tuple[bytes, Awaited]


def _message(number: int, sid: bytes = b"1") -> Arrival:
    return Arrival(b"bar", sid, b"$JS.ACK.bar.dur.1.%d.1.1.0" % number, b"", b"m%d" % number)


def _status(text: bytes, sid: bytes = b"1", subject: bytes = b"_INBOX.n") -> Arrival:
    return Arrival(subject, sid, b"", b"NATS/1.0 %b\r\n\r\n" % text, b"")


NOTHING = _status(b"404 No Messages")


def _play(conversation: Conversation[_T], steps: Sequence[Step]) -> _T | None:
    """Its result, None while it goes on; each step is what it sends, or awaits and is given."""
    answer: Awaited | None = None
    try:
        for step in steps:
            yielded = conversation.send(answer)
            if isinstance(step, bytes):
                assert yielded == Send(step)
                answer = None
            else:
                assert yielded == Await(step[0])
                answer = step[1]
        conversation.send(answer)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    return None


def _got(arrival: Arrival, left: float = 4.0) -> tuple[bytes, Awaited]:
    return arrival.sid, Awaited(arrival, left)


ASK_FIVE = b'SUB _INBOX.n 1\r\nPUB %b _INBOX.n 26\r\n{"batch":5,"no_wait":true}\r\n' % NEXT
LINGER_FIVE = b'UNSUB 1 6\r\nPUB %b _INBOX.n 32\r\n{"expires":4900000000,"batch":5}\r\n' % NEXT


@pytest.mark.feature("P14")
def test_what_is_there_is_taken_and_nothing_is_left_behind() -> None:
    arrived = [_message(number) for number in range(5)]
    steps: list[Step] = [ASK_FIVE, *map(_got, arrived), b"UNSUB 1\r\n"]
    assert _play(fetch(ASKED, INBOX, 5), steps) == arrived


def test_a_part_of_the_batch_that_is_there_is_enough() -> None:
    arrived = [_message(1), _message(2)]
    steps: list[Step] = [ASK_FIVE, *map(_got, arrived), _got(NOTHING), b"UNSUB 1\r\n"]
    assert _play(fetch(ASKED, INBOX, 5), steps) == arrived


@pytest.mark.feature("P14")
def test_when_nothing_is_there_a_request_follows_that_ends_before_the_client_does() -> None:
    arrived = [_message(number) for number in range(5)]
    steps: list[Step] = [ASK_FIVE, _got(NOTHING, 5.0), LINGER_FIVE, *map(_got, arrived)]
    assert _play(fetch(ASKED, INBOX, 5), steps) == arrived


@pytest.mark.feature("P14")
def test_what_came_in_time_is_given_and_interest_in_the_rest_is_taken_back() -> None:
    steps: list[Step] = [
        ASK_FIVE,
        _got(NOTHING, 5.0),
        LINGER_FIVE,
        _got(_message(1)),
        (b"1", TIME_UP),
    ]
    assert _play(fetch(ASKED, INBOX, 5), [*steps, b"UNSUB 1\r\n"]) == [_message(1)]


@pytest.mark.feature("P14")
@pytest.mark.parametrize("end", [_got(_status(b"408 Request Timeout")), (b"1", TIME_UP)])
def test_when_nothing_came_it_is_a_timeout(end: tuple[bytes, Awaited]) -> None:
    with pytest.raises(NatsTimeout, match=r"^no message came within 5 s$"):
        _play(
            fetch(ASKED, INBOX, 5), [ASK_FIVE, _got(NOTHING, 5.0), LINGER_FIVE, end, b"UNSUB 1\r\n"]
        )


def test_a_first_request_that_nobody_answers_is_a_timeout_too() -> None:
    with pytest.raises(NatsTimeout):
        _play(fetch(ASKED, INBOX, 5), [ASK_FIVE, (b"1", TIME_UP), b"UNSUB 1\r\n"])


@pytest.mark.feature("P14")
def test_a_status_is_an_error_and_never_a_message() -> None:
    with pytest.raises(NatsStatus, match=r"^the server answered 503$") as raised:
        _play(fetch(ASKED, INBOX, 5), [ASK_FIVE, _got(_status(b"503"))])
    assert (raised.value.code, raised.value.description) == (503, "")
    steps: list[Step] = [
        ASK_FIVE,
        _got(NOTHING, 5.0),
        LINGER_FIVE,
        _got(_status(b"409 Consumer Deleted")),
    ]
    with pytest.raises(NatsStatus, match=r"^the server answered 409 Consumer Deleted$"):
        _play(fetch(ASKED, INBOX, 5), [*steps, b"UNSUB 1\r\n"])


def test_a_status_after_messages_only_ends_the_batch() -> None:
    steps: list[Step] = [ASK_FIVE, _got(NOTHING, 5.0), LINGER_FIVE, _got(_message(1))]
    ended = _got(_status(b"409 Consumer Deleted"))
    assert _play(fetch(ASKED, INBOX, 5), [*steps, ended, b"UNSUB 1\r\n"]) == [_message(1)]


def test_when_others_wait_already_this_one_waits_too() -> None:
    steps: list[Step] = [ASK_FIVE, _got(_status(b"408 Requests Pending"), 5.0), LINGER_FIVE]
    assert _play(fetch(ASKED, INBOX, 5), steps) is None


def test_a_heartbeat_is_passed_over() -> None:
    beat = _got(_status(b"100 Idle Heartbeat"))
    steps: list[Step] = [ASK_FIVE, beat, _got(_message(1)), beat, _got(NOTHING), b"UNSUB 1\r\n"]
    assert _play(fetch(ASKED, INBOX, 5), steps) == [_message(1)]


ASK_ONE = b'PUB %b _INBOX.w.t 26\r\n{"batch":1,"no_wait":true}\r\n' % NEXT
LINGER_ONE = (
    b"SUB _INBOX.a 3\r\nUNSUB 3 1\r\n"
    b'PUB %b _INBOX.a 32\r\n{"expires":4900000000,"batch":1}\r\n' % NEXT
)
NOTHING_FOR_ONE = _status(b"404 No Messages", b"2", b"_INBOX.w.t")


@pytest.mark.feature("P14")
def test_one_message_that_is_there_needs_no_subscription_of_its_own() -> None:
    conversation = fetch_one(ASKED, WILDCARD, b"t", ALONE)
    assert _play(conversation, [ASK_ONE, _got(_message(1, b"2"))]) == _message(1, b"2")


@pytest.mark.feature("P14")
def test_one_message_is_awaited_at_an_inbox_of_its_own() -> None:
    steps: list[Step] = [ASK_ONE, _got(NOTHING_FOR_ONE, 5.0), LINGER_ONE, _got(_message(1, b"3"))]
    assert _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), steps) == _message(1, b"3")


def test_an_answer_to_an_earlier_request_is_not_taken_for_this_one() -> None:
    late = _status(b"404 No Messages", b"2", b"_INBOX.w.earlier")
    steps: list[Step] = [ASK_ONE, _got(late), _got(_message(1, b"2"))]
    assert _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), steps) == _message(1, b"2")


@pytest.mark.parametrize("end", [_got(_status(b"408 Request Timeout", b"3")), (b"3", TIME_UP)])
def test_one_message_that_does_not_come_is_a_timeout(end: tuple[bytes, Awaited]) -> None:
    steps: list[Step] = [ASK_ONE, _got(NOTHING_FOR_ONE, 5.0), LINGER_ONE, end, b"UNSUB 3\r\n"]
    with pytest.raises(NatsTimeout):
        _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), steps)


def test_one_message_that_nobody_answers_for_is_a_timeout() -> None:
    with pytest.raises(NatsTimeout):
        _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), [ASK_ONE, (b"2", TIME_UP)])


def test_a_status_for_one_message_is_an_error() -> None:
    refused = _status(b"409 Consumer is push based", b"2", b"_INBOX.w.t")
    with pytest.raises(NatsStatus, match="push based"):
        _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), [ASK_ONE, _got(refused)])


def test_little_time_is_divided() -> None:
    assert lingering(1, 0.1) == {"expires": 50_000_000, "batch": 1}
    assert lingering(1, 0.0) == {"expires": 1, "batch": 1}


def test_a_message_with_headers_is_no_status() -> None:
    assert status_of(Arrival(b"a", b"1", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"")) is None
    assert status_of(Arrival(b"a", b"1", b"r", b"", b"")) is None
    assert status_of(_status(b"404 No Messages")) == (404, "No Messages")
