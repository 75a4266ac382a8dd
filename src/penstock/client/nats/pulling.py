"""Pull requests as conversations, without a clock or a socket.

A conversation is a generator. It yields Send and Await, and for an Await it is sent an AwaitResult:
the next message of that subscription and the remaining seconds; no message means that the time is
up.

A first request with `no_wait` gets messages that exist already. Only if there are none (404), a
second request waits for new ones; the server ends it MARGIN_SECONDS before the client times out.
The server ends a subscription after the last possible message, or when the client gives up, so that
no message is delivered without a receiver. A status is raised as an error, never returned as a
message.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from penstock.client.nats.errors import NatsStatus, NatsTimeout
from penstock.client.nats.protocol import Arrival, Inbox, publish, subscribe, unsubscribe

MARGIN_SECONDS: Final = 0.1
SECOND_NS: Final = 1_000_000_000
NO_MESSAGES: Final = 404
REQUEST_TIMEOUT: Final = 408
HEARTBEAT: Final = 100

_T = TypeVar("_T")


class Send(NamedTuple):
    """Bytes for the server."""

    data: bytes


class Await(NamedTuple):
    """A request for the next message of a subscription."""

    sid: bytes


class AwaitResult(NamedTuple):
    """The message that arrived, None if the time is up, and the remaining time."""

    arrival: Arrival | None
    seconds_left: float


PullConversation: TypeAlias = Generator[Send | Await, AwaitResult | None, _T]


class PullParameters(NamedTuple):
    """The consumer to pull from, and how long the caller waits."""

    subject: bytes
    """`$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>`."""
    seconds: float


def fetch(parameters: PullParameters, inbox: Inbox, batch: int) -> PullConversation[list[Arrival]]:
    """Pull at least one message and at most `batch`; raises NatsTimeout and NatsStatus.

    A status after the first message ends the batch and raises nothing.
    """
    yield Send(
        subscribe(inbox)
        + pull_request(parameters, inbox.subject, {"batch": batch, "no_wait": True})
    )
    messages: list[Arrival] = []
    ended = yield from _collect(inbox.sid, batch, messages)
    if messages or ended.arrival is None:
        yield Send(unsubscribe(inbox.sid))
    else:
        _raise_unless_empty(ended.arrival)
        # The 404 counts towards the messages after which the server ends the subscription.
        yield Send(
            unsubscribe(inbox.sid, batch + 1)
            + pull_request(parameters, inbox.subject, waiting_request(batch, ended.seconds_left))
        )
        ended = yield from _collect(inbox.sid, batch, messages)
        if len(messages) < batch:
            yield Send(unsubscribe(inbox.sid))
    return _result(messages, ended, parameters)


def fetch_one(
    parameters: PullParameters, wildcard: Inbox, token: bytes, alone: Inbox
) -> PullConversation[Arrival]:
    """Pull one message over an existing subscription, so that the usual case is one round trip.

    `wildcard` is a subscription to `<prefix>.*`, and `token` completes the reply subject of this
    request. Only if there is no message, the conversation subscribes to `alone` and waits there.
    Raises NatsTimeout and NatsStatus.
    """
    subject = b"%b.%b" % (wildcard.subject, token)
    yield Send(pull_request(parameters, subject, {"batch": 1, "no_wait": True}))
    while True:
        awaited = yield Await(wildcard.sid)
        assert awaited is not None
        arrival = awaited.arrival
        if arrival is None:
            raise NatsTimeout("no message came", parameters.seconds)
        code = status_of(arrival)
        if code is None:
            return arrival
        if arrival.subject == subject and code[0] != HEARTBEAT:
            break
    _raise_unless_empty(arrival)
    request = pull_request(parameters, alone.subject, waiting_request(1, awaited.seconds_left))
    yield Send(subscribe(alone) + unsubscribe(alone.sid, 1) + request)
    messages: list[Arrival] = []
    ended = yield from _collect(alone.sid, 1, messages)
    if not messages:
        yield Send(unsubscribe(alone.sid))
    return _result(messages, ended, parameters)[0]


def waiting_request(batch: int, seconds_left: float) -> dict[str, object]:
    """The body of a pull request that expires shortly before the client times out."""
    margin = min(MARGIN_SECONDS, seconds_left / 2)
    return {"expires": max(1, round((seconds_left - margin) * SECOND_NS)), "batch": batch}


def status_of(arrival: Arrival) -> tuple[int, str] | None:
    """The code and description of a status; None for a message."""
    line = arrival.headers.partition(b"\r\n")[0].decode(errors="replace")
    _, _, status = line.partition(" ")
    code, _, description = status.strip().partition(" ")
    if arrival.payload or not code.isdigit():
        return None
    return int(code), description


def pull_request(parameters: PullParameters, inbox: bytes, body: dict[str, object]) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return publish(parameters.subject, inbox, text)


def _collect(sid: bytes, batch: int, messages: list[Arrival]) -> PullConversation[AwaitResult]:
    """Append messages to `messages` until it has `batch`, or a status or the timeout ends it."""
    while True:
        awaited = yield Await(sid)
        assert awaited is not None
        if awaited.arrival is None:
            return awaited
        status = status_of(awaited.arrival)
        if status is None:
            messages.append(awaited.arrival)
            if len(messages) == batch:
                return awaited
        elif status[0] != HEARTBEAT:
            return awaited


def _raise_unless_empty(arrival: Arrival) -> None:
    """Raise NatsStatus unless the status means that the consumer has no message now."""
    status = status_of(arrival)
    assert status is not None
    if status[0] not in (NO_MESSAGES, REQUEST_TIMEOUT):
        raise NatsStatus(*status)


def _result(
    messages: list[Arrival], ended: AwaitResult, parameters: PullParameters
) -> list[Arrival]:
    if messages:
        return messages
    status = None if ended.arrival is None else status_of(ended.arrival)
    if status is None or status[0] in (NO_MESSAGES, REQUEST_TIMEOUT):
        raise NatsTimeout("no message came", parameters.seconds)
    raise NatsStatus(*status)
