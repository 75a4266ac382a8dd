"""Conversations of engines that read and write objects beside the broker, such as Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

import msgspec

from penstock.client.admin import topic_path
from penstock.client.exchange import BrokerRefused, BrokerRequest, Conversation, ask
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
"""Time limit of a link or compaction: the broker reads every object before it replies."""

_PLAN_GONE: Final = "plan_gone"
_ATTEMPTS: Final = 5


@dataclass(slots=True)
class TopicPlan:
    """The partitions and objects of a topic at one moment."""

    topic: TopicReply
    store: StoreReply | None
    partitions: list[PlanPartition] = field(default_factory=list)
    objects: list[PlanObject] = field(default_factory=list)


def get_plan(name: TopicName, with_objects: bool = True) -> Conversation[TopicPlan]:
    """The whole plan, read page by page; it is read again if the broker drops it meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            return (yield from _read_plan(name, with_objects))
        except BrokerRefused as error:
            if error.code != _PLAN_GONE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _read_plan(name: TopicName, with_objects: bool) -> Conversation[TopicPlan]:
    query = {"page_size": str(PAGE_SIZE), "objects": "true" if with_objects else "false"}
    plan: TopicPlan | None = None
    while True:
        body = yield from ask(BrokerRequest("GET", f"{topic_path(name)}/plan?{urlencode(query)}"))
        page = msgspec.json.decode(body, type=PlanReply)
        plan = plan or TopicPlan(page.topic, page.store)
        plan.partitions += page.partitions
        plan.objects += page.objects
        if not page.next_page_token:
            return plan
        query["page_token"] = page.next_page_token


def offsets_at(name: TopicName, timestamp_us: int) -> Conversation[list[TimeOffset]]:
    """The first offset of each partition whose message is not older than a time."""
    query = {"page_size": str(PAGE_SIZE), "timestamp": str(timestamp_us)}
    offsets: list[TimeOffset] = []
    while True:
        body = yield from ask(
            BrokerRequest("GET", f"{topic_path(name)}/offsets?{urlencode(query)}")
        )
        page = msgspec.json.decode(body, type=TimeOffsetList)
        offsets += page.offsets
        if not page.next_page_token:
            return offsets
        query["page_token"] = page.next_page_token


def link_objects(
    name: TopicName, app: str, epoch: int, objects: Sequence[StagedObject]
) -> Conversation[LinkReply]:
    """Assign offsets to the rows of staged objects; a repeated call has no further effect."""
    body = msgspec.json.encode(LinkRequest(app, epoch, list(objects)))
    request = BrokerRequest("POST", f"{topic_path(name)}/links", body, wait_seconds=LINK_SECONDS)
    return msgspec.json.decode((yield from ask(request)), type=LinkReply)


def compact_objects(
    name: TopicName, replaces: Sequence[str], compacted: CompactedObject
) -> Conversation[CompactReply]:
    """Replace objects by a compacted one; a repeated call has no further effect."""
    body = msgspec.json.encode(CompactRequest(list(replaces), compacted))
    request = BrokerRequest(
        "POST", f"{topic_path(name)}/compactions", body, wait_seconds=LINK_SECONDS
    )
    return msgspec.json.decode((yield from ask(request)), type=CompactReply)


def sweep_objects(name: TopicName) -> Conversation[SweepReply]:
    """Remove staged objects of the topic that can no longer be linked."""
    request = BrokerRequest("POST", f"{topic_path(name)}/sweeps", b"{}", wait_seconds=LINK_SECONDS)
    return msgspec.json.decode((yield from ask(request)), type=SweepReply)
