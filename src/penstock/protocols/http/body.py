"""Reads and decodes request bodies, and limits the size of each and of all in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from penstock.formats.api import JSON
from penstock.model.errors import Overloaded
from penstock.protocols.http.body_intake import EXTENSION, CountReceived, Fill
from penstock.protocols.http.errors import BadRequest, BodyTooLarge, ContentUnsupported
from penstock.protocols.http.reply import Event, Receive

IN_PLACE_BYTES_MIN: Final = 256 << 10
"""Smaller bodies arrive with the head of their request or soon after it."""

_T = TypeVar("_T")
_DISCONNECT: Final = "http.disconnect"


class ClientGone(Exception):
    """The client has disconnected, so no reply can be sent."""


class Bodies:
    """Reads bodies of at most `bytes_max`, and of `pending_bytes_max` at the same time."""

    def __init__(self, bytes_max: int, pending_bytes_max: int) -> None:
        self._bytes_max, self._pending_bytes_max = bytes_max, pending_bytes_max
        self.pending_bytes = 0

    @asynccontextmanager
    async def read(self, scope: Event, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, which counts as pending until the context exits.

        Raises BodyTooLarge, Overloaded, ClientGone.
        """
        with self._counted(scope) as count_received:
            yield await _gathered(receive, count_received)

    @asynccontextmanager
    async def read_in_place(
        self, scope: Event, receive: Receive
    ) -> AsyncIterator[bytes | memoryview]:
        """Like `read`, but the server reads a large body of known size straight into one buffer."""
        with self._counted(scope) as count_received:
            filled = await _filled(scope, count_received)
            yield await _gathered(receive, count_received) if filled is None else filled

    @contextmanager
    def _counted(self, scope: Event) -> Iterator[CountReceived]:
        """Yields a function that counts received bytes as pending until the context exits.

        Both the context and the function raise BodyTooLarge or Overloaded beyond a limit.
        """
        announced, size = _announced(scope), 0
        self._check(announced, announced)

        def count_received(bytes_received: int) -> None:
            nonlocal size
            self._check(size + bytes_received, bytes_received)
            self.pending_bytes += bytes_received
            size += bytes_received

        try:
            yield count_received
        finally:
            self.pending_bytes -= size

    def _check(self, size: int, uncounted: int) -> None:
        """Check a body of `size` bytes, of which `uncounted` are not pending yet."""
        if size > self._bytes_max:
            raise BodyTooLarge(self._bytes_max)
        if self.pending_bytes + uncounted > self._pending_bytes_max:
            raise Overloaded(
                "too much is being sent", "http.max_pending_bytes", self._pending_bytes_max
            )


async def _filled(scope: Event, count_received: CountReceived) -> memoryview | None:
    """A large body in one buffer; None if the server cannot read it in place."""
    fill: Fill | None = scope.get("extensions", {}).get(EXTENSION, {}).get("fill")
    if fill is None or (size := _announced(scope)) < IN_PLACE_BYTES_MIN:
        return None
    memory = np.empty(size, np.uint8).data
    return memory if await fill(scope, memory, count_received) else None


async def _gathered(receive: Receive, count_received: CountReceived) -> bytes:
    pieces: list[bytes] = []
    more = True
    while more:
        event = await receive()
        if event["type"] == _DISCONNECT:
            raise ClientGone
        pieces.append(event.get("body", b""))
        count_received(len(pieces[-1]))
        more = event.get("more_body", False)
    return b"".join(pieces)


def decode(decoder: msgspec.json.Decoder[_T], body: bytes | memoryview) -> _T:
    """Decode the JSON of a body; raises BadRequest."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from None
    except RecursionError:
        raise BadRequest("the JSON is nested too deeply") from None


def content_type(scope: Event) -> str:
    """The media type of the body, without parameters, in lower case; empty if there is none."""
    return header(scope, b"content-type").partition(";")[0].strip().lower()


def header(scope: Event, name: bytes) -> str:
    """The value of a header; empty if it is absent."""
    headers: Any = scope.get("headers", ())
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def require_type(scope: Event, *supported: str) -> str:
    """The media type of the body; raises ContentUnsupported unless it is one of `supported`."""
    media_type = content_type(scope)
    if media_type not in supported:
        problem = f"not {media_type}" if media_type else "and it is missing"
        raise ContentUnsupported(f"content-type must be {' or '.join(supported)}, {problem}")
    coding = header(scope, b"content-encoding").strip().lower()
    if coding not in ("", "identity"):
        raise ContentUnsupported(
            f"content-encoding {coding} is not supported: send the body unencoded"
        )
    return media_type


def require_json(scope: Event) -> None:
    """Raise ContentUnsupported unless the media type of the body is JSON."""
    require_type(scope, JSON)


def _announced(scope: Event) -> int:
    length = header(scope, b"content-length")
    return int(length) if length.isdecimal() else 0
