"""Topics in all states that readers support, and their messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from penstock.client import SyncClient, TopicPlan, get_plan
from penstock.model import names

WAIT_SECONDS: Final = 60.0
FIELDS: Final = ["id:int64", "small:uint8", "large:uint64", "text:string?", "flag:bool"]


def rows(first: int, count: int) -> pa.Table:
    """Rows with their offsets."""
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array([i % 256 for i in ids], pa.uint8()),
            "large": pa.array([(1 << 64) - 1 - i for i in ids], pa.uint64()),
            "text": pa.array([None if i % 7 == 0 else f"row {i}" for i in ids]),
            "flag": pa.array([i % 2 == 0 for i in ids]),
        }
    )


def messages(first: int, count: int) -> pa.Table:
    """Raw messages with their offsets, some with headers."""
    numbers = range(first, first + count)
    block = b"NATS/1.0\r\nk: v\r\n\r\n"
    return pa.table(
        {
            "subject": pa.array([f"s.{i % 10}" for i in numbers]),
            "headers": pa.array([block if i % 5 == 0 else None for i in numbers], pa.binary()),
            "payload": pa.array([b"message %d" % i for i in numbers], pa.binary()),
        }
    )


def numbered(first: int, count: int, subjects: int) -> pa.Table:
    """Raw messages with a number each, on the subjects `k.0`, `k.1` and so on in turn."""
    numbers = np.arange(first, first + count)
    keys = pa.array(numbers % subjects).cast(pa.string())
    payloads = pa.array(numbers).cast(pa.string()).cast(pa.binary())
    return pa.table({"subject": pc.binary_join_element_wise("k", keys, "."), "payload": payloads})


def plan_of(client: SyncClient, topic: str) -> TopicPlan:
    return client.run(get_plan(names.topic(topic)))


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)


def uploaded(client: SyncClient, topic: str) -> TopicPlan:
    """Wait until all messages of the topic are in objects; returns its plan."""

    def done() -> bool:
        plan = plan_of(client, topic)
        return all(item.hot_offset == item.next_offset for item in plan.partitions)

    wait_for(done)
    return plan_of(client, topic)


def fetched(client: SyncClient, topic: str, partition: object = None) -> list[dict[str, Any]]:
    """All messages of a partition, fetched from the broker."""
    found: list[dict[str, Any]] = []
    state = plan_of(client, topic).partitions
    ends = {str(item.partition_value): item.next_offset for item in state}
    end = max(ends.values(), default=0)
    offset = 0
    while offset < end:
        got = client.fetch(topic, offset, partition, timeout_ms=300, max_messages=100_000)
        if not len(got):
            break
        found += got.table.to_pylist()
        offset = got.next_offset
    return found


def plain(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as Spark returns them: subjects are text, and empty headers are null."""
    return [{key: _plain(key, value) for key, value in row.items()} for row in found]


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows in the order of partition and offset, through Arrow, which keeps time zones."""
    return plain(frame.orderBy("partition", "offset").toArrow().to_pylist())


def _plain(key: str, value: Any) -> Any:
    if key == "subject" and isinstance(value, bytes):
        return value.decode()
    if key == "headers":
        return value or None
    return int(value) if key == "large" else value
