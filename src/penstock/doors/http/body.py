"""Bodies of requests: bounded one by one and all together, and read as what they say they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from penstock.doors.http.errors import BadRequest, Refused
from penstock.doors.http.reply import Event, Receive
from penstock.formats.api import JSON
from penstock.model.errors import Overloaded

_T = TypeVar("_T")
_DISCONNECT: Final = "http.disconnect"


class ClientGone(Exception):
    """The client closed its connection: nobody waits for an answer."""


class Bodies:
    """Reads bodies of at most `bytes_max`, and of `pending_bytes_max` at the same time."""

    def __init__(self, bytes_max: int, pending_bytes_max: int) -> None:
        self._bytes_max, self._pending_bytes_max = bytes_max, pending_bytes_max
        self.pending_bytes = 0

    @asynccontextmanager
    async def read(self, scope: Event, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body; what came of it counts as pending until the request is done with it.

        Raises Refused when it is too large, Overloaded, ClientGone.
        """
        self._check(_announced(scope), _announced(scope))
        pieces: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                event = await receive()
                if event["type"] == _DISCONNECT:
                    raise ClientGone
                pieces.append(event.get("body", b""))
                length, more = len(pieces[-1]), event.get("more_body", False)
                self._check(size + length, length)
                self.pending_bytes += length
                size += length
            yield b"".join(pieces)
        finally:
            self.pending_bytes -= size

    def _check(self, size: int, more: int) -> None:
        """Raises when a body of this size, of which so much is not counted yet, is too much."""
        if size > self._bytes_max:
            limit = f"the limit http.max_body_bytes is {self._bytes_max}"
            raise Refused(413, f"the body is too large: {limit}; send less at a time")
        if self.pending_bytes + more > self._pending_bytes_max:
            raise Overloaded(
                "too much is being sent", "http.max_pending_bytes", self._pending_bytes_max
            )


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """What the JSON of a body is; raises BadRequest."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from None
    except RecursionError:
        raise BadRequest("the JSON is nested too deeply") from None


def content_type(scope: Event) -> str:
    """Of the body, without its parameters, in lower case; empty when none is told."""
    return header(scope, b"content-type").partition(";")[0].strip().lower()


def header(scope: Event, name: bytes) -> str:
    """The value of a header, empty when it is not there."""
    headers: Any = scope.get("headers", ())
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def demand(scope: Event, *known: str) -> str:
    """The type of the body, which must be one of these; raises Refused."""
    given = content_type(scope)
    if given not in known:
        told = f"not {given}" if given else "and it is missing"
        raise Refused(415, f"content-type must be {' or '.join(known)}, {told}")
    return given


def demand_json(scope: Event) -> None:
    """Raises Refused when the body says it is something else."""
    demand(scope, JSON)


def _announced(scope: Event) -> int:
    length = header(scope, b"content-length")
    return int(length) if length.isdecimal() else 0
