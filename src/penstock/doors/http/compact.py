"""POST .../compactions: an object that another engine made in the place of several."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.doors.http import body
from penstock.doors.http.backend import Backend
from penstock.doors.http.body import demand_json
from penstock.doors.http.errors import MISDIRECTED, BadRequest, Refused
from penstock.doors.http.plan import TOPIC, opened_topic
from penstock.doors.http.reply import Reply
from penstock.doors.http.routes import Request, Route
from penstock.formats import api, plan_api
from penstock.formats.bodies import ObjectRef

_DECODER: Final = msgspec.json.Decoder(plan_api.CompactRequest)


class Compacting:
    """Serves compactions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        errors = dict.fromkeys((400, 404, 409, 413, 415, 421, 429, 503), api.ErrorReply)
        summary = "Let an object count in the place of those it was made from."
        replies = {200: plan_api.CompactReply, **errors}
        return [
            Route(
                "POST",
                f"{TOPIC}/compactions",
                self.compact,
                summary,
                replies,
                plan_api.CompactRequest,
            )
        ]

    async def compact(self, request: Request) -> Reply:
        request.query()
        demand_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            asked = body.decode(_DECODER, data)
        opened, compact = await opened_topic(self._backend, request), self._backend.compact
        if compact is None:
            raise Refused(MISDIRECTED, "this node only fetches; ask a broker")
        if opened.tier is None:
            raise BadRequest("the topic lives in memory: it has no objects")
        made = asked.object
        ref = ObjectRef(made.key, 0, made.size_bytes, made.crc32c, made.etag)
        await compact(opened.tier, asked.replaces, ref)
        return Reply(200, plan_api.CompactReply(len(opened.tier.manifest.index)))
