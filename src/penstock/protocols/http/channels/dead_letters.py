"""The dead-letter queue of a consumer: listed, queued again, emptied."""

from __future__ import annotations

from typing import Final

from penstock.delivery.channels.consumer_jobs import ConsumerJobs
from penstock.delivery.channels.service import ChannelService
from penstock.ledger.job_ids import message_id, message_offset
from penstock.ledger.job_states import OFFSET_LIMIT
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels import pages, paths
from penstock.protocols.http.channels.access import Access
from penstock.protocols.http.channels.jobs import dead_view
from penstock.protocols.http.channels.pages import PAGE_SIZE, PageCursor
from penstock.protocols.http.channels.replies import empty, json, not_found
from penstock.protocols.http.channels.requests import form, same
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

_TOKEN_MUST_MATCH: Final = "`requeue` form param must match consumer token"  # noqa: S105


class DeadLetters:
    """Serves dead letters."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies
        self._access = Access(service)

    async def show(self, request: Request) -> Reply:
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
            message = await asked.message(offset)
            facts = ledger.facts(offset)
            if message is not None and facts is not None:
                views.append(dead_view(asked, message, facts.changed_us))
                places.append(
                    PageCursor(message.timestamp_us, message_id(key, offset, message.timestamp_us))
                )
        path = f"{paths.consumer(asked.channel.id, asked.consumer.id)}/dlq"
        links = pages.links(path, places[0], places[-1]) if places else {}
        return json({"DeadJobs": views, "Pages": links})

    async def requeue(self, request: Request) -> Reply:
        fields = await form(request, self._bodies)
        asked = await self._asked(request)
        if not same(fields.get("requeue"), asked.consumer.token):
            raise BadRequest(_TOKEN_MUST_MATCH)
        await asked.requeue()
        return empty(202)

    async def purge(self, request: Request) -> Reply:
        asked = await self._access.asked(request, unknown=not_found())
        return json({"deletedCount": await asked.purge()})

    async def _asked(self, request: Request) -> ConsumerJobs:
        channel = self._access.channel(request)
        return await self._service.jobs(channel, self._access.consumer(request, channel))
