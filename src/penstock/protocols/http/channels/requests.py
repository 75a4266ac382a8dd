"""What requests to the channel API contain: ids, tokens, forms, cursors, numbers."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final, TypeVar

from penstock.delivery.channels import (
    PULL,
    Channel,
    ChannelService,
    CursorQuery,
    Endpoint,
    EndpointJobs,
    JobOfAnotherEndpoint,
    JobUnknown,
    PageCursor,
    Versioned,
)
from penstock.formats.api import FORM, JSON
from penstock.model.times import parse_time_us
from penstock.protocols.http import body
from penstock.protocols.http.channels.replies import ChannelRefusal, not_found
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Handler, Request, parse_fields

TEXT: Final = "text/plain"
CHANNEL_TOKEN: Final = b"x-broker-channel-token"
CONSUMER_TOKEN: Final = b"x-broker-consumer-token"
_TWO_CURSORS: Final = (
    "can not decide on pagination direction! Both after and before provided or pagination is nil"
)
_T = TypeVar("_T")


class Access:
    """Finds what a request names and compares its tokens; raises ChannelRefusal."""

    def __init__(self, service: ChannelService) -> None:
        self._service, self._records = service, service.records

    def channel(self, request: Request) -> Channel:
        """The channel in the path, without a token."""
        return existing(self._records.channels.find(request.path["channel"])).entity

    def known_channel(self, request: Request) -> Channel:
        """The channel in the path; the request must have its token."""
        channel = self.channel(request)
        if not tokens_match(request.header(CHANNEL_TOKEN), channel.token):
            raise ChannelRefusal(403, "channel token does not match")
        return channel

    def endpoint(self, request: Request) -> Versioned[Endpoint]:
        """The endpoint in the path, without a token."""
        endpoints = self._records.endpoints(self.channel(request).id)
        return existing(endpoints.find(request.path["consumer"]))

    async def public_jobs(self, request: Request) -> EndpointJobs:
        """The jobs of the endpoint in the path, without a token."""
        return await self._service.jobs(self.channel(request), self.endpoint(request).entity)

    async def jobs(
        self, request: Request, *, pull: bool = False, unknown: ChannelRefusal | None = None
    ) -> EndpointJobs:
        """The jobs of the endpoint in the path; the request must have both tokens.

        With `pull` the endpoint must be one that pulls. Raises `unknown` if there is no endpoint.
        """
        channel = self.known_channel(request)
        endpoint = self._records.endpoints(channel.id).get(request.path["consumer"])
        if endpoint is None:
            raise unknown or ChannelRefusal(401, "consumer could not be found")
        if not tokens_match(request.header(CONSUMER_TOKEN), endpoint.token):
            raise ChannelRefusal(403, "consumer token does not match")
        if pull and endpoint.type != PULL:
            raise ChannelRefusal(412, "consumer not pull based")
        return await self._service.jobs(channel, endpoint)

    async def own_endpoint(self, request: Request) -> Endpoint:
        """The endpoint in the path; the request must have both tokens."""
        return (await self.jobs(request)).endpoint

    def job(self, request: Request, jobs: EndpointJobs, *, foreign_status: int = 401) -> int:
        """The offset of the job in the path; `foreign_status` is for another endpoint's job."""
        try:
            return jobs.find(request.path["job"])
        except JobOfAnotherEndpoint as error:
            raise ChannelRefusal(foreign_status, str(error)) from None
        except JobUnknown as error:
            raise ChannelRefusal(404, str(error)) from None


def existing(found: _T | None) -> _T:
    """What was found; raises ChannelRefusal if it is None."""
    if found is None:
        raise not_found()
    return found


def tokens_match(token: str | None, secret: str) -> bool:
    """Whether a token is the right one, compared in constant time."""
    return hmac.compare_digest((token or "").encode(), secret.encode())


# -- bodies


def typed(handler: Handler, kind: str = JSON) -> Handler:
    """Wrap a handler so that it accepts bodies of one type only; others are refused with 415.

    A body without a type is accepted: clients of webhook-broker do not send one.
    """

    async def checked(request: Request) -> Reply:
        if body.content_type(request.scope) not in ("", kind):
            raise _unsupported()
        return await handler(request)

    return checked


async def form(request: Request, bodies: body.Bodies) -> dict[str, str]:
    """The first value of each field of a form; raises ChannelRefusal if the body is not a form."""
    if body.content_type(request.scope) != FORM:
        raise _unsupported()
    async with bodies.read(request.scope, request.receive) as data:
        return {name: values[0] for name, values in parse_fields(bytes(data)).items()}


def _unsupported() -> ChannelRefusal:
    return ChannelRefusal(415, "Media type not supported")


def whole_number(name: str, text: str, maximum: int) -> int:
    """A number from 0 to `maximum`; raises BadRequest."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) > maximum:
        raise BadRequest(f"{name} must be a whole number from 0 to {maximum}")
    return int(text)


# -- cursors: base64 of "id|time"; ?next= lists older items, ?previous= newer ones


def cursor_query(request: Request) -> CursorQuery:
    """The page that a request asks for; a cursor that cannot be decoded asks for the first page."""
    older, newer = request.value("next"), request.value("previous")
    if older and newer:
        raise BadRequest(_TWO_CURSORS)
    return CursorQuery(_decoded_cursor(older), None if older else _decoded_cursor(newer))


def _decoded_cursor(text: str | None) -> PageCursor | None:
    if not text:
        return None
    try:
        id_, bar, time = base64.b64decode(text, validate=True).decode().rpartition("|")
        return PageCursor(parse_time_us(time), id_) if bar else None
    except (binascii.Error, ValueError, OverflowError):
        return None
