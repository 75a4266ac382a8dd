"""The current state of a topic as tables: offsets, gaps, consumers, and jobs of a channel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.client import TopicPlan, get_record, list_consumers
from penstock.formats.api import ConsumerReply
from penstock.model.names import DEFAULT_NAMESPACE, Namespace, TopicName
from penstock.model.times import parse_time_us
from penstock.spark.planning import ask_broker
from penstock.spark.slices import deleted_of
from penstock.spark.tables import runs_of

STATES: Final = {1001: "queued", 1002: "in flight", 1003: "delivered", 1004: "dead"}
"""Names of job states by their number in the channel API."""

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


def partitions(plan: TopicPlan) -> pa.Table:
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


def gaps(plan: TopicPlan) -> pa.Table:
    """Runs of offsets without a message: deleted ones and recorded gaps."""
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
    """NATS consumers; `lag` is the end offset minus the settled offset."""
    found: list[ConsumerReply] = ask_broker(broker, lambda: list_consumers(topic))
    rows = [
        {"lag": max(item.next_offset - item.settled_offset, 0), **msgspec.structs.asdict(item)}
        for item in found
    ]
    return pa.Table.from_pylist(rows, CONSUMERS)


def may_be_channel(topic: TopicName) -> bool:
    """Whether a topic may belong to a channel: those topics are all in one namespace."""
    return Namespace(topic.tenant, topic.namespace) == DEFAULT_NAMESPACE


def jobs(broker: str, channel: str) -> pa.Table:
    """Jobs of a channel by consumer and state; no rows if the channel does not exist."""
    status: Any = ask_broker(broker, lambda: get_record("job-status"))
    return job_rows(status.get(channel, {}))


def job_rows(status: Mapping[str, list[dict[str, Any]]]) -> pa.Table:
    rows = [
        {
            "consumer": consumer,
            "state": STATES.get(row["status"], str(row["status"])),
            "jobs": row["count"],
            "oldest": _time(row["oldestItemTimestamp"]),
            "newest": _time(row["newestItemTimestamp"]),
        }
        for consumer, states in sorted(status.items())
        for row in states
    ]
    return pa.Table.from_pylist(rows, JOBS)


def dead_letters(broker: str, channel: str) -> pa.Table:
    """Dead jobs of a channel by consumer."""
    status: Any = ask_broker(broker, lambda: get_record("dlq-status"))
    rows = [
        {
            "consumer": row["consumerId"],
            "consumer_name": row["consumerName"],
            "dead": row["deadCount"],
        }
        for row in status["consumers"]
        if row["channelId"] == channel
    ]
    return pa.Table.from_pylist(rows, DEAD_LETTERS)


def _time(text: str) -> int | None:
    return parse_time_us(text) if text else None
