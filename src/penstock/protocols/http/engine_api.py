"""Routes for engines such as Spark that read and write objects in the bucket themselves.

A plan lists the objects of a topic, a link turns staged objects into messages, a compaction
replaces objects by one, and a sweep removes staged objects of failed jobs. Only the owner of a
topic serves them.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from penstock.formats import api, plan_api
from penstock.formats.admin_api import TOPIC
from penstock.formats.bodies import ObjectRef
from penstock.metadata.catalog import PAGE_SIZE_MAX
from penstock.model.limits import OFFSET_MAX
from penstock.model.units import Microseconds, PartitionId
from penstock.protocols.http import body, requests
from penstock.protocols.http.admin import PAGE, page_of, topic_reply
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import require_json
from penstock.protocols.http.errors import BadRequest, FetchOnly
from penstock.protocols.http.message_json import partition_json
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.requests import opened_topic, topic_name
from penstock.protocols.http.routes import Parameter, Request, Route
from penstock.tiers import TopicTier
from penstock.topics import Linked, LinkItem, OpenTopic, link

_OBJECTS: Final = Parameter(
    "objects",
    "Whether the plan lists objects; true by default.",
    {"type": "string", "enum": ["true", "false"]},
)
_TIMESTAMP: Final = Parameter(
    "timestamp",
    "Microseconds since 1970.",
    {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX},
    required=True,
)
_T = TypeVar("_T")
_LINK: Final = msgspec.json.Decoder(plan_api.LinkRequest)
_COMPACTION: Final = msgspec.json.Decoder(plan_api.CompactRequest)
_SWEEP: Final = msgspec.json.Decoder(plan_api.SweepRequest)


class EngineApi:
    """Serves plans, offsets by time, links, compactions and sweeps."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        reading = dict.fromkeys((400, 404, 421, 503), api.ErrorReply)
        writing = dict.fromkeys((400, 404, 413, 415, 421, 429, 503), api.ErrorReply)
        refused, conflict = {403: api.ErrorReply}, {409: api.ErrorReply}
        return [
            Route(
                "GET",
                f"{TOPIC.path}/plan",
                self.plan,
                "List the partitions and objects of a topic, page by page.",
                {200: plan_api.PlanReply, **conflict, **reading},
                parameters=(*PAGE, _OBJECTS),
            ),
            Route(
                "GET",
                f"{TOPIC.path}/offsets",
                self.offsets,
                "Find the first offset of each partition at or after a time, page by page.",
                {200: plan_api.TimeOffsetList, **reading},
                parameters=(*PAGE, _TIMESTAMP),
            ),
            Route(
                "POST",
                f"{TOPIC.path}/links",
                self.link,
                "Append the rows of staged objects to the topic, once for each epoch.",
                {200: plan_api.LinkReply, **refused, **writing},
                plan_api.LinkRequest,
            ),
            Route(
                "POST",
                f"{TOPIC.path}/compactions",
                self.compact,
                "Replace objects by one that contains the same messages.",
                {200: plan_api.CompactReply, **conflict, **writing},
                plan_api.CompactRequest,
            ),
            Route(
                "POST",
                f"{TOPIC.path}/sweeps",
                self.sweep,
                "Remove staged objects of failed jobs, which can no longer be linked.",
                {200: plan_api.SweepReply, **conflict, **writing},
                plan_api.SweepRequest,
            ),
        ]

    async def plan(self, request: Request) -> Reply:
        query = request.query("page_size", "page_token", _OBJECTS.name)
        page, plans = page_of(query), self._backend.plans
        with_objects = query.get(_OBJECTS.name, "true")
        if with_objects not in ("true", "false"):
            raise BadRequest("objects must be true or false")
        if plans is None:
            raise FetchOnly
        size = min(max(page.size, 1), PAGE_SIZE_MAX)
        plan = await plans.page(topic_name(request), page.token, size, with_objects == "true")
        return Reply(
            200,
            plan_api.PlanReply(
                topic_reply(plan.topic), plan.store, plan.partitions, plan.objects, plan.next_token
            ),
        )

    async def offsets(self, request: Request) -> Reply:
        query = request.query("page_size", "page_token", _TIMESTAMP.name)
        if _TIMESTAMP.name not in query:
            raise BadRequest("timestamp is needed")
        time = Microseconds(requests.offset(_TIMESTAMP.name, query[_TIMESTAMP.name]))
        page = page_of(query)
        opened = await opened_topic(self._backend, request)
        first = requests.offset("page_token", page.token or "0")
        size = min(max(page.size, 1), PAGE_SIZE_MAX)
        values = opened.partitions.slice(first, size + 1)
        offsets = [
            plan_api.TimeOffset(
                number,
                partition_json(value),
                await opened.partition(PartitionId(number)).offset_at(time),
            )
            for number, value in enumerate(values[:size], first)
        ]
        next_token = str(first + size) if len(values) > size else ""
        return Reply(200, plan_api.TimeOffsetList(offsets, next_token))

    async def link(self, request: Request) -> Reply:
        sent = await self._body(request, _LINK)
        opened = await opened_topic(self._backend, request)
        staged = [_staged(item) for item in sent.objects]
        linked = await link(opened, sent.app, sent.epoch, staged)
        return Reply(200, _link_reply(opened, linked), confirms=True)

    async def compact(self, request: Request) -> Reply:
        sent = await self._body(request, _COMPACTION)
        tier, compact = await self._tier(request), self._backend.compact
        if compact is None:
            raise FetchOnly
        compacted = sent.object
        ref = ObjectRef(compacted.key, 0, compacted.size_bytes, compacted.crc32c, compacted.etag)
        await compact(tier, sent.replaces, ref)
        return Reply(200, plan_api.CompactReply(len(tier.manifest.index)))

    async def sweep(self, request: Request) -> Reply:
        await self._body(request, _SWEEP)
        tier, sweep = await self._tier(request), self._backend.sweep
        if sweep is None:
            raise FetchOnly
        return Reply(200, plan_api.SweepReply(await sweep(tier)))

    async def _body(self, request: Request, decoder: msgspec.json.Decoder[_T]) -> _T:
        """Read and decode the JSON of a request that has no query parameters."""
        request.query()
        require_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            return body.decode(decoder, data)

    async def _tier(self, request: Request) -> TopicTier:
        opened = await opened_topic(self._backend, request)
        if opened.tier is None:
            raise BadRequest("the topic is stored in memory: it has no objects")
        return opened.tier


def _staged(item: plan_api.StagedObject) -> LinkItem:
    ref = ObjectRef(item.key, item.rows, item.size_bytes, item.crc32c, item.etag)
    return LinkItem(ref, requests.partition(item.partition_value))


def _link_reply(opened: OpenTopic, linked: Linked) -> plan_api.LinkReply:
    ranges = [
        plan_api.LinkRange(
            partition,
            partition_json(opened.partitions.slice(partition, 1)[0]),
            offsets.first,
            offsets.next,
        )
        for partition, offsets in sorted(linked.ranges.items())
    ]
    return plan_api.LinkReply(ranges, linked.repeated)
