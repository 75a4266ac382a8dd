"""What the HTTP door says: a JSON object, with a `message` if it is an error, or a text."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Application: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]


class Reply(NamedTuple):
    """A status and what goes with it."""

    status: int
    body: dict[str, object] | bytes
    """A JSON object; or bytes of `content_type`."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


def error(status: int, message: str) -> Reply:
    """An error as every HTTP client of ours finds it."""
    return Reply(status, {"message": message})


async def answer(scope: Event, send: Send, reply: Reply) -> None:
    """Send the whole reply; a HEAD request gets its headers alone."""
    body = reply.body if isinstance(reply.body, bytes) else msgspec.json.encode(reply.body)
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(body)),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
