"""Plans, offsets by time and links, as conversations: what engines beside the broker ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.exchange import BrokerRefused, Conversation, Request, ask
from penstock.formats.api import TopicReply
from penstock.formats.plan_api import (
    CompactedObject,
    CompactReply,
    CompactRequest,
    LinkReply,
    LinkRequest,
    PlanObject,
    PlanPartition,
    PlanReply,
    StagedObject,
    StoreReply,
    SweepReply,
    TimeOffset,
    TimeOffsetList,
)
from penstock.model.names import TopicName

PAGE_SIZE: Final = 1000
LINK_SECONDS: Final = 240.0
"""A link looks at every object before it answers."""

_GONE: Final = 409
_PLANS_TRIED: Final = 5


@dataclass(slots=True)
class Plan:
    """What a topic was made of at one moment."""

    topic: TopicReply
    store: StoreReply | None
    partitions: list[PlanPartition] = field(default_factory=list)
    objects: list[PlanObject] = field(default_factory=list)


def plan(name: TopicName, with_objects: bool = True) -> Conversation[Plan]:
    """All pages of a plan; one that the broker has dropped under way is begun again."""
    for attempt in range(_PLANS_TRIED):
        try:
            return (yield from _plan(name, with_objects))
        except BrokerRefused as error:
            if error.status != _GONE or attempt == _PLANS_TRIED - 1:
                raise
    raise AssertionError("unreachable")


def _plan(name: TopicName, with_objects: bool) -> Conversation[Plan]:
    query = {"page_size": str(PAGE_SIZE), "objects": "true" if with_objects else "false"}
    made: Plan | None = None
    while True:
        body = yield from ask(Request("GET", f"{_path(name)}/plan?{urlencode(query)}"))
        page = msgspec.json.decode(body, type=PlanReply)
        made = made or Plan(page.topic, page.store)
        made.partitions += page.partitions
        made.objects += page.objects
        if not page.next_page_token:
            return made
        query["page_token"] = page.next_page_token


def offsets_at(name: TopicName, timestamp_us: int) -> Conversation[list[TimeOffset]]:
    """The first offsets of all partitions that are not older than a time."""
    query = {"page_size": str(PAGE_SIZE), "timestamp": str(timestamp_us)}
    found: list[TimeOffset] = []
    while True:
        body = yield from ask(Request("GET", f"{_path(name)}/offsets?{urlencode(query)}"))
        page = msgspec.json.decode(body, type=TimeOffsetList)
        found += page.offsets
        if not page.next_page_token:
            return found
        query["page_token"] = page.next_page_token


def link(
    name: TopicName, app: str, epoch: int, objects: Sequence[StagedObject]
) -> Conversation[LinkReply]:
    """Give offsets to rows of staged objects; asking again is harmless."""
    body = msgspec.json.encode(LinkRequest(app, epoch, list(objects)))
    request = Request("POST", f"{_path(name)}/links", body, wait_seconds=LINK_SECONDS)
    return msgspec.json.decode((yield from ask(request)), type=LinkReply)


def compact(
    name: TopicName, replaces: Sequence[str], made: CompactedObject
) -> Conversation[CompactReply]:
    """Let an object count in the place of others; asking again is harmless."""
    body = msgspec.json.encode(CompactRequest(list(replaces), made))
    request = Request("POST", f"{_path(name)}/compactions", body, wait_seconds=LINK_SECONDS)
    return msgspec.json.decode((yield from ask(request)), type=CompactReply)


def sweep(name: TopicName) -> Conversation[SweepReply]:
    """Remove objects of the topic that nobody can make count any more."""
    request = Request("POST", f"{_path(name)}/sweeps", wait_seconds=LINK_SECONDS)
    return msgspec.json.decode((yield from ask(request)), type=SweepReply)


def _path(name: TopicName) -> str:
    return f"/v1/tenants/{name.tenant}/namespaces/{name.namespace}/topics/{quote(name.topic, '')}"
