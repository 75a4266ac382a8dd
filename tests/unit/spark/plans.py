"""Plans for tests."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from pyroaring import BitMap64

from penstock.client import TopicPlan
from penstock.formats.api import Field, TopicReply
from penstock.formats.plan_api import PlanObject, PlanPartition, StoreReply
from penstock.model.retention import TopicRetention


def topic(*fields: Field, partition_column: str | None = None) -> TopicReply:
    name = "tenants/default/namespaces/default/topics/t"
    made = "2026-11-16T00:00:00Z"
    columns = list(fields) or None
    return TopicReply(name, columns, partition_column, "fsync", TopicRetention(), made)


def partition(
    number: int = 0, start: int = 0, next_: int = 0, hot: int = 0, deleted: Iterable[int] = ()
) -> PlanPartition:
    bitmap = BitMap64(deleted)
    text = base64.b64encode(bitmap.serialize()).decode() if bitmap else ""
    return PlanPartition(number, None, start, next_, hot, text)


def an_object(
    key: str,
    *ranges: tuple[int, int, int],
    rows: int | None = None,
    linked: bool = False,
    after_gap: bool = False,
) -> PlanObject:
    count = sum(next_ - first for _, first, next_ in ranges) if rows is None else rows
    return PlanObject(key, 100, None, 0, count, list(ranges), 7, 9, 0, 1, 0, 1, linked, after_gap)


def plan(partitions: Iterable[PlanPartition], objects: Iterable[PlanObject] = ()) -> TopicPlan:
    return TopicPlan(topic(), StoreReply("fs", "/objects"), list(partitions), list(objects))
