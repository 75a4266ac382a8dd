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
from penstock.protocols.http.body import require_type
from penstock.protocols.http.errors import BadRequest, owner_of
from penstock.protocols.http.message_json import partition_json
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.requests import shortened
from penstock.protocols.http.routes import Parameter, Request, Route
from penstock.topics import Pusher, PushItem

BATCHES_MAX: Final = 10_000
"""Limit of the number of batches in one request."""

_DECODER: Final = msgspec.json.Decoder(api.PushRequest)
_EMPTY: Final = re.compile(rb"\s*\[\s*\]\s*")
_QUERY: Final = (
    Parameter("namespace", "The namespace of the rows of an Arrow stream."),
    Parameter("topic", "The topic of the rows of an Arrow stream."),
    Parameter(
        "partition",
        'The tagged partition value of the rows of an Arrow stream, such as {"Int64":7}.',
    ),
)


class Pushes:
    """Serves push requests."""

    def __init__(self, backend: Backend, pusher: Pusher) -> None:
        self._backend, self._pusher = backend, pusher

    def routes(self) -> list[Route]:
        replies = {200: api.PushReply, **dict.fromkeys((400, 413, 415, 429), api.ErrorReply)}
        summary = "Append rows; the reply follows once each batch has its topic's durability."
        route = Route("POST", "/v1/push", self.push, summary, replies, api.PushRequest, _QUERY)
        return [route._replace(arrow=True)]

    async def push(self, request: Request) -> Reply:
        media_type = require_type(request.scope, api.JSON, api.ARROW_STREAM)
        async with self._backend.bodies.read_in_place(request.scope, request.receive) as data:
            if media_type == api.ARROW_STREAM:
                return _reply(await self._push_arrow(request, data))
            request.query()
            return _reply(await self._push_json(data))

    async def _push_json(self, data: bytes | memoryview) -> list[api.PushSuccess | api.PushError]:
        sent = body.decode(_DECODER, data)
        namespace = await requests.known_namespace(self._backend.admin, sent.namespace)
        if not sent.batches:
            raise BadRequest("no data provided")
        if len(sent.batches) > BATCHES_MAX:
            raise BadRequest(f"{len(sent.batches)} batches, the limit is {BATCHES_MAX}")
        rows_of: dict[tuple[TopicName, PartitionValue | None], bytes] = {}
        for batch in sent.batches:
            name = requests.topic_within(namespace, batch.topic)
            target = name, requests.partition(batch.partition)
            if target in rows_of:
                value = shortened(msgspec.json.encode(batch.partition).decode())
                raise BadRequest(f"duplicate batch for topic {batch.topic} partition {value}")
            rows_of[target] = _not_empty(bytes(batch.data))
        checked = [await self._checked(*target, rows) for target, rows in rows_of.items()]
        return await self._push_all(checked)

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
            reason = f"failed to parse Arrow data for topic {name.topic}: {shortened(error)}"
            raise BadRequest(reason) from None
        except PenstockError as error:
            return [_push_error(error)]
        if not items:
            raise BadRequest("no data provided")
        results = await self._push_all(items)
        for item, result in zip(items, results, strict=True):
            if item.value != value:
                result.partition = partition_json(item.value)
        return results

    async def _checked(
        self, name: TopicName, value: PartitionValue | None, rows: bytes
    ) -> PushItem | PenstockError:
        try:
            return await self._pusher.from_json(name, value, rows)
        except FormatError as error:
            reason = f"failed to parse JSON data for topic {name.topic}: {shortened(error)}"
            raise BadRequest(reason) from None
        except PenstockError as error:
            return error

    async def _push_all(
        self, checked: Sequence[PushItem | PenstockError]
    ) -> list[api.PushSuccess | api.PushError]:
        """Push the valid items; returns a result for each of `checked`, in order."""
        items = [item for item in checked if isinstance(item, PushItem)]
        pushed = iter(await self._pusher.push(items) if items else ())
        return [
            _push_result(next(pushed) if isinstance(item, PushItem) else item) for item in checked
        ]


def _reply(results: list[api.PushSuccess | api.PushError]) -> Reply:
    confirms = any(isinstance(result, api.PushSuccess) for result in results)
    return Reply(200, api.PushReply(results), confirms=confirms)


def _not_empty(rows: bytes) -> bytes:
    if _EMPTY.fullmatch(rows):
        raise BadRequest("no data provided")
    return rows


def _push_result(result: OffsetRange | PenstockError) -> api.PushSuccess | api.PushError:
    if isinstance(result, PenstockError):
        return _push_error(result)
    return api.PushSuccess(result.first, result.next - 1)


def _push_error(error: PenstockError) -> api.PushError:
    invalid = isinstance(error, PartitionInvalid | RunInvalid)
    message = f"validation error: {error}" if invalid else str(error)
    return api.PushError(message, error.code, owner_of(error))
