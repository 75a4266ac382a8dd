"""Pulling as conversations: commands go out, arrivals come in, no clock and no socket in here.

A conversation is a generator. It yields Send and Await and is sent, for an Await, what arrived for
that subscription and how many seconds are left; nothing arrived means that the time is up.

Rules: what is there already is asked for with `no_wait` first; only when there is nothing (404), a
request that lingers follows, which the server ends MARGIN_SECONDS before the client would give up.
A subscription ends at the server after as many messages as can come, or as soon as nobody waits
for them any more, so that nothing is delivered to nobody. A status is an error, never a message.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from penstock.client.nats.errors import NatsStatus, NatsTimeout
from penstock.client.nats.incoming import Arrival
from penstock.client.nats.outgoing import Inbox, publish, subscribe, unsubscribe

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
    """The next arrival for a subscription."""

    sid: bytes


class Awaited(NamedTuple):
    """What came, None when the time is up; and the time that is left."""

    arrival: Arrival | None
    seconds_left: float


Conversation: TypeAlias = Generator[Send | Await, Awaited | None, _T]


class Asked(NamedTuple):
    """Who is asked, and how long the caller waits."""

    subject: bytes
    """`$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>`."""
    seconds: float


def fetch(asked: Asked, inbox: Inbox, batch: int) -> Conversation[list[Arrival]]:
    """At least one message and at most `batch`; raises NatsTimeout and NatsStatus.

    Statuses of a batch that has messages already only end it.
    """
    yield Send(subscribe(inbox) + ask(asked, inbox.subject, {"batch": batch, "no_wait": True}))
    found: list[Arrival] = []
    ended = yield from _collect(inbox.sid, batch, found)
    if found or ended.arrival is None:
        yield Send(unsubscribe(inbox.sid))
    else:
        _demand_nothing_there(ended.arrival)
        # The 404 counts as one of the messages after which the server ends the subscription.
        yield Send(
            unsubscribe(inbox.sid, batch + 1)
            + ask(asked, inbox.subject, lingering(batch, ended.seconds_left))
        )
        ended = yield from _collect(inbox.sid, batch, found)
        if len(found) < batch:
            yield Send(unsubscribe(inbox.sid))
    return _result(found, ended, asked)


def fetch_one(asked: Asked, wildcard: Inbox, token: bytes, alone: Inbox) -> Conversation[Arrival]:
    """One message: asked for at an inbox that is there already, awaited at one of its own.

    `wildcard` is a subscription to `<prefix>.*` and `token` makes the subject of this request;
    `alone` is subscribed to only when nothing is there. Raises as `fetch`.
    """
    subject = b"%b.%b" % (wildcard.subject, token)
    yield Send(ask(asked, subject, {"batch": 1, "no_wait": True}))
    while True:
        awaited = yield Await(wildcard.sid)
        assert awaited is not None
        arrival = awaited.arrival
        if arrival is None:
            raise NatsTimeout("no message came", asked.seconds)
        code = status_of(arrival)
        if code is None:
            return arrival
        if arrival.subject == subject and code[0] != HEARTBEAT:
            break
    _demand_nothing_there(arrival)
    request = ask(asked, alone.subject, lingering(1, awaited.seconds_left))
    yield Send(subscribe(alone) + unsubscribe(alone.sid, 1) + request)
    found: list[Arrival] = []
    ended = yield from _collect(alone.sid, 1, found)
    if not found:
        yield Send(unsubscribe(alone.sid))
    return _result(found, ended, asked)[0]


def lingering(batch: int, seconds_left: float) -> dict[str, object]:
    """The body of a request that the server ends a little before the client gives up."""
    margin = min(MARGIN_SECONDS, seconds_left / 2)
    return {"expires": max(1, round((seconds_left - margin) * SECOND_NS)), "batch": batch}


def status_of(arrival: Arrival) -> tuple[int, str] | None:
    """The status and its description, None of a message."""
    line = arrival.headers.partition(b"\r\n")[0].decode(errors="replace")
    _, _, status = line.partition(" ")
    code, _, description = status.strip().partition(" ")
    if arrival.payload or not code.isdigit():
        return None
    return int(code), description


def ask(asked: Asked, inbox: bytes, body: dict[str, object]) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return publish(asked.subject, inbox, text)


def _collect(sid: bytes, batch: int, found: list[Arrival]) -> Conversation[Awaited]:
    """Add messages to `found` until there are enough, or a status or the time ends it."""
    while True:
        awaited = yield Await(sid)
        assert awaited is not None
        if awaited.arrival is None:
            return awaited
        status = status_of(awaited.arrival)
        if status is None:
            found.append(awaited.arrival)
            if len(found) == batch:
                return awaited
        elif status[0] != HEARTBEAT:
            return awaited


def _demand_nothing_there(arrival: Arrival) -> None:
    """Only when nothing is there, or others wait for it, a request may follow that lingers."""
    status = status_of(arrival)
    assert status is not None
    if status[0] not in (NO_MESSAGES, REQUEST_TIMEOUT):
        raise NatsStatus(*status)


def _result(found: list[Arrival], ended: Awaited, asked: Asked) -> list[Arrival]:
    if found:
        return found
    status = None if ended.arrival is None else status_of(ended.arrival)
    if status is None or status[0] in (NO_MESSAGES, REQUEST_TIMEOUT):
        raise NatsTimeout("no message came", asked.seconds)
    raise NatsStatus(*status)
