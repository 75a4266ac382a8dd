"""Plans of topics for readers that take objects from the bucket, and offsets by time."""

from __future__ import annotations

from typing import Final

from penstock.formats import api, plan_api
from penstock.metadata.catalog import PAGE_SIZE_MAX
from penstock.model import names
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, PartitionId
from penstock.protocols.http import requests
from penstock.protocols.http.admin import PAGE, page_of, topic_reply
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.errors import BadRequest, FetchOnly
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Parameter, Request, Route
from penstock.protocols.http.shown import shown
from penstock.topics import OpenTopic, Topics

TOPIC: Final = "/v1/tenants/{tenant}/namespaces/{namespace}/topics/{topic}"
_OBJECTS: Final = Parameter(
    "objects",
    "Whether to tell objects too; true when left out.",
    {"type": "string", "enum": ["true", "false"]},
)
_TIME: Final = Parameter(
    "timestamp",
    "Microseconds since 1970.",
    {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX},
    required=True,
)


class Planning:
    """Serves plans; only a topic's owner has them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        errors = dict.fromkeys((400, 404, 421, 503), api.ErrorReply)
        return [
            Route(
                "GET",
                f"{TOPIC}/plan",
                self.plan,
                "What a topic is made of now: partitions and objects, page by page.",
                {200: plan_api.PlanReply, 409: api.ErrorReply, **errors},
                parameters=(*PAGE, _OBJECTS),
            ),
            Route(
                "GET",
                f"{TOPIC}/offsets",
                self.offsets,
                "The first offsets that are not older than a time, page by page.",
                {200: plan_api.TimeOffsetList, **errors},
                parameters=(*PAGE, _TIME),
            ),
        ]

    async def plan(self, request: Request) -> Reply:
        query = request.query("page_size", "page_token", _OBJECTS.name)
        asked, plans = page_of(query), self._backend.plans
        told = query.get(_OBJECTS.name, "true")
        if told not in ("true", "false"):
            raise BadRequest("objects must be true or false")
        if plans is None:
            raise FetchOnly
        size = min(max(asked.size, 1), PAGE_SIZE_MAX)
        page = await plans.page(topic_name(request), asked.token, size, told == "true")
        return Reply(
            200,
            plan_api.PlanReply(
                topic_reply(page.topic), page.store, page.partitions, page.objects, page.next_token
            ),
        )

    async def offsets(self, request: Request) -> Reply:
        query = request.query("page_size", "page_token", _TIME.name)
        if _TIME.name not in query:
            raise BadRequest("timestamp is needed")
        time, asked = Microseconds(requests.offset(_TIME.name, query[_TIME.name])), page_of(query)
        opened = await opened_topic(self._backend, request)
        first = requests.offset("page_token", asked.token or "0")
        size = min(max(asked.size, 1), PAGE_SIZE_MAX)
        values = opened.partitions.slice(first, size + 1)
        found = [
            plan_api.TimeOffset(
                first + place,
                shown(value),
                await opened.partition(PartitionId(first + place)).offset_at(time),
            )
            for place, value in enumerate(values[:size])
        ]
        more = str(first + size) if len(values) > size else ""
        return Reply(200, plan_api.TimeOffsetList(found, more))


def topic_name(request: Request) -> TopicName:
    path = request.path
    namespace = names.namespace(f"{path['tenant']}/{path['namespace']}")
    return requests.topic_within(namespace, path["topic"])


async def opened_topic(backend: Backend, request: Request) -> OpenTopic:
    """The topic that the path names, where this broker owns it."""
    topics: Topics | None = backend.topics
    if topics is None:
        raise FetchOnly
    return await topics.find(topic_name(request))
