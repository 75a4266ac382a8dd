"""Plans: the objects and the hot tail of a topic at one moment, for readers of the bucket.

A plan is created in one turn of the event loop, so that every committed offset is in exactly one
object, in the hot tail, or known to have no message. Plans are cached, so that all
pages show the same moment, whatever is uploaded and merged meanwhile. Replaced objects stay in the
bucket for a grace period, so a reader that follows a plan at once finds them.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.formats.plan_api import PlanObject, PlanPartition, StoreReply
from penstock.host.entropy import unique_name
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.units import PartitionId
from penstock.tiers import ObjectEntry
from penstock.topics.open_topic import OpenTopic
from penstock.topics.topics import Topics

POSITION_DIGITS_MAX: Final = 18
PLANS_MAX: Final = 32
"""Limit of cached plans; the pages of older ones are no longer available."""

Describe = Callable[[str], StoreReply]
"""Describes a store by its name, empty for the broker's own."""


class PlanGone(PenstockError):
    """The plan of a page token is not cached any more."""

    code = "plan_gone"

    def __init__(self) -> None:
        super().__init__("the plan of this page token is gone; ask for the first page again")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a plan."""

    topic: Topic
    store: StoreReply | None
    partitions: list[PlanPartition]
    objects: list[PlanObject]
    next_token: str


@dataclass(frozen=True, slots=True)
class _Plan:
    topic: Topic
    store: StoreReply | None
    items: list[PlanPartition | ObjectEntry]
    after_gaps: frozenset[str] = frozenset()
    """Objects directly after an open gap."""


class Plans:
    """Creates plans of topics that this broker serves."""

    def __init__(self, topics: Topics, describe: Describe) -> None:
        self._topics, self._describe = topics, describe
        self._cached: OrderedDict[str, _Plan] = OrderedDict()

    async def page(self, name: TopicName, token: str, size: int, with_objects: bool) -> Page:
        """A page of a new plan, or the one that the previous page's token names.

        Raises PlanGone, ResourceUnknown, OwnedElsewhere.
        """
        key, _, position = token.partition(".")
        if not token:
            key, first = unique_name(), 0
            plan = await self._create(name, with_objects)
        else:
            cached = self._cached.get(key)
            valid = position.isascii() and position.isdecimal()
            valid = valid and len(position) <= POSITION_DIGITS_MAX
            if cached is None or not valid or cached.topic.name != name:
                raise PlanGone
            plan, first = cached, int(position)
        items, end = plan.items[first : first + size], first + size
        if end < len(plan.items):
            self._cache(key, plan)
        return Page(
            plan.topic,
            plan.store,
            [item for item in items if isinstance(item, PlanPartition)],
            [
                _object(item, item.object_id in plan.after_gaps)
                for item in items
                if isinstance(item, ObjectEntry)
            ],
            f"{key}.{end}" if end < len(plan.items) else "",
        )

    async def _create(self, name: TopicName, with_objects: bool) -> _Plan:
        namespace = await self._topics.namespaces.of_topic(name)
        opened = await self._topics.find(name)
        items: list[PlanPartition | ObjectEntry] = [
            _partition(opened, PartitionId(number), value)
            for number, value in enumerate(opened.partitions)
        ]
        if opened.tier is None:
            return _Plan(opened.topic, None, items)
        if with_objects:
            items += opened.tier.manifest.index.ordered()
        store = self._describe(namespace.store)
        return _Plan(opened.topic, store, items, opened.tier.manifest.objects_after_gaps())

    def _cache(self, key: str, plan: _Plan) -> None:
        self._cached[key] = plan
        self._cached.move_to_end(key)
        while len(self._cached) > PLANS_MAX:
            self._cached.popitem(last=False)


def _partition(
    opened: OpenTopic, partition: PartitionId, value: PartitionValue | None
) -> PlanPartition:
    messages = opened.partition(partition)
    start, next_ = messages.start_offset, messages.next_offset
    uploaded = 0 if opened.tier is None else opened.tier.manifest.index.end(partition)
    deleted = messages.deleted
    return PlanPartition(
        partition,
        None if value is None else value.to_json(),
        start,
        next_,
        min(max(start, uploaded), next_),
        "" if deleted is None else base64.b64encode(deleted.serialize()).decode(),
    )


def _object(entry: ObjectEntry, after_gap: bool) -> PlanObject:
    return PlanObject(
        entry.object_id,
        entry.size,
        entry.etag,
        entry.crc32c,
        entry.rows,
        [(span.partition, span.first, span.next) for span in entry.ranges],
        entry.first_timestamp,
        entry.last_timestamp,
        entry.created_at,
        entry.epoch,
        entry.first_frame,
        entry.next_frame,
        entry.linked,
        after_gap,
    )
