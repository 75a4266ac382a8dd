"""Bodies of requests to the channel API, and comparison of tokens."""

from __future__ import annotations

import hmac
from typing import Final

from penstock.formats.api import FORM, JSON
from penstock.protocols.http import body
from penstock.protocols.http.channels.replies import ChannelRefusal
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Handler, Request, parse_fields

TEXT: Final = "text/plain"
IF_UNMODIFIED_SINCE: Final = b"if-unmodified-since"


def typed(handler: Handler, kind: str = JSON) -> Handler:
    """Wrap a handler so that it accepts bodies of this type only; others are refused with 415.

    A body without a type is accepted: clients of webhook-broker do not send one.
    """

    async def checked(request: Request) -> Reply:
        if body.content_type(request.scope) not in ("", kind):
            raise unsupported()
        return await handler(request)

    return checked


def unsupported() -> ChannelRefusal:
    return ChannelRefusal(415, "Media type not supported")


async def form(request: Request, bodies: body.Bodies) -> dict[str, str]:
    """The first value of each field of a form; raises ChannelRefusal if the body is not a form."""
    if body.content_type(request.scope) != FORM:
        raise unsupported()
    async with bodies.read(request.scope, request.receive) as data:
        return {name: values[0] for name, values in parse_fields(bytes(data)).items()}


def same(given: str | None, secret: str) -> bool:
    """Whether a token matches, compared in constant time."""
    return hmac.compare_digest((given or "").encode(), secret.encode())
