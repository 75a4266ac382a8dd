"""Request bodies: limits of each body and of all bodies in memory, content types, decoding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from penstock.formats.api import JSON
from penstock.model.errors import Overloaded
from penstock.protocols.http.errors import BadRequest, BodyTooLarge, ContentUnsupported
from penstock.protocols.http.intake import EXTENSION, CountReceived, Fill
from penstock.protocols.http.reply import Event, Receive

IN_PLACE_BYTES_MIN: Final = 256 << 10
"""Smaller bodies have come with their heads, or nearly."""

_T = TypeVar("_T")
_DISCONNECT: Final = "http.disconnect"


class ClientGone(Exception):
    """The client closed its connection, so that no reply can be sent."""


class Bodies:
    """Reads bodies of at most `bytes_max`, and of `pending_bytes_max` at the same time."""

    def __init__(self, bytes_max: int, pending_bytes_max: int) -> None:
        self._bytes_max, self._pending_bytes_max = bytes_max, pending_bytes_max
        self.pending_bytes = 0

    @asynccontextmanager
    async def read(self, scope: Event, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body; what came of it counts as pending until the request is done with it.

        Raises BodyTooLarge, Overloaded, ClientGone.
        """
        with self._counted(scope) as arrived:
            yield await _gathered(receive, arrived)

    @asynccontextmanager
    async def read_in_place(
        self, scope: Event, receive: Receive
    ) -> AsyncIterator[bytes | memoryview]:
        """The same; a large one goes straight to where it stays, where the server can do that."""
        with self._counted(scope) as arrived:
            filled = await _filled(scope, arrived)
            yield await _gathered(receive, arrived) if filled is None else filled

    @contextmanager
    def _counted(self, scope: Event) -> Iterator[CountReceived]:
        """Counts what arrives of a body as pending; raises when that is, or gets, too much."""
        announced, size = _announced(scope), 0
        self._check(announced, announced)

        def arrived(more: int) -> None:
            nonlocal size
            self._check(size + more, more)
            self.pending_bytes += more
            size += more

        try:
            yield arrived
        finally:
            self.pending_bytes -= size

    def _check(self, size: int, more: int) -> None:
        """Raises when a body of this size, of which so much is not counted yet, is too much."""
        if size > self._bytes_max:
            raise BodyTooLarge(self._bytes_max)
        if self.pending_bytes + more > self._pending_bytes_max:
            raise Overloaded(
                "too much is being sent", "http.max_pending_bytes", self._pending_bytes_max
            )


async def _filled(scope: Event, arrived: CountReceived) -> memoryview | None:
    """A large body in memory of its own; None where it must be gathered."""
    fill: Fill | None = scope.get("extensions", {}).get(EXTENSION, {}).get("fill")
    if fill is None or (size := _announced(scope)) < IN_PLACE_BYTES_MIN:
        return None
    memory = np.empty(size, np.uint8).data
    return memory if await fill(scope, memory, arrived) else None


async def _gathered(receive: Receive, arrived: CountReceived) -> bytes:
    pieces: list[bytes] = []
    more = True
    while more:
        event = await receive()
        if event["type"] == _DISCONNECT:
            raise ClientGone
        pieces.append(event.get("body", b""))
        arrived(len(pieces[-1]))
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


def demand(scope: Event, *known: str) -> str:
    """The type of the body, which must be one of these; raises ContentUnsupported."""
    given = content_type(scope)
    if given not in known:
        told = f"not {given}" if given else "and it is missing"
        raise ContentUnsupported(f"content-type must be {' or '.join(known)}, {told}")
    coding = header(scope, b"content-encoding").strip().lower()
    if coding not in ("", "identity"):
        raise ContentUnsupported(f"content-encoding {coding} is not taken: send the body as it is")
    return given


def demand_json(scope: Event) -> None:
    """Raises ContentUnsupported when the body says it is something else."""
    demand(scope, JSON)


def _announced(scope: Event) -> int:
    length = header(scope, b"content-length")
    return int(length) if length.isdecimal() else 0
