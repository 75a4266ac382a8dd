"""Pull conversations byte by byte: `C` steps are sent, other steps are received."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import pytest

from penstock.client.nats.errors import NatsStatus, NatsTimeout
from penstock.client.nats.protocol import Arrival, Inbox
from penstock.client.nats.pulling import (
    Await,
    AwaitResult,
    PullConversation,
    PullParameters,
    Send,
    fetch,
    fetch_one,
    status_of,
    waiting_request,
)

NEXT = b"$JS.API.CONSUMER.MSG.NEXT.bar.dur"
ASKED = PullParameters(NEXT, 5.0)
INBOX = Inbox(b"_INBOX.n", b"1")
WILDCARD = Inbox(b"_INBOX.w", b"2")
ALONE = Inbox(b"_INBOX.a", b"3")
TIME_UP = AwaitResult(None, 0.0)

_T = TypeVar("_T")
Step: TypeAlias = bytes | tuple[bytes, AwaitResult]


def _message(number: int, sid: bytes = b"1") -> Arrival:
    return Arrival(b"bar", sid, b"$JS.ACK.bar.dur.1.%d.1.1.0" % number, b"", b"m%d" % number)


def _status(text: bytes, sid: bytes = b"1", subject: bytes = b"_INBOX.n") -> Arrival:
    return Arrival(subject, sid, b"", b"NATS/1.0 %b\r\n\r\n" % text, b"")


NOTHING = _status(b"404 No Messages")


def _play(conversation: PullConversation[_T], steps: Sequence[Step]) -> _T | None:
    """Play the steps; the conversation's result, None if it has not ended."""
    answer: AwaitResult | None = None
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


def _got(arrival: Arrival, left: float = 4.0) -> tuple[bytes, AwaitResult]:
    return arrival.sid, AwaitResult(arrival, left)


ASK_FIVE = b'SUB _INBOX.n 1\r\nPUB %b _INBOX.n 26\r\n{"batch":5,"no_wait":true}\r\n' % NEXT
LINGER_FIVE = b'UNSUB 1 6\r\nPUB %b _INBOX.n 32\r\n{"expires":4900000000,"batch":5}\r\n' % NEXT


@pytest.mark.feature("P14")
def test_existing_messages_fill_the_batch_and_the_client_unsubscribes() -> None:
    arrived = [_message(number) for number in range(5)]
    steps: list[Step] = [ASK_FIVE, *map(_got, arrived), b"UNSUB 1\r\n"]
    assert _play(fetch(ASKED, INBOX, 5), steps) == arrived


def test_a_partial_batch_of_existing_messages_is_returned() -> None:
    arrived = [_message(1), _message(2)]
    steps: list[Step] = [ASK_FIVE, *map(_got, arrived), _got(NOTHING), b"UNSUB 1\r\n"]
    assert _play(fetch(ASKED, INBOX, 5), steps) == arrived


@pytest.mark.feature("P14")
def test_without_messages_a_second_request_waits_and_expires_before_the_client_s_timeout() -> None:
    arrived = [_message(number) for number in range(5)]
    steps: list[Step] = [ASK_FIVE, _got(NOTHING, 5.0), LINGER_FIVE, *map(_got, arrived)]
    assert _play(fetch(ASKED, INBOX, 5), steps) == arrived


@pytest.mark.feature("P14")
def test_messages_before_the_timeout_are_returned_and_the_client_unsubscribes() -> None:
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
def test_a_pull_without_messages_times_out(end: tuple[bytes, AwaitResult]) -> None:
    with pytest.raises(NatsTimeout, match=r"^no message came within 5 s$"):
        _play(
            fetch(ASKED, INBOX, 5), [ASK_FIVE, _got(NOTHING, 5.0), LINGER_FIVE, end, b"UNSUB 1\r\n"]
        )


def test_a_first_request_without_a_reply_times_out() -> None:
    with pytest.raises(NatsTimeout):
        _play(fetch(ASKED, INBOX, 5), [ASK_FIVE, (b"1", TIME_UP), b"UNSUB 1\r\n"])


@pytest.mark.feature("P14")
def test_a_status_is_an_error_and_never_a_message() -> None:
    with pytest.raises(NatsStatus, match=r"^the server answered 503$") as raised:
        _play(fetch(ASKED, INBOX, 5), [ASK_FIVE, _got(_status(b"503"))])
    assert (raised.value.status, raised.value.description) == (503, "")
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


def test_a_request_waits_although_others_wait_already() -> None:
    steps: list[Step] = [ASK_FIVE, _got(_status(b"408 Requests Pending"), 5.0), LINGER_FIVE]
    assert _play(fetch(ASKED, INBOX, 5), steps) is None


def test_a_heartbeat_is_ignored() -> None:
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
def test_an_existing_message_needs_no_subscription_of_its_own() -> None:
    conversation = fetch_one(ASKED, WILDCARD, b"t", ALONE)
    assert _play(conversation, [ASK_ONE, _got(_message(1, b"2"))]) == _message(1, b"2")


@pytest.mark.feature("P14")
def test_a_single_new_message_is_awaited_at_an_inbox_of_its_own() -> None:
    steps: list[Step] = [ASK_ONE, _got(NOTHING_FOR_ONE, 5.0), LINGER_ONE, _got(_message(1, b"3"))]
    assert _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), steps) == _message(1, b"3")


def test_a_status_of_an_earlier_request_is_ignored() -> None:
    late = _status(b"404 No Messages", b"2", b"_INBOX.w.earlier")
    steps: list[Step] = [ASK_ONE, _got(late), _got(_message(1, b"2"))]
    assert _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), steps) == _message(1, b"2")


@pytest.mark.parametrize("end", [_got(_status(b"408 Request Timeout", b"3")), (b"3", TIME_UP)])
def test_a_single_message_that_does_not_arrive_is_a_timeout(end: tuple[bytes, AwaitResult]) -> None:
    steps: list[Step] = [ASK_ONE, _got(NOTHING_FOR_ONE, 5.0), LINGER_ONE, end, b"UNSUB 3\r\n"]
    with pytest.raises(NatsTimeout):
        _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), steps)


def test_a_single_pull_without_a_reply_times_out() -> None:
    with pytest.raises(NatsTimeout):
        _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), [ASK_ONE, (b"2", TIME_UP)])


def test_a_status_instead_of_a_single_message_is_an_error() -> None:
    refused = _status(b"409 Consumer is push based", b"2", b"_INBOX.w.t")
    with pytest.raises(NatsStatus, match="push based"):
        _play(fetch_one(ASKED, WILDCARD, b"t", ALONE), [ASK_ONE, _got(refused)])


def test_a_short_timeout_is_halved() -> None:
    assert waiting_request(1, 0.1) == {"expires": 50_000_000, "batch": 1}
    assert waiting_request(1, 0.0) == {"expires": 1, "batch": 1}


def test_a_message_with_headers_is_no_status() -> None:
    assert status_of(Arrival(b"a", b"1", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"")) is None
    assert status_of(Arrival(b"a", b"1", b"r", b"", b"")) is None
    assert status_of(_status(b"404 No Messages")) == (404, "No Messages")
