"""Messages that are deleted in the broker while their rows are in objects are never read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import deltalake
import nats
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock.client import SyncClient
from penstock.spark.pipelines import DeltaTable, audit_topic, latest_messages, publish_topic
from tests.integration.process import Broker
from tests.spark.test_compact import compacted
from tests.spark.test_stream import drain, offsets, reading
from tests.spark.topics import collected, fetched, messages, plain, uploaded

OWN, LINKED, HOT = 1000, 300, 50
SINGLE = (0, 17, 18, 999, OWN, OWN + 150, OWN + LINKED - 1, OWN + LINKED + 7)
PURGED = "s.3"


async def delete(url: str, stream: str) -> None:
    """Delete some messages by their offsets, and all messages of a subject."""
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        for offset in SINGLE:
            await js.delete_msg(stream, offset + 1)
        await js.purge_stream(stream, subject=PURGED)
    finally:
        await client.close()


@pytest.fixture
def live(spark: SparkSession, broker: Broker, client: SyncClient, name: str) -> list[int]:
    """Create a topic of objects and a hot tail with deletions; returns the live offsets."""
    client.create_topic(name)
    client.push(name, messages(0, OWN))
    uploaded(client, name)
    written = spark.range(0, LINKED, 1, 1).selectExpr("'linked ' || id as payload")
    written.write.format("penstock").option("topic", name).mode("append").save()
    plan = uploaded(client, name)
    assert [item.linked for item in plan.objects] == [False, True]
    client.push(name, messages(OWN + LINKED, HOT))
    asyncio.run(delete(broker.nats_url, name))
    own = {n for n in range(OWN + LINKED + HOT) if not OWN <= n < OWN + LINKED}
    purged = {n for n in own if f"s.{n % 10}" == PURGED}
    return sorted({*range(OWN + LINKED + HOT)} - purged - {*SINGLE})


@pytest.mark.feature("S01", "S02", "S04", "S06", "S10")
def test_no_reader_returns_deleted_messages(
    spark: SparkSession, client: SyncClient, name: str, live: list[int], tmp_path: Path
) -> None:
    expected = plain(fetched(client, name))
    assert [row["offset"] for row in expected] == live
    table = penstock.spark.topic(spark, name)
    source = spark.read.format("penstock").option("topic", name).load()
    for frame in (table, source):
        assert collected(frame) == expected
    part = penstock.spark.topic(spark, name, startingOffsets=10, endingOffsets=OWN + 160)
    found = part.select("partition", "offset")
    assert [row["offset"] for row in collected(found)] == [n for n in live if 10 <= n < OWN + 160]
    drain(reading(spark, name, maxOffsetsPerTrigger=700), tmp_path / "sink", tmp_path / "point")
    assert offsets(spark, tmp_path / "sink") == live
    assert PURGED not in {
        row["subject"] for row in latest_messages(table).select("subject").collect()
    }
    lake = tmp_path / "lake"
    assert publish_topic(spark, name, DeltaTable(lake, name), lake).messages == len(live)
    rows = pa.table(deltalake.DeltaTable(str(lake)).to_pyarrow_table())
    assert sorted(rows["offset"].to_pylist()) == live


@pytest.mark.feature("S05", "S08")
def test_a_compaction_removes_deleted_messages_for_good(
    spark: SparkSession, client: SyncClient, name: str, live: list[int]
) -> None:
    uploaded(client, name)
    expected = plain(fetched(client, name))
    assert compacted(spark, name).objects_after == 1
    plan = uploaded(client, name)
    assert plan.store is not None
    rows = pa.concat_tables(pq.read_table(Path(plan.store.root) / o.key) for o in plan.objects)
    assert rows["offset"].to_pylist() == live
    assert collected(penstock.spark.topic(spark, name)) == expected
    assert plain(fetched(client, name)) == expected
    assert audit_topic(spark, name).sound
