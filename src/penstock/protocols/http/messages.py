"""GET /v1/topics/{tenant}/{namespace}/{topic}/messages: one message, by offset or by subject."""

from __future__ import annotations

from typing import Any, Final

from penstock.formats import api
from penstock.model import names
from penstock.model.batch import Gone
from penstock.model.errors import NameInvalid, OffsetGone
from penstock.model.limits import OFFSET_MAX
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.protocols.http import requests
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.errors import BadRequest, FetchOnly, MessageUnknown
from penstock.protocols.http.message_json import messages_json
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Parameter, Request, Route
from penstock.topics import TopicPartition

_SELECTORS: Final = ("offset", "last_by_subject", "next_by_subject")
_OFFSET: Final = {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX}
_QUERY: Final = (
    Parameter("offset", "The message at this offset.", _OFFSET),
    Parameter("last_by_subject", "The last message whose subject matches; wildcards allowed."),
    Parameter("next_by_subject", "The first message at or after `from` whose subject matches."),
    Parameter("from", "The first offset for next_by_subject; 0 by default.", _OFFSET),
    Parameter("partition_value", 'The tagged value of the partition, such as {"Int64":7}.'),
)


class Messages:
    """Returns single messages."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        replies = {200: dict[str, Any], **dict.fromkeys((400, 404, 421, 503), api.ErrorReply)}
        path = "/v1/topics/{tenant}/{namespace}/{topic}/messages"
        summary = "One message, by its offset or by its subject."
        return [Route("GET", path, self.get, summary, replies, parameters=_QUERY)]

    async def get(self, request: Request) -> Reply:
        query = request.query(*(parameter.name for parameter in _QUERY))
        selectors = [selector for selector in _SELECTORS if selector in query]
        if len(selectors) != 1:
            raise BadRequest(f"exactly one of {', '.join(_SELECTORS)} is needed")
        if "from" in query and selectors != ["next_by_subject"]:
            raise BadRequest("from is only valid with next_by_subject")
        value = requests.partition_text(query.get("partition_value"))
        path = request.path
        namespace = names.namespace(f"{path['tenant']}/{path['namespace']}")
        name = requests.topic_within(namespace, path["topic"])
        topic = await self._backend.admin.get_topic(name)
        topic.check_partition(value)
        if "offset" in query:
            offset = requests.offset("offset", query["offset"])
        else:
            start = requests.offset("from", query.get("from", "0"))
            last = query.get("last_by_subject")
            chosen = _filter(query["next_by_subject"] if last is None else last)
            offset = await self._find(topic, value, chosen, None if last is not None else start)
        return Reply(200, await self._message(TopicPartition(topic, value), offset))

    async def _find(
        self, topic: Topic, value: PartitionValue | None, chosen: Filter, start: Offset | None
    ) -> Offset:
        """The first matching offset at or after `start`, or the last one if that is None."""
        if self._backend.topics is None:
            raise FetchOnly("this node only fetches; ask a broker by subject")
        opened = await self._backend.topics.find(topic.name)
        partition = opened.partitions.find(value)
        offset = None
        if partition is not None:
            subjects = opened.partition(partition).subjects
            offset = await (
                subjects.last(chosen) if start is None else subjects.next(chosen, start)
            )
        if offset is None:
            where = "" if start is None else f" at or after offset {start}"
            raise MessageUnknown(topic.name.full, f"of {chosen}{where}")
        return offset

    async def _message(self, place: TopicPartition, offset: Offset) -> bytes:
        answer = await self._backend.source.read(place, offset, 1)
        if isinstance(answer, Gone):
            raise OffsetGone(place.topic.name.full, place.value, offset, answer.earliest)
        if isinstance(answer, list):
            batch = answer[0].starting_at(offset).limited_to(1)
            if batch.first_offset == offset and batch.messages:
                (row,) = messages_json(place.topic, batch)
                return b'{"offset":%d%b' % (offset, _as_further_members(row))
        raise MessageUnknown(place.topic.name.full, str(offset))


def _filter(subject: str) -> Filter:
    try:
        return Filter.parse(subject.encode())
    except NameInvalid as error:
        raise BadRequest(requests.shortened(error)) from None


def _as_further_members(row: bytes) -> bytes:
    """The members of an object in a form that can follow others: `{...},` becomes `,...}`."""
    members = row.removesuffix(b",").removeprefix(b"{")
    return members if members == b"}" else b"," + members
