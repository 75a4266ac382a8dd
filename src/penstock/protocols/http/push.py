"""POST /v1/push: stores rows of several partitions, sent as JSON or as one Arrow stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.formats import api
from penstock.model.errors import FormatError, PartitionInvalid, PenstockError, RunInvalid
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import OffsetRange
from penstock.protocols.http import body, requests
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import demand
from penstock.protocols.http.errors import BadRequest, owner_of
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.requests import brief
from penstock.protocols.http.routes import Parameter, Request, Route
from penstock.protocols.http.shown import shown
from penstock.topics import Pusher, PushItem

BATCHES_MAX: Final = 10_000
"""Limit of the batches of one request."""

_DECODER: Final = msgspec.json.Decoder(api.PushRequest)
_EMPTY: Final = re.compile(rb"\s*\[\s*\]\s*")
_QUERY: Final = (
    Parameter("namespace", "With an Arrow stream: its namespace."),
    Parameter("topic", "With an Arrow stream: its topic."),
    Parameter("partition", 'With an Arrow stream: the tagged value, such as {"Int64":7}.'),
)


class Pushes:
    """Serves push requests."""

    def __init__(self, backend: Backend, pusher: Pusher) -> None:
        self._backend, self._pusher = backend, pusher

    def routes(self) -> list[Route]:
        replies = {200: api.PushReply, **dict.fromkeys((400, 413, 415, 429), api.ErrorReply)}
        summary = "Push rows; each batch is answered when it is as durable as its topic promises."
        route = Route("POST", "/v1/push", self.push, summary, replies, api.PushRequest, _QUERY)
        return [route._replace(arrow=True)]

    async def push(self, request: Request) -> Reply:
        kind = demand(request.scope, api.JSON, api.ARROW_STREAM)
        async with self._backend.bodies.read_in_place(request.scope, request.receive) as data:
            if kind == api.ARROW_STREAM:
                return _reply(await self._push_arrow(request, data))
            request.query()
            return _reply(await self._push_json(data))

    async def _push_json(self, data: bytes | memoryview) -> list[api.PushSuccess | api.PushError]:
        asked = body.decode(_DECODER, data)
        namespace = await requests.known_namespace(self._backend.admin, asked.namespace)
        if not asked.batches:
            raise BadRequest("no data provided")
        if len(asked.batches) > BATCHES_MAX:
            raise BadRequest(f"{len(asked.batches)} batches, the limit is {BATCHES_MAX}")
        places: dict[tuple[TopicName, PartitionValue | None], bytes] = {}
        for batch in asked.batches:
            name = requests.topic_within(namespace, batch.topic)
            place = name, requests.partition(batch.partition)
            if place in places:
                told = msgspec.json.encode(batch.partition).decode()
                raise BadRequest(f"duplicate batch for topic {batch.topic} partition {brief(told)}")
            places[place] = _some(bytes(batch.data))
        checked = [await self._checked(*place, rows) for place, rows in places.items()]
        return await self._answers(checked)

    async def _push_arrow(
        self, request: Request, data: bytes | memoryview
    ) -> list[api.PushSuccess | api.PushError]:
        query = request.query(*(parameter.name for parameter in _QUERY))
        for key in ("namespace", "topic"):
            if key not in query:
                raise BadRequest(f"query parameter {key} is missing")
        namespace = await requests.known_namespace(self._backend.admin, query["namespace"])
        name = requests.topic_within(namespace, query["topic"])
        value = requests.partition_text(query.get("partition"))
        try:
            items = await self._pusher.from_arrow(name, value, data)
        except FormatError as error:
            told = f"failed to parse Arrow data for topic {name.topic}: {brief(error)}"
            raise BadRequest(told) from None
        except PenstockError as error:
            return [_failed(error)]
        if not items:
            raise BadRequest("no data provided")
        answers = await self._answers(items)
        for item, answer in zip(items, answers, strict=True):
            if item.value != value:
                answer.partition = shown(item.value)
        return answers

    async def _checked(
        self, name: TopicName, value: PartitionValue | None, rows: bytes
    ) -> PushItem | PenstockError:
        try:
            return await self._pusher.from_json(name, value, rows)
        except FormatError as error:
            told = f"failed to parse JSON data for topic {name.topic}: {brief(error)}"
            raise BadRequest(told) from None
        except PenstockError as error:
            return error

    async def _answers(
        self, checked: Sequence[PushItem | PenstockError]
    ) -> list[api.PushSuccess | api.PushError]:
        """Push the valid items; returns a result for each item, in order."""
        items = [item for item in checked if isinstance(item, PushItem)]
        results = iter(await self._pusher.push(items) if items else ())
        return [_answer(next(results) if isinstance(c, PushItem) else c) for c in checked]


def _reply(answers: list[api.PushSuccess | api.PushError]) -> Reply:
    confirms = any(isinstance(answer, api.PushSuccess) for answer in answers)
    return Reply(200, api.PushReply(answers), confirms=confirms)


def _some(rows: bytes) -> bytes:
    if _EMPTY.fullmatch(rows):
        raise BadRequest("no data provided")
    return rows


def _answer(result: OffsetRange | PenstockError) -> api.PushSuccess | api.PushError:
    if isinstance(result, PenstockError):
        return _failed(result)
    return api.PushSuccess(result.first, result.next - 1)


def _failed(error: PenstockError) -> api.PushError:
    invalid = isinstance(error, PartitionInvalid | RunInvalid)
    message = f"validation error: {error}" if invalid else str(error)
    return api.PushError(message, error.code, owner_of(error))
