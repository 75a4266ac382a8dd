"""Requests and replies without the wire between them.

What a client does is a generator that yields requests and is sent their replies; whoever drives it
(sync.py, aio.py) decides how they travel.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.formats.api import JSON, ErrorReply
from penstock.model.errors import PenstockError

DEFAULT_URL: Final = "http://127.0.0.1:8080"
URL_VARIABLE: Final = "PENSTOCK_URL"

_T = TypeVar("_T")


class Request(NamedTuple):
    """One HTTP request; the path includes the query."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    wait_seconds: float = 0.0
    """How long the broker may rightly take, beyond what an answer takes anyway."""
    headers: tuple[tuple[str, str], ...] = ()


class Reply(NamedTuple):
    """What came back; names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


Conversation: TypeAlias = Generator[Request, Reply, _T]


class BrokerRefused(PenstockError):
    """The broker answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BrokerUnreachable(PenstockError):
    """No answer from the broker; what was asked may or may not have happened."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"the broker at {url} does not answer ({reason}); is it running? "
            f"Choose another with --url or {URL_VARIABLE}"
        )
        self.url, self.reason = url, reason


def broker_url(given: str | None) -> str:
    """The broker to talk to: as given, else from the environment, else on this machine."""
    url = given or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BrokerUnreachable(url, "it must be written http://HOST:PORT")
    return url.rstrip("/")


def checked(reply: Reply) -> bytes:
    """The body of a good reply; raises BrokerRefused with what a bad one says."""
    if reply.status < 400:
        return reply.body
    try:
        message = msgspec.json.decode(reply.body, type=ErrorReply).message
    except msgspec.DecodeError:
        message = reply.body[:200].decode(errors="replace") or f"HTTP status {reply.status}"
    raise BrokerRefused(reply.status, message)


def ask(request: Request) -> Conversation[bytes]:
    """One request and the body of its reply."""
    return checked((yield request))
