"""Objects that another engine made: one counts in the place of several, and leftovers go."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.formats import api, plan_api
from penstock.formats.bodies import ObjectRef
from penstock.protocols.http import body
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import demand_json
from penstock.protocols.http.errors import BadRequest, FetchOnly
from penstock.protocols.http.plan import TOPIC, opened_topic
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request, Route
from penstock.tiers import TopicTier

_DECODER: Final = msgspec.json.Decoder(plan_api.CompactRequest)
_SWEEP_DECODER: Final = msgspec.json.Decoder(plan_api.SweepRequest)


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
            ),
            Route(
                "POST",
                f"{TOPIC}/sweeps",
                self.sweep,
                "Remove objects of jobs that died, which nobody can make count any more.",
                {200: plan_api.SweepReply, **errors},
                plan_api.SweepRequest,
            ),
        ]

    async def compact(self, request: Request) -> Reply:
        request.query()
        demand_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            asked = body.decode(_DECODER, data)
        tier, compact = await self._tier(request), self._backend.compact
        if compact is None:
            raise FetchOnly
        made = asked.object
        ref = ObjectRef(made.key, 0, made.size_bytes, made.crc32c, made.etag)
        await compact(tier, asked.replaces, ref)
        return Reply(200, plan_api.CompactReply(len(tier.manifest.index)))

    async def sweep(self, request: Request) -> Reply:
        request.query()
        demand_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            body.decode(_SWEEP_DECODER, data)
        tier, sweep = await self._tier(request), self._backend.sweep
        if sweep is None:
            raise FetchOnly
        return Reply(200, plan_api.SweepReply(await sweep(tier)))

    async def _tier(self, request: Request) -> TopicTier:
        opened = await opened_topic(self._backend, request)
        if opened.tier is None:
            raise BadRequest("the topic lives in memory: it has no objects")
        return opened.tier
