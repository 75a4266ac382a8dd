"""What a request to the channel API says."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from penstock.doors.http import body
from penstock.doors.http.channels.replies import BadRequest, Plain
from penstock.doors.http.reply import Event, Receive

FORM: Final = "application/x-www-form-urlencoded"
FIELDS_MAX: Final = 100
IF_UNMODIFIED_SINCE: Final = b"if-unmodified-since"


@dataclass(slots=True)
class ChannelRequest:
    """One request, on its way to its handler."""

    scope: Event
    receive: Receive
    path: dict[str, str]
    """What stands in the place of the names of its route."""

    def header(self, name: bytes) -> str | None:
        """The first value of a header, by its name in lower case."""
        for key, value in self.scope["headers"]:
            if key == name:
                return text_of(value)
        return None

    def query(self) -> dict[str, list[str]]:
        """Parameters behind the path, each with all its values."""
        return _fields(self.scope.get("query_string", b""))

    def single(self, name: str) -> str | None:
        """The first value of a parameter."""
        return next(iter(self.query().get(name, ())), None)


async def form(request: ChannelRequest, bodies: body.Bodies) -> dict[str, str]:
    """The fields of a form, the first of each name; raises Plain when it is none."""
    if body.content_type(request.scope) != FORM:
        raise Plain(415, "Media type not supported")
    async with bodies.read(request.scope, request.receive) as data:
        return {name: values[0] for name, values in _fields(bytes(data)).items()}


def same(given: str | None, secret: str) -> bool:
    """Whether a token is the right one, in a time that tells nothing of it."""
    return hmac.compare_digest((given or "").encode(), secret.encode())


def text_of(value: bytes) -> str:
    """A header's value: UTF-8 where it is that, else byte by byte."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _fields(data: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        text = data.decode("ascii")
        for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX):
            found.setdefault(name, []).append(value)
    except ValueError:
        raise BadRequest("fields are not percent-encoded, or there are too many") from None
    return found
