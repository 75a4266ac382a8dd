"""Messages of a channel and messages for later, one by one and in pages, and how many there are."""

from __future__ import annotations

from typing import Any, Final

from penstock.delivery.channels.broadcast import id_of
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.messages import JobMessage
from penstock.delivery.channels.service import ChannelService
from penstock.ledger.job_ids import message_id, message_offset
from penstock.metadata.channel_records import Channel, Scheduled
from penstock.model.times import time_text_us
from penstock.protocols.http.channels import pages, paths
from penstock.protocols.http.channels.access import Access
from penstock.protocols.http.channels.pages import PAGE_SIZE, PageCursor
from penstock.protocols.http.channels.replies import ChannelRefusal, empty, json, not_found
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

ACKNOWLEDGED: Final = 101
DISPATCHED: Final = 102
SCHEDULED: Final = 101
STATUS_DIGITS_MAX: Final = 9
LOOKED_AT_MAX: Final = 100_000
"""Offsets of deleted messages that one page passes over."""


class MessagePages:
    """Serves messages."""

    def __init__(self, service: ChannelService) -> None:
        self._service, self._store = service, service.store
        self._access = Access(service)

    async def message(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        found = await self._service.broadcasts.message(channel, request.path["message"])
        if found is None:
            raise not_found()
        jobs = (await self._service.channels.find(channel)).jobs
        await jobs.catch_up()
        sent = found.offset < jobs.head
        return json(
            {
                "ID": id_of(channel, found),
                "Payload": text_of(found.payload),
                "ContentType": found.content_type,
                "ProducedBy": self._producer_name(found.producer),
                "ReceivedAt": time_text_us(found.timestamp_us),
                "DispatchedAt": time_text_us(found.timestamp_us),
                "Status": "DISPATCHED" if sent else "ACKNOWLEDGED",
                "Jobs": self._jobs(channel, jobs, found) if sent else [],
                "Headers": dict(found.headers),
            }
        )

    async def messages(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        jobs = (await self._service.channels.find(channel)).jobs
        await jobs.catch_up()
        asked = [text for text in request.values("status") if _is_number(text)]
        low, high = _range(jobs, {int(text) for text in asked})
        wanted, key = pages.wanted(request), channel.key.encode()
        older = wanted.older and message_offset(key, wanted.older.id)
        newer = wanted.newer and message_offset(key, wanted.newer.id)
        if newer is not None:
            found = (await _upward(jobs, max(newer + 1, low), high))[::-1]
        else:
            found = await _downward(jobs, low, high if older is None else min(older, high))
        ends = [
            PageCursor(m.timestamp_us, message_id(key, m.offset, m.timestamp_us))
            for m in found[:1] + found[-1:]
        ]
        path, kept = f"{paths.channel(channel.id)}/messages", "&".join(f"status={s}" for s in asked)
        return json(
            {
                "Result": [paths.message(channel.id, id_of(channel, m)) for m in found],
                "Pages": pages.links(path, ends[0], ends[-1], kept) if ends else {},
                "Links": None,
            }
        )

    async def messages_status(self, request: Request) -> Reply:
        channel = self._store.channels.get(request.path["channel"])
        if channel is None:
            return json({"counts": {}})
        jobs = (await self._service.channels.find(channel)).jobs
        await jobs.catch_up()
        fresh = max(jobs.partition.next_offset - jobs.head, 0)
        scheduled = list(self._store.scheduled(channel.id))
        unsent = sum(not one.sent_us for one in scheduled)
        path = paths.channel(channel.id)
        rows = [
            ("ACKNOWLEDGED", fresh, f"{path}/messages?status={ACKNOWLEDGED}"),
            (
                "DISPATCHED",
                jobs.partition.live_count - fresh,
                f"{path}/messages?status={DISPATCHED}",
            ),
            ("SCHEDULED_SCHEDULED", unsent, f"{path}/scheduled-messages?status=101"),
            (
                "SCHEDULED_DISPATCHED",
                len(scheduled) - unsent,
                f"{path}/scheduled-messages?status=102",
            ),
        ]
        counts = {key: {"Count": n, "Links": {"messages": url}} for key, n, url in rows if n > 0}
        answer: dict[str, Any] = {"counts": counts}
        if (due := self._service.schedules.next_us(channel.id)) is not None:
            answer["next_scheduled_message_at"] = time_text_us(due)
        return json(answer)

    # -- messages for later

    async def scheduled_messages(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        shelf, wanted = self._store.scheduled(channel.id), pages.wanted(request)
        status = request.value("status")
        if wanted.newer is not None:
            found = shelf.newer(wanted.newer, len(shelf))
        else:
            found = shelf.older(wanted.older, len(shelf))
        if status is not None and _is_number(status):
            found = [one for one in found if (one.sent_us == 0) == (int(status) == SCHEDULED)]
        page = found[-PAGE_SIZE:] if wanted.newer is not None else found[:PAGE_SIZE]
        ends = [PageCursor(one.created_us, one.id) for one in page[:1] + page[-1:]]
        path, kept = f"{paths.channel(channel.id)}/scheduled-messages", f"status={status}"
        links = pages.links(path, ends[0], ends[-1], kept if status else "") if ends else {}
        urls = [paths.scheduled(channel.id, one.id) for one in page]
        return json({"result": urls, "pages": links})

    async def scheduled_message(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        found = self._scheduled(request, channel)
        payload = found.payload
        if found.sent_us:
            sent = await self._service.broadcasts.message(channel, found.id)
            payload = b"" if sent is None else sent.payload
        return json(
            {
                "contentType": found.content_type,
                "dispatchSchedule": time_text_us(found.due_us),
                "dispatchedAt": time_text_us(found.sent_us) if found.sent_us else None,
                "headers": dict(found.headers),
                "id": found.id,
                "messageId": found.id,
                "payload": text_of(payload),
                "priority": found.priority,
                "producedBy": found.producer,
                "status": "DISPATCHED" if found.sent_us else "SCHEDULED",
            }
        )

    async def cancel(self, request: Request) -> Reply:
        channel = self._access.known_channel(request)
        found = self._scheduled(request, channel)
        if not await self._service.schedules.cancel(found):
            raise ChannelRefusal(409, "the message was sent already")
        return empty(204)

    # -- details

    def _scheduled(self, request: Request, channel: Channel) -> Scheduled:
        found = self._store.scheduled(channel.id).get(request.path["message"])
        if found is None:
            raise not_found()
        return found

    def _producer_name(self, id_: str) -> str:
        producer = self._store.producers.get(id_)
        return id_ if producer is None else producer.name

    def _jobs(
        self, channel: Channel, jobs: ChannelJobs, message: JobMessage
    ) -> list[dict[str, str]]:
        found = []
        for consumer in self._store.consumers(channel.id):
            ledger = jobs.ledgers.get(consumer.number)
            facts = None if ledger is None else ledger.facts(message.offset)
            if facts is not None:
                found.append(
                    {
                        "ListenerEndpoint": consumer.callback_url,
                        "ListenerName": consumer.name,
                        "Status": facts.state.name,
                        "StatusChangedAt": time_text_us(facts.changed_us or message.timestamp_us),
                    }
                )
        return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= STATUS_DIGITS_MAX


def text_of(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")


def _range(jobs: ChannelJobs, statuses: set[int]) -> tuple[int, int]:
    """The offsets of the messages with one of these statuses, or of all."""
    low, high = jobs.partition.start_offset, jobs.partition.next_offset
    if statuses and ACKNOWLEDGED not in statuses:
        high = min(high, jobs.head)  # type: ignore[assignment]
    if statuses and DISPATCHED not in statuses:
        low = max(low, jobs.head)  # type: ignore[assignment]
    return (low, low) if statuses and not statuses & {ACKNOWLEDGED, DISPATCHED} else (low, high)


async def _downward(jobs: ChannelJobs, low: int, stop: int) -> list[JobMessage]:
    """The last messages before `stop`, newest first."""
    found: list[JobMessage] = []
    least = max(low, stop - LOOKED_AT_MAX)
    for offset in range(stop - 1, least - 1, -1):
        if (stop - 1 - offset) % PAGE_SIZE == 0:
            # Read forward, from where the page ends if nothing is deleted.
            await jobs.message(max(least, offset - PAGE_SIZE + 1))
        message = await jobs.message(offset)
        if message is not None:
            found.append(message)
            if len(found) == PAGE_SIZE:
                break
    return found


async def _upward(jobs: ChannelJobs, first: int, stop: int) -> list[JobMessage]:
    """The first messages from here on, oldest first."""
    found: list[JobMessage] = []
    for offset in range(first, min(stop, first + LOOKED_AT_MAX)):
        message = await jobs.message(offset)
        if message is not None:
            found.append(message)
            if len(found) == PAGE_SIZE:
                break
    return found
