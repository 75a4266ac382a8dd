"""Conversations with the channel API.

A call that needs tokens reads them from the broker first; administrators may read all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.exchange import BrokerRefused, BrokerRequest, Conversation, ask, checked

FORM: Final = "application/x-www-form-urlencoded"
PAGES_MAX: Final = 100_000
Record = dict[str, Any]


def path_of(*parts: str) -> str:
    """The path of these segments, quoted."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def get_record(*parts: str) -> Conversation[Record]:
    """One record, or one page of a list."""
    return _json((yield from ask(BrokerRequest("GET", path_of(*parts)))))


def list_records(*parts: str, key: str = "Result") -> Conversation[list[Any]]:
    """All items of a list, read page by page."""
    records: list[Any] = []
    path = path_of(*parts)
    for _ in range(PAGES_MAX):
        page = _json((yield from ask(BrokerRequest("GET", path))))
        items = page.get(key) or page.get(key.lower()) or []
        if not items:
            break
        records += items
        path = (page.get("Pages") or page["pages"])["next"]
    return records


def put_record(parts: tuple[str, ...], fields: Mapping[str, str]) -> Conversation[Record]:
    """Create a record, or change fields of an existing one; other fields keep their values."""
    path = path_of(*parts)
    current = yield BrokerRequest("GET", path)
    values, headers = {"name": parts[-1], **fields}, list[tuple[str, str]]()
    if current.status == 200:
        values = _form_fields(_json(current.body)) | dict(fields)
        headers.append(("If-Match", current.headers["etag"]))
    body = urlencode(values).encode()
    request = BrokerRequest("PUT", path, body, FORM, headers=tuple(headers))
    return _json((yield from ask(request)))


def delete_consumer(channel: str, consumer: str) -> Conversation[None]:
    path = path_of("channel", channel, "consumer", consumer)
    current = yield BrokerRequest("GET", path)
    checked(current)
    headers = (("If-Match", current.headers["etag"]),)
    yield from ask(BrokerRequest("DELETE", path, headers=headers))


def broadcast_message(
    channel: str,
    producer: str,
    payload: bytes,
    content_type: str,
    options: Mapping[str, str],
) -> Conversation[str]:
    """Send a message to a channel and return its URL."""
    tokens = (
        ("X-Broker-Channel-Token", (yield from get_record("channel", channel))["Token"]),
        ("X-Broker-Producer-ID", producer),
        ("X-Broker-Producer-Token", (yield from get_record("producer", producer))["Token"]),
    )
    path = path_of("channel", channel, "broadcast")
    headers = (*tokens, *options.items())
    reply = yield BrokerRequest("POST", path, payload, content_type, headers=headers)
    checked(reply)
    return reply.headers["location"]


def call_as_consumer(
    channel: str,
    consumer: str,
    method: str,
    *parts: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
    content_type: str = "application/json",
    headers: tuple[tuple[str, str], ...] = (),
) -> Conversation[Record]:
    """Send a request that needs the channel's and the consumer's token.

    Returns the reply's JSON, empty if there is none.
    """
    tokens = (
        ("X-Broker-Channel-Token", (yield from get_record("channel", channel))["Token"]),
        (
            "X-Broker-Consumer-Token",
            (yield from get_record("channel", channel, "consumer", consumer))["Token"],
        ),
    )
    path = path_of("channel", channel, "consumer", consumer, *parts)
    if query:
        path = f"{path}?{urlencode(query)}"
    reply = yield from ask(
        BrokerRequest(method, path, body, content_type, headers=(*tokens, *headers))
    )
    return _json(reply) if reply else {}


def requeue_dead_jobs(channel: str, consumer: str) -> Conversation[None]:
    """Requeue all dead jobs of a consumer."""
    token = (yield from get_record("channel", channel, "consumer", consumer))["Token"]
    path = path_of("channel", channel, "consumer", consumer, "dlq")
    yield from ask(BrokerRequest("POST", path, urlencode({"requeue": token}).encode(), FORM))


def _form_fields(record: Record) -> dict[str, str]:
    """The fields of a record by their names in a form."""
    names = {"Name": "name", "Token": "token", "CallbackURL": "callbackUrl", "Type": "type"}
    return {field: record[name] for name, field in names.items() if name in record}


def _json(data: bytes) -> Record:
    try:
        record: Record = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BrokerRefused(502, f"the broker's reply is not JSON: {error}") from error
    return record
