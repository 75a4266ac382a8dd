"""Replies of the HTTP server: JSON, or bytes at once or in chunks; errors as `ErrorReply`."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from penstock.formats.api import ErrorReply

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Application: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]

NO_CONTENT: Final = 204
STATUS_CODES: Final = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_large",
    414: "url_too_long",
    415: "content_type_unsupported",
    431: "headers_too_large",
    500: "internal",
    501: "not_implemented",
    503: "unavailable",
    505: "http_version_unsupported",
}
"""The code of an error that has only a status, such as a malformed request head."""
CONFIRMS: Final = "penstock.confirms"
"""A key of the event that starts a reply with `Reply.confirms`."""


class Reply(NamedTuple):
    """A status, a body and headers."""

    status: int
    body: dict[str, object] | msgspec.Struct | bytes | AsyncIterator[bytes]
    """A JSON object; or bytes of `content_type`, at once or in chunks."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"
    confirms: bool = False
    """Whether the reply confirms a change of messages. It is sent only while the lease is valid."""


def error(status: int, message: str, code: str = "") -> Reply:
    """The reply to a refused request; `code` defaults to that of the status."""
    return Reply(status, ErrorReply(message, code or STATUS_CODES[status]))


def start(reply: Reply, headers: list[tuple[bytes, bytes]]) -> Event:
    """The event that starts a reply."""
    event = {"type": "http.response.start", "status": reply.status, "headers": headers}
    return {**event, CONFIRMS: True} if reply.confirms else event


async def answer(scope: Event, send: Send, reply: Reply) -> None:
    """Send a reply; without its body if the request is HEAD."""
    body = reply.body
    if isinstance(body, dict | msgspec.Struct):
        body = msgspec.json.encode(body)
    headers = [] if reply.status == NO_CONTENT else [(b"content-type", reply.content_type)]
    if isinstance(body, bytes) and reply.status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    headers += reply.headers
    await send(start(reply, headers))
    if isinstance(body, bytes):
        content = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": content})
        return
    async for piece in body:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
