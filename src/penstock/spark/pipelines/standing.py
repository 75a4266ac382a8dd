"""How a topic stands now, as its broker tells: offsets, gaps, consumers, and jobs of a channel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.client import calls, channel_calls
from penstock.client.plans import Plan
from penstock.formats.consumer_api import ConsumerReply
from penstock.model.names import DEFAULT_NAMESPACE, Namespace, TopicName
from penstock.spark.reading import patiently
from penstock.spark.slices import deleted_of
from penstock.spark.tables import runs_of

STATES: Final = {1001: "queued", 1002: "in flight", 1003: "delivered", 1004: "dead"}
"""Of jobs, as the channel API numbers them."""

_LONG: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")
PARTITIONS: Final = pa.schema(
    {
        "partition": pa.int32(),
        "value": pa.string(),
        "start_offset": _LONG,
        "hot_offset": _LONG,
        "next_offset": _LONG,
        "deleted": _LONG,
        "messages": _LONG,
    }
)
GAPS: Final = pa.schema(
    {"partition": pa.int32(), "first_offset": _LONG, "next_offset": _LONG, "offsets": _LONG}
)
CONSUMERS: Final = pa.schema(
    {
        "name": pa.string(),
        "partition_id": pa.int32(),
        "kind": pa.string(),
        "lag": _LONG,
        "next_offset": _LONG,
        "delivered_offset": _LONG,
        "settled_offset": _LONG,
        "pending": _LONG,
        "ack_pending": _LONG,
        "deliveries": _LONG,
        "redelivered": _LONG,
        "given_up": _LONG,
        "waiting": _LONG,
        "paused": pa.bool_(),
    }
)
JOBS: Final = pa.schema(
    {
        "consumer": pa.string(),
        "state": pa.string(),
        "jobs": _LONG,
        "oldest": _TIME,
        "newest": _TIME,
    }
)
DEAD_LETTERS: Final = pa.schema(
    {"consumer": pa.string(), "consumer_name": pa.string(), "dead": _LONG}
)


def partitions(plan: Plan) -> pa.Table:
    """The offsets of every partition; `deleted` are those without a message."""
    rows = []
    for item in plan.partitions:
        start, next_ = item.start_offset, item.next_offset
        deleted = deleted_of(item).range_cardinality(start, next_) if start < next_ else 0
        rows.append(
            {
                "partition": item.partition_id,
                "value": None if item.partition_value is None else json.dumps(item.partition_value),
                "start_offset": start,
                "hot_offset": item.hot_offset,
                "next_offset": next_,
                "deleted": deleted,
                "messages": next_ - start - deleted,
            }
        )
    return pa.Table.from_pylist(rows, PARTITIONS)


def gaps(plan: Plan) -> pa.Table:
    """Runs of kept offsets that have no message: deleted, or recorded holes."""
    rows = [
        {
            "partition": item.partition_id,
            "first_offset": first,
            "next_offset": next_,
            "offsets": next_ - first,
        }
        for item in plan.partitions
        for first, next_ in runs_of(deleted_of(item))
    ]
    return pa.Table.from_pylist(rows, GAPS)


def consumers(broker: str, topic: TopicName) -> pa.Table:
    """Consumers of the NATS door; `lag` is the committed end minus what each has settled."""
    found: list[ConsumerReply] = patiently(broker, lambda: calls.list_consumers(topic))
    rows = [
        {"lag": max(item.next_offset - item.settled_offset, 0), **msgspec.structs.asdict(item)}
        for item in found
    ]
    return pa.Table.from_pylist(rows, CONSUMERS)


def is_channel_place(topic: TopicName) -> bool:
    """Whether a topic may be a channel's: those are all in one namespace."""
    return Namespace(topic.tenant, topic.namespace) == DEFAULT_NAMESPACE


def jobs(broker: str, channel: str) -> pa.Table:
    """Jobs of a channel by consumer and state; none where there is no such channel."""
    told: Any = patiently(broker, lambda: channel_calls.show("job-status"))
    return jobs_of(told.get(channel, {}))


def jobs_of(told: Mapping[str, list[dict[str, Any]]]) -> pa.Table:
    rows = [
        {
            "consumer": consumer,
            "state": STATES.get(row["status"], str(row["status"])),
            "jobs": row["count"],
            "oldest": _time(row["oldestItemTimestamp"]),
            "newest": _time(row["newestItemTimestamp"]),
        }
        for consumer, states in sorted(told.items())
        for row in states
    ]
    return pa.Table.from_pylist(rows, JOBS)


def dead_letters(broker: str, channel: str) -> pa.Table:
    """Dead jobs of a channel by consumer."""
    told: Any = patiently(broker, lambda: channel_calls.show("dlq-status"))
    rows = [
        {
            "consumer": row["consumerId"],
            "consumer_name": row["consumerName"],
            "dead": row["deadCount"],
        }
        for row in told["consumers"]
        if row["channelId"] == channel
    ]
    return pa.Table.from_pylist(rows, DEAD_LETTERS)


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
