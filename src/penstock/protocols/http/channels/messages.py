"""Handlers for messages: broadcast them now or later, show and list them, cancel scheduled ones."""

from __future__ import annotations

from typing import Any, Final

from penstock.delivery.channels import (
    CONTENT_TYPE_DEFAULT,
    HEADERS_MAX,
    ID_CHARACTERS_MAX,
    PAGE_SIZE,
    Channel,
    ChannelService,
    NewMessage,
    PageCursor,
    ScheduledMessage,
    may_pass,
    parse_priority,
)
from penstock.model.errors import FormatError
from penstock.model.times import parse_time_us, time_text_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.replies import (
    ChannelRefusal,
    channel_path,
    empty,
    json_reply,
    message_path,
    page_links,
    public_url,
    scheduled_path,
    text_of,
)
from penstock.protocols.http.channels.requests import Access, cursor_query, existing, tokens_match
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

ACKNOWLEDGED: Final = 101
DISPATCHED: Final = 102
SCHEDULED: Final = 101
STATUS_DIGITS_MAX: Final = 9
_EMPTY: Final = "Necessary information missing for persistence"
_BAD_DATE: Final = (
    "invalid date format for X-Broker-Scheduled-For, expected ISO-8601/RFC3339 format"
)


class BroadcastHandlers:
    """Accepts messages for all consumers of a channel."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies
        self._access = Access(service)

    async def broadcast(self, request: Request) -> Reply:
        channel = self._access.known_channel(request)
        producer = self._producer_id(request)
        async with self._bodies.read(request.scope, request.receive) as data:
            payload = bytes(data)
            due_us = self._due_us(request)
            if not payload:
                raise BadRequest(_EMPTY)
            message = NewMessage(
                _message_id(request),
                producer,
                parse_priority(request.header(b"x-broker-message-priority") or ""),
                request.header(b"content-type") or CONTENT_TYPE_DEFAULT,
                _metadata_headers(request),
                payload,
            )
            try:
                if due_us is not None:
                    return await self._schedule(channel, message, due_us)
                id_ = await self._service.broadcasts.send(channel, message)
            except FormatError as error:
                raise BadRequest(str(error)) from None
        if id_ is None:
            raise ChannelRefusal(409, "duplicate message id for channel")
        return empty(201, (b"location", message_path(channel.id, id_).encode()))

    async def _schedule(self, channel: Channel, message: NewMessage, due_us: int) -> Reply:
        limit = self._service.settings.scheduled_bytes_max
        if len(message.payload) > limit:
            reason = f"the limit channels.schedule.max_bytes is {limit}"
            raise ChannelRefusal(413, f"the message is too large to be scheduled: {reason}")
        # Headers that cannot be stored must be refused now, not when the message is due.
        message.encode_headers()
        id_ = await self._service.scheduled.add(channel, message, due_us)
        if id_ is None:
            raise ChannelRefusal(409, "duplicate scheduled message id for channel")
        return empty(201, (b"location", scheduled_path(channel.id, id_).encode()))

    def _producer_id(self, request: Request) -> str:
        id_ = request.header(b"x-broker-producer-id") or ""
        producer = self._service.records.producers.get(id_)
        if producer is None:
            raise ChannelRefusal(401, "producer could not be found")
        if not tokens_match(request.header(b"x-broker-producer-token"), producer.token):
            raise ChannelRefusal(403, "producer token does not match")
        return producer.id

    def _due_us(self, request: Request) -> int | None:
        """When to broadcast the message; None for now."""
        text = request.header(b"x-broker-scheduled-for")
        if text is None:
            return None
        try:
            due_us = parse_time_us(text)
        except (ValueError, OverflowError):
            raise BadRequest(_BAD_DATE) from None
        minimum = self._service.settings.schedule_delay_seconds_min
        if due_us < self._service.clock.now_us() + minimum * 1_000_000:
            raise ChannelRefusal(
                412, f"scheduled time must be at least {_duration(minimum)} in the future"
            )
        return due_us


def _duration(seconds: int) -> str:
    return f"{seconds} seconds" if seconds % 60 else f"{seconds // 60} minutes"


def _message_id(request: Request) -> str:
    id_ = request.header(b"x-broker-message-id") or ""
    if len(id_) > ID_CHARACTERS_MAX:
        raise BadRequest(f"X-Broker-Message-ID may have {ID_CHARACTERS_MAX} characters")
    return id_


def _metadata_headers(request: Request) -> list[tuple[str, str]]:
    """The headers to store with the message, without headers that may hold secrets."""
    listed = request.header(b"x-broker-metadata-headers")
    if not listed:
        return []
    names = dict.fromkeys(listed.split(","))
    if len(names) > HEADERS_MAX:
        raise BadRequest(f"X-Broker-Metadata-Headers may name {HEADERS_MAX} headers")
    headers = []
    for name in names:
        value = request.header(name.lower().encode()) if may_pass(name) else None
        if value is not None:
            headers.append((name, value))
    return headers


class MessageHandlers:
    """Shows, lists and counts messages, stored and scheduled."""

    def __init__(self, service: ChannelService) -> None:
        self._records, self._access = service.records, Access(service)
        self._broadcasts, self._scheduled = service.broadcasts, service.scheduled

    async def show(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        found = existing(await self._broadcasts.details(channel, request.path["message"]))
        message = found.message
        producer = self._records.producers.get(message.producer)
        return json_reply(
            {
                "ID": found.id,
                "Payload": text_of(message.payload),
                "ContentType": message.content_type,
                "ProducedBy": message.producer if producer is None else producer.name,
                "ReceivedAt": time_text_us(message.timestamp_us),
                "DispatchedAt": time_text_us(message.timestamp_us),
                "Status": "DISPATCHED" if found.dispatched else "ACKNOWLEDGED",
                "Jobs": [
                    {
                        "ListenerEndpoint": public_url(job.endpoint.callback_url),
                        "ListenerName": job.endpoint.name,
                        "Status": job.state.name,
                        "StatusChangedAt": time_text_us(job.changed_us),
                    }
                    for job in found.jobs
                ],
                "Headers": dict(message.headers),
            }
        )

    async def list(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        texts = [text for text in request.values("status") if _is_number(text)]
        statuses = {int(text) for text in texts} or {ACKNOWLEDGED, DISPATCHED}
        messages = await self._broadcasts.page(
            channel,
            cursor_query(request),
            acknowledged=ACKNOWLEDGED in statuses,
            dispatched=DISPATCHED in statuses,
        )
        cursors = [PageCursor(m.timestamp_us, m.assigned_id(channel.key)) for m in messages]
        path = f"{channel_path(channel.id)}/messages"
        query = "&".join(f"status={text}" for text in texts)
        ids = [message.public_id(channel.key) for message in messages]
        return json_reply(
            {
                "Result": [message_path(channel.id, id_) for id_ in ids],
                "Pages": page_links(path, cursors, query),
                "Links": None,
            }
        )

    async def count(self, request: Request) -> Reply:
        channel = self._records.channels.get(request.path["channel"])
        if channel is None:
            return json_reply({"counts": {}})
        stored = await self._broadcasts.counts(channel)
        scheduled = list(self._scheduled.in_channel(channel.id))
        unsent = sum(not message.sent_us for message in scheduled)
        path = channel_path(channel.id)
        rows = [
            ("ACKNOWLEDGED", stored.acknowledged, f"messages?status={ACKNOWLEDGED}"),
            ("DISPATCHED", stored.dispatched, f"messages?status={DISPATCHED}"),
            ("SCHEDULED_SCHEDULED", unsent, "scheduled-messages?status=101"),
            ("SCHEDULED_DISPATCHED", len(scheduled) - unsent, "scheduled-messages?status=102"),
        ]
        view: dict[str, Any] = {
            "counts": {
                key: {"Count": count, "Links": {"messages": f"{path}/{link}"}}
                for key, count, link in rows
                if count > 0
            }
        }
        if (due_us := self._scheduled.next_us(channel.id)) is not None:
            view["next_scheduled_message_at"] = time_text_us(due_us)
        return json_reply(view)

    # -- scheduled messages

    async def list_scheduled(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        table, query = self._scheduled.in_channel(channel.id), cursor_query(request)
        found = table.page(query, len(table))
        status = request.value("status")
        if status is not None and _is_number(status):
            unsent = int(status) == SCHEDULED
            found = [message for message in found if (message.sent_us == 0) == unsent]
        page = found[-PAGE_SIZE:] if query.newer is not None else found[:PAGE_SIZE]
        cursors = [PageCursor(message.created_us, message.id) for message in page]
        path = f"{channel_path(channel.id)}/scheduled-messages"
        links = page_links(path, cursors, f"status={status}" if status else "")
        urls = [scheduled_path(channel.id, message.id) for message in page]
        return json_reply({"result": urls, "pages": links})

    async def show_scheduled(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        scheduled = self._scheduled_message(request, channel)
        payload = scheduled.payload
        if scheduled.sent_us:
            message = await self._broadcasts.message(channel, scheduled.id)
            payload = b"" if message is None else message.payload
        return json_reply(
            {
                "contentType": scheduled.content_type,
                "dispatchSchedule": time_text_us(scheduled.due_us),
                "dispatchedAt": time_text_us(scheduled.sent_us) if scheduled.sent_us else None,
                "headers": dict(scheduled.headers),
                "id": scheduled.id,
                "messageId": scheduled.id,
                "payload": text_of(payload),
                "priority": scheduled.priority,
                "producedBy": scheduled.producer,
                "status": "DISPATCHED" if scheduled.sent_us else "SCHEDULED",
            }
        )

    async def cancel_scheduled(self, request: Request) -> Reply:
        channel = self._access.known_channel(request)
        if not await self._scheduled.cancel(self._scheduled_message(request, channel)):
            raise ChannelRefusal(409, "the message was sent already")
        return empty(204)

    def _scheduled_message(self, request: Request, channel: Channel) -> ScheduledMessage:
        return existing(self._scheduled.in_channel(channel.id).get(request.path["message"]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= STATUS_DIGITS_MAX
