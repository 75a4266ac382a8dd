"""The dead-letter queue of a consumer: listed, queued again, emptied."""

from __future__ import annotations

from typing import Final

from penstock.delivery.channels.service import ChannelService
from penstock.doors.http.body import Bodies
from penstock.doors.http.channels import pages, paths
from penstock.doors.http.channels.access import Access, Asked
from penstock.doors.http.channels.jobs import dead_view
from penstock.doors.http.channels.pages import PAGE_SIZE, Place
from penstock.doors.http.channels.replies import BadRequest, empty, json, not_found
from penstock.doors.http.channels.requests import ChannelRequest, form, same
from penstock.doors.http.reply import Reply
from penstock.ledger.job_ids import message_id, message_offset
from penstock.ledger.job_states import OFFSET_LIMIT

_TOKEN_MUST_MATCH: Final = "`requeue` form param must match consumer token"  # noqa: S105


class DeadLetters:
    """Serves dead letters."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies
        self._access = Access(service)

    async def show(self, request: ChannelRequest) -> Reply:
        asked = await self._asked(request)
        ledger, key = asked.ledger, asked.channel.key.encode()
        wanted = pages.wanted(request)
        newer = wanted.newer and message_offset(key, wanted.newer.id)
        older = wanted.older and message_offset(key, wanted.older.id)
        if newer is not None:
            offsets = ledger.dead_behind(newer, PAGE_SIZE)[::-1]
        else:
            offsets = ledger.dead_before(OFFSET_LIMIT if older is None else older, PAGE_SIZE)
        views, places = [], []
        for offset in offsets:
            message = await self._access.message(asked, offset)
            facts = ledger.facts(offset)
            if message is not None and facts is not None:
                views.append(dead_view(asked, message, facts.changed_us))
                places.append(Place(message.timestamp_us, message_id(key, offset)))
        path = f"{paths.consumer(asked.channel.id, asked.consumer.id)}/dlq"
        links = pages.links(path, places[0], places[-1]) if places else {}
        return json({"DeadJobs": views, "Pages": links})

    async def requeue(self, request: ChannelRequest) -> Reply:
        fields = await form(request, self._bodies)
        asked = await self._asked(request)
        if not same(fields.get("requeue"), asked.consumer.token):
            raise BadRequest(_TOKEN_MUST_MATCH)
        jobs = asked.open.jobs
        change = asked.ledger.requeue(None, jobs.now_us())
        if change is not None:
            await jobs.keep(change)
            target = self._service.channels.target(asked.consumer)
            if target is not None:
                self._service.channels.workers.wake(target)
        return empty(202)

    async def purge(self, request: ChannelRequest) -> Reply:
        asked = await self._access.asked(request, unknown=not_found())
        jobs = asked.open.jobs
        change = asked.ledger.purge(None, jobs.now_us())
        if change is not None:
            await jobs.keep(change)
        return json({"deletedCount": 0 if change is None else change.jobs})

    async def _asked(self, request: ChannelRequest) -> Asked:
        channel = self._access.channel(request)
        return await self._access.ledger(channel, self._access.consumer(request, channel))
