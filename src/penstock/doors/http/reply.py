"""What the HTTP door says: a JSON object, with a `message` if it is an error, or bytes."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Application: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]

NO_CONTENT: Final = 204


class Reply(NamedTuple):
    """A status and what goes with it."""

    status: int
    body: dict[str, object] | msgspec.Struct | bytes | AsyncIterator[bytes]
    """A JSON object; or bytes of `content_type`, at once or piece by piece."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


def error(status: int, message: str) -> Reply:
    """An error as every HTTP client of ours finds it."""
    return Reply(status, {"message": message})


async def answer(scope: Event, send: Send, reply: Reply) -> None:
    """Send the whole reply; a HEAD request gets its headers alone."""
    body = reply.body
    if isinstance(body, dict | msgspec.Struct):
        body = msgspec.json.encode(body)
    headers = [] if reply.status == NO_CONTENT else [(b"content-type", reply.content_type)]
    if isinstance(body, bytes) and reply.status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    headers += reply.headers
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if isinstance(body, bytes):
        content = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": content})
        return
    async for piece in body:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
