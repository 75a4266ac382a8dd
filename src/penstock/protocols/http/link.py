"""POST .../links: objects that another engine staged in the bucket become messages of a topic."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.formats import api, plan_api
from penstock.formats.bodies import ObjectRef
from penstock.protocols.http import body, requests
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import demand_json
from penstock.protocols.http.plan import TOPIC, opened_topic
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request, Route
from penstock.protocols.http.shown import shown
from penstock.topics import Linked, LinkItem, OpenTopic, link

_DECODER: Final = msgspec.json.Decoder(plan_api.LinkRequest)


class Linking:
    """Serves links."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        errors = dict.fromkeys((400, 403, 404, 413, 415, 421, 429, 503), api.ErrorReply)
        summary = "Give offsets to rows that lie in staged objects, once for each epoch."
        replies = {200: plan_api.LinkReply, **errors}
        return [Route("POST", f"{TOPIC}/links", self.link, summary, replies, plan_api.LinkRequest)]

    async def link(self, request: Request) -> Reply:
        request.query()
        demand_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            asked = body.decode(_DECODER, data)
        opened = await opened_topic(self._backend, request)
        staged = [_staged(item) for item in asked.objects]
        linked = await link(opened, asked.app, asked.epoch, staged)
        return Reply(200, _reply(opened, linked), confirms=True)


def _staged(item: plan_api.StagedObject) -> LinkItem:
    ref = ObjectRef(item.key, item.rows, item.size_bytes, item.crc32c, item.etag)
    return LinkItem(ref, requests.partition(item.partition_value))


def _reply(opened: OpenTopic, linked: Linked) -> plan_api.LinkReply:
    ranges = [
        plan_api.LinkRange(
            partition, shown(opened.partitions.slice(partition, 1)[0]), given.first, given.next
        )
        for partition, given in sorted(linked.ranges.items())
    ]
    return plan_api.LinkReply(ranges, linked.repeated)
