"""POST /channel/{channel}/broadcast: a message to every consumer, now or at a time to come."""

from __future__ import annotations

from typing import Final

from penstock.delivery.channels.headers import HEADERS_MAX, ID_CHARACTERS_MAX, passed_on
from penstock.delivery.channels.messages import CONTENT_TYPE_DEFAULT, Outgoing, priority
from penstock.delivery.channels.service import ChannelService
from penstock.metadata.channel_records import Channel
from penstock.model.errors import FormatError
from penstock.model.times import parse_time_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels import paths
from penstock.protocols.http.channels.access import Access
from penstock.protocols.http.channels.replies import ChannelRefusal, empty
from penstock.protocols.http.channels.requests import same
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

_EMPTY: Final = "Necessary information missing for persistence"
_BAD_DATE: Final = (
    "invalid date format for X-Broker-Scheduled-For, expected ISO-8601/RFC3339 format"
)


class BroadcastCalls:
    """Serves broadcasts."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies
        self._access = Access(service)

    async def broadcast(self, request: Request) -> Reply:
        channel = self._access.known_channel(request)
        producer = self._producer(request)
        async with self._bodies.read(request.scope, request.receive) as data:
            payload = bytes(data)
            due = request.header(b"x-broker-scheduled-for")
            due_us = None if due is None else self._due(due)
            if not payload:
                raise BadRequest(_EMPTY)
            message = Outgoing(
                _id(request),
                producer,
                priority(request.header(b"x-broker-message-priority") or ""),
                request.header(b"content-type") or CONTENT_TYPE_DEFAULT,
                _metadata(request),
                payload,
            )
            try:
                if due_us is not None:
                    return await self._schedule(channel, message, due_us)
                sent = await self._service.broadcasts.send(channel, message)
            except FormatError as error:
                raise BadRequest(str(error)) from None
        if sent is None:
            raise ChannelRefusal(409, "duplicate message id for channel")
        return empty(201, (b"location", paths.message(channel.id, sent[0]).encode()))

    async def _schedule(self, channel: Channel, message: Outgoing, due_us: int) -> Reply:
        limit = self._service.settings.scheduled_bytes_max
        if len(message.payload) > limit:
            told = f"the limit channels.schedule.max_bytes is {limit}"
            raise ChannelRefusal(413, f"the message is too large to be scheduled: {told}")
        # Whatever cannot be stored later is refused now.
        message.block()
        id_ = await self._service.schedules.add(channel, message, due_us)
        if id_ is None:
            raise ChannelRefusal(409, "duplicate scheduled message id for channel")
        return empty(201, (b"location", paths.scheduled(channel.id, id_).encode()))

    def _producer(self, request: Request) -> str:
        producer = self._service.store.producers.get(request.header(b"x-broker-producer-id") or "")
        if producer is None:
            raise ChannelRefusal(401, "producer could not be found")
        if not same(request.header(b"x-broker-producer-token"), producer.token):
            raise ChannelRefusal(403, "producer token does not match")
        return producer.id

    def _due(self, told: str) -> int:
        try:
            due_us = parse_time_us(told)
        except (ValueError, OverflowError):
            raise BadRequest(_BAD_DATE) from None
        least = self._service.settings.schedule_delay_seconds_min
        if due_us < self._service.channels.clock.now_us() + least * 1_000_000:
            raise ChannelRefusal(
                412, f"scheduled time must be at least {_span(least)} in the future"
            )
        return due_us


def _span(seconds: int) -> str:
    return f"{seconds} seconds" if seconds % 60 else f"{seconds // 60} minutes"


def _id(request: Request) -> str:
    id_ = request.header(b"x-broker-message-id") or ""
    if len(id_) > ID_CHARACTERS_MAX:
        raise BadRequest(f"X-Broker-Message-ID may have {ID_CHARACTERS_MAX} characters")
    return id_


def _metadata(request: Request) -> list[tuple[str, str]]:
    """The headers to store with the message, without headers that may hold secrets."""
    listed = request.header(b"x-broker-metadata-headers")
    if not listed:
        return []
    names = dict.fromkeys(listed.split(","))
    if len(names) > HEADERS_MAX:
        raise BadRequest(f"X-Broker-Metadata-Headers may name {HEADERS_MAX} headers")
    found = []
    for name in names:
        value = request.header(name.lower().encode()) if passed_on(name) else None
        if value is not None:
            found.append((name, value))
    return found
