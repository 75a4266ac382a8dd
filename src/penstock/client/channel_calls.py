"""Conversations with the channel API: each a generator, as those in calls.py.

Tokens that a call needs are read from the broker first, which shows them to who may administer it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.exchange import BrokerRefused, Conversation, Request, ask, checked

FORM: Final = "application/x-www-form-urlencoded"
PAGES_MAX: Final = 100_000
Record = dict[str, Any]


def path_of(*parts: str) -> str:
    """The path of these segments."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def show(*parts: str) -> Conversation[Record]:
    """One record, or one page."""
    return _json((yield from ask(Request("GET", path_of(*parts)))))


def listed(*parts: str, key: str = "Result") -> Conversation[list[Any]]:
    """All of a list, page by page."""
    found: list[Any] = []
    path = path_of(*parts)
    for _ in range(PAGES_MAX):
        page = _json((yield from ask(Request("GET", path))))
        items = page.get(key) or page.get(key.lower()) or []
        if not items:
            break
        found += items
        path = (page.get("Pages") or page["pages"])["next"]
    return found


def write(parts: tuple[str, ...], fields: Mapping[str, str]) -> Conversation[Record]:
    """Make a record, or change the one that is there: what is not given stays."""
    path = path_of(*parts)
    known = yield Request("GET", path)
    given, headers = {"name": parts[-1], **fields}, list[tuple[str, str]]()
    if known.status == 200:
        old = _json(known.body)
        given = _kept(old) | dict(fields)
        headers.append(("If-Match", known.headers["etag"]))
    body = urlencode(given).encode()
    request = Request("PUT", path, body, FORM, headers=tuple(headers))
    return _json((yield from ask(request)))


def remove_consumer(channel: str, consumer: str) -> Conversation[None]:
    path = path_of("channel", channel, "consumer", consumer)
    known = yield Request("GET", path)
    checked(known)
    headers = (("If-Match", known.headers["etag"]),)
    yield from ask(Request("DELETE", path, headers=headers))


def broadcast(
    channel: str,
    producer: str,
    payload: bytes,
    content_type: str,
    options: Mapping[str, str],
) -> Conversation[str]:
    """Send a message; where it can be looked at."""
    tokens = (
        ("X-Broker-Channel-Token", (yield from show("channel", channel))["Token"]),
        ("X-Broker-Producer-ID", producer),
        ("X-Broker-Producer-Token", (yield from show("producer", producer))["Token"]),
    )
    path = path_of("channel", channel, "broadcast")
    headers = (*tokens, *options.items())
    reply = yield Request("POST", path, payload, content_type, headers=headers)
    checked(reply)
    return reply.headers["location"]


def as_consumer(
    channel: str,
    consumer: str,
    method: str,
    *parts: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
    content_type: str = "application/json",
    headers: tuple[tuple[str, str], ...] = (),
) -> Conversation[Record]:
    """A call that needs both tokens; what it answers, empty where it answers nothing."""
    tokens = (
        ("X-Broker-Channel-Token", (yield from show("channel", channel))["Token"]),
        (
            "X-Broker-Consumer-Token",
            (yield from show("channel", channel, "consumer", consumer))["Token"],
        ),
    )
    path = path_of("channel", channel, "consumer", consumer, *parts)
    if query:
        path = f"{path}?{urlencode(query)}"
    answer = yield from ask(Request(method, path, body, content_type, headers=(*tokens, *headers)))
    return _json(answer) if answer else {}


def requeue_all(channel: str, consumer: str) -> Conversation[None]:
    """Queue all dead jobs of a consumer again."""
    token = (yield from show("channel", channel, "consumer", consumer))["Token"]
    path = path_of("channel", channel, "consumer", consumer, "dlq")
    yield from ask(Request("POST", path, urlencode({"requeue": token}).encode(), FORM))


def _kept(old: Record) -> dict[str, str]:
    """The fields of a record as a form has them."""
    names = {"Name": "name", "Token": "token", "CallbackURL": "callbackUrl", "Type": "type"}
    return {field: old[name] for name, field in names.items() if name in old}


def _json(data: bytes) -> Record:
    try:
        found: Record = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BrokerRefused(502, f"the broker's answer is not JSON: {error}") from error
    return found
