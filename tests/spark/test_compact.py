"""Compaction, with readers and producers at the same time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock.client import SyncClient
from penstock.formats.objects import staged_prefix
from penstock.model import names
from penstock.spark.pipelines import CompactionResult, audit_topic, compact_topic
from penstock.spark.pipelines import compact as compact_module
from penstock.tiers.external.abandoned_objects import ABANDONED_SECONDS
from tests.spark.topics import (
    FIELDS,
    collected,
    fetched,
    messages,
    plain,
    plan_of,
    rows,
    uploaded,
    wait_for,
)


def several(client: SyncClient, name: str, count: int = 4, size: int = 500) -> None:
    """Create a topic of several objects."""
    client.create_topic(name)
    for first in range(0, count * size, size):
        client.push(name, messages(first, size))
        uploaded(client, name)


def compacted(
    spark: SparkSession, name: str, object_bytes: int = compact_module.OBJECT_BYTES
) -> CompactionResult:
    """Compact until no run is refused: the broker may merge the same objects at the same time."""
    tried: list[CompactionResult] = []

    def done() -> bool:
        tried.append(compact_topic(spark, name, object_bytes))
        return not tried[-1].refused

    wait_for(done)
    return tried[-1]


@pytest.mark.feature("S05")
def test_small_objects_are_compacted_and_running_readers_are_not_affected(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    several(client, name)
    frame = spark.range(0, 100, 1, 1).selectExpr("'linked ' || id as payload")
    frame.write.format("penstock").option("topic", name).mode("append").save()
    uploaded(client, name)
    client.push(name, messages(2100, 50))
    expected = plain(fetched(client, name))
    planned = penstock.spark.topic(spark, name)
    would = compact_topic(spark, name, dry_run=True)
    assert would.objects_before > would.objects_after
    assert any(item.linked for item in plan_of(client, name).objects)
    compacted(spark, name)
    now = plan_of(client, name).objects
    assert now[0].ranges[0][2] >= 2100
    assert not now[0].linked
    assert collected(planned) == expected
    assert collected(penstock.spark.topic(spark, name)) == expected
    assert plain(fetched(client, name)) == expected
    assert audit_topic(spark, name).sound


@pytest.mark.feature("S05")
def test_typed_and_partitioned_topics_are_compacted_too(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name, FIELDS, partition_column="flag")
    for first in range(0, 900, 300):
        client.push(name, rows(first, 300))
        uploaded(client, name)
    table = penstock.spark.topic(spark, name)
    table.drop("partition", "offset", "timestamp").write.format("penstock").option(
        "topic", name
    ).mode("append").save()
    uploaded(client, name)
    expected = [row for flag in (True, False) for row in fetched(client, name, flag)]
    expected.sort(key=lambda row: (row["partition"], row["offset"]))
    assert compacted(spark, name).objects_after == 1
    assert collected(penstock.spark.topic(spark, name)) == expected
    again = [row for flag in (True, False) for row in fetched(client, name, flag)]
    assert sorted(again, key=lambda row: (row["partition"], row["offset"])) == expected
    assert audit_topic(spark, name).sound


@pytest.mark.feature("S05")
def test_producers_and_the_broker_continue_during_a_compaction(
    spark: SparkSession, client: SyncClient, url: str, name: str
) -> None:
    several(client, name, 3)
    stop = threading.Event()
    pushed = [1500]

    def produce() -> None:
        with SyncClient(url) as producer:
            while not stop.is_set():
                producer.push(name, messages(pushed[0], 50))
                pushed[0] += 50
                time.sleep(0.02)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(2):
            compact_topic(spark, name)
    finally:
        stop.set()
        producer.join()
    found = [row["payload"] for row in fetched(client, name)]
    assert found == [b"message %d" % i for i in range(pushed[0])]
    uploaded(client, name)
    assert audit_topic(spark, name).sound
    assert penstock.spark.topic(spark, name).count() == pushed[0]


@pytest.mark.feature("S05")
def test_a_run_that_changed_meanwhile_is_refused_and_not_compacted(
    spark: SparkSession, client: SyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(client, name, 3, 100)
    made = compact_module._new_objects

    def overtaken(*arguments: object) -> object:
        found = list(made(*arguments))  # type: ignore[arg-type]
        with monkeypatch.context() as plain_:
            plain_.setattr(compact_module, "_new_objects", made)
            assert compact_topic(spark, name).objects_after == 1
        return iter(found)

    monkeypatch.setattr(compact_module, "_new_objects", overtaken)
    done = compact_topic(spark, name)
    assert done.refused == 1
    assert [row["offset"] for row in fetched(client, name)] == list(range(300))


@pytest.mark.feature("S03", "S05")
def test_staged_objects_that_are_never_linked_are_swept(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    several(client, name, 1, 10)
    frame = spark.range(5).selectExpr("'x' || id as payload")
    frame.write.format("penstock").option("topic", name).mode("append").save()
    plan = uploaded(client, name)
    assert plan.store is not None
    directory = Path(plan.store.root)
    prefix = staged_prefix(names.topic(name))
    young = directory / f"{prefix}{time.time_ns() // 1000:017d}-a.parquet"
    age_us = ABANDONED_SECONDS * 1_000_000 + 1
    old = directory / f"{prefix}{time.time_ns() // 1000 - age_us:017d}-b.parquet"
    for path in (young, old):
        path.write_bytes(b"x")
    assert compact_topic(spark, name).swept == 1
    assert (young.exists(), old.exists()) == (True, False)
    assert client.fetch(name, 0).table.num_rows == 15
