"""Requests and replies of a broker's HTTP API, without a transport.

An operation of a client is a conversation: a generator that yields requests, is sent their replies,
and returns a result. `SyncClient.run` and `Client.run` carry a conversation out.
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
REPLY_SECONDS: Final = 60.0
"""Time limit of a reply, in addition to the time that the request asks the broker to wait."""

_T = TypeVar("_T")


class BrokerRequest(NamedTuple):
    """One HTTP request; the path includes the query."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    wait_seconds: float = 0.0
    """How long the request asks the broker to wait before it replies."""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def all_headers(self) -> dict[str, str]:
        """Every header that the client sets itself."""
        content = {"Content-Type": self.content_type} if self.body else {}
        return {"Accept": self.accept, **dict(self.headers), **content}


class BrokerReply(NamedTuple):
    """The reply to a request; names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


Conversation: TypeAlias = Generator[BrokerRequest, BrokerReply, _T]


class BrokerRefused(PenstockError):
    """The broker replied with an error; `code` identifies it, such as `topic_not_found`."""

    code = "broker_refused"

    def __init__(self, status: int, message: str, code: str = "") -> None:
        """`code` is that of the broker's error; an older broker sends none."""
        super().__init__(message)
        self.status, self.code = status, code or type(self).code


class BrokerUnreachable(PenstockError):
    """The broker did not reply; it may or may not have carried out the request."""

    code = "broker_unreachable"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"the broker at {url} does not answer ({reason}); is it running? "
            f"Choose another with --url or {URL_VARIABLE}"
        )
        self.url, self.reason = url, reason


def broker_url(url: str | None) -> str:
    """The broker's URL: `url`, else from the environment, else the default on this machine.

    Raises BrokerUnreachable for a malformed URL.
    """
    url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # The brackets of an IPv6 address or the port are malformed.
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise BrokerUnreachable(url, "it must be written http://HOST:PORT or http://[IPv6]:PORT")
    return url.rstrip("/")


def checked(reply: BrokerReply) -> bytes:
    """The body of a successful reply; raises BrokerRefused with the message of an error."""
    if reply.status < 400:
        return reply.body
    try:
        error = msgspec.json.decode(reply.body, type=ErrorReply)
    except msgspec.DecodeError:
        message = reply.body[:200].decode(errors="replace") or f"HTTP status {reply.status}"
        raise BrokerRefused(reply.status, message) from None
    raise BrokerRefused(reply.status, error.message, error.code)


def ask(request: BrokerRequest) -> Conversation[bytes]:
    """Send one request and return the body of its reply; raises BrokerRefused."""
    return checked((yield request))
