"""Writes to topics: tasks stage objects, and the owner links them once for each batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import penstock.spark
from penstock.client import SyncClient, get_topic
from penstock.model import names
from penstock.spark import columns, options
from penstock.spark.writers import StagedRows, TopicWriter
from tests.integration.process import Broker
from tests.spark.test_compact import compacted
from tests.spark.test_stream import kill_after, start
from tests.spark.topics import FIELDS, collected, fetched, messages, plain, rows, uploaded


def write(frame: DataFrame, topic: str, **more: object) -> None:
    writer = frame.write.format("penstock").option("topic", topic).mode("append")
    for key, value in more.items():
        writer = writer.option(key, str(value))
    writer.save()


def stream_into(frame: DataFrame, topic: str, checkpoint: Path) -> None:
    query = (
        frame.writeStream.format("penstock")
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def source(spark: SparkSession, topic: str, **more: object) -> DataFrame:
    reader = spark.readStream.format("penstock").option("topic", topic)
    for key, value in more.items():
        reader = reader.option(key, str(value))
    return reader.load()


def forget_last_commit(checkpoint: Path) -> None:
    """Remove Spark's last commit, as if the driver had died after the broker's commit."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.feature("S03", "X01")
def test_written_rows_can_be_read_over_every_protocol(
    spark: SparkSession, client: SyncClient, name: str, broker: Broker
) -> None:
    client.create_topic(name, FIELDS)
    client.push(name, rows(0, 10))
    expected = rows(10, 3000)
    client.create_topic(f"{name}s", FIELDS)
    client.push(f"{name}s", expected)
    read = penstock.spark.topic(spark, f"{name}s")
    write(read.orderBy("offset").coalesce(1), name)
    found = fetched(client, name)
    assert [row["offset"] for row in found] == list(range(3010))
    own = [field.split(":")[0] for field in FIELDS]
    assert [{key: row[key] for key in own} for row in found[10:]] == expected.to_pylist()
    # Hot, when only the WAL knows of the link, and once the manifest has it.
    assert collected(penstock.spark.topic(spark, name)) == plain(found)
    uploaded(client, name)
    assert collected(penstock.spark.topic(spark, name)) == plain(found)
    part = spark.read.format("penstock").option("topic", name).option("startingOffsets", 1500)
    assert collected(part.option("endingOffsets", 2000).load()) == plain(found[1500:2000])
    one = broker.get(f"/v1/topics/default/default/{name}/messages?offset=2000").body
    assert (one["id"], one["text"]) == (2000, "row 2000")


async def direct_get(url: str, stream: str, subject: str) -> tuple[int, str, dict[str, str], bytes]:
    """The newest message of a subject, by a direct get over NATS."""
    client = await nats.connect(url)
    try:
        found = await client.jetstream().get_last_msg(stream, subject, direct=True)
        assert found.data is not None
        return found.seq or 0, found.subject or "", dict(found.headers or {}), found.data
    finally:
        await client.close()


@pytest.mark.feature("S03", "X01")
def test_written_raw_messages_have_subjects_and_headers_over_every_protocol(
    spark: SparkSession, client: SyncClient, name: str, broker: Broker
) -> None:
    client.create_topic(name)
    client.create_topic(f"{name}s")
    expected = messages(0, 1000)
    client.push(f"{name}s", expected)
    read = penstock.spark.topic(spark, f"{name}s").orderBy("offset").coalesce(1)
    write(read, name)
    write(read.limit(10).select("payload"), name)

    def seen() -> list[dict[str, Any]]:
        found = fetched(client, name)
        assert [row["subject"].decode() for row in found[:1000]] == expected["subject"].to_pylist()
        assert [row["payload"] for row in found[:1000]] == expected["payload"].to_pylist()
        assert [bool(row["headers"]) for row in found[:1000]] == [i % 5 == 0 for i in range(1000)]
        assert {row["subject"] for row in found[1000:]} == {name.encode()}
        told = client.get(name, last_by_subject="s.5")
        assert (told.offset, told.fields["subject"], told.fields["payload"]) == (
            995,
            "s.5",
            "message 995",
        )
        assert client.get(name, last_by_subject=name).offset == 1009
        got = asyncio.run(direct_get(broker.nats_url, name, "s.0"))
        assert got[:2] == (991, "s.0")
        assert (got[2]["k"], got[3]) == ("v", b"message 990")
        source = spark.read.format("penstock").option("topic", name).load()
        for frame in (penstock.spark.topic(spark, name), source):
            assert collected(frame) == plain(found)
        return plain(found)

    hot = seen()
    uploaded(client, name)
    assert seen() == hot
    assert compacted(spark, name).objects_after == 1
    assert seen() == hot


@pytest.mark.feature("S03")
def test_rows_are_written_to_the_partitions_of_the_partition_column(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name, ["n:uint32", "text:string?"], partition_column="n")
    frame = spark.range(0, 3000, 1, 4).selectExpr("4294967295 - id % 3 as n", "'t' || id as text")
    write(frame, name)
    counts = {}
    for value in (4294967295, 4294967294, 4294967293):
        found = fetched(client, name, value)
        assert {row["n"] for row in found} == {value}
        assert [row["offset"] for row in found] == list(range(1000))
        counts[value] = len({row["text"] for row in found})
    assert set(counts.values()) == {1000}
    uploaded(client, name)
    table = penstock.spark.topic(spark, name)
    assert table.select("text").distinct().count() == table.count() == 3000


@pytest.mark.feature("S03")
def test_a_repeated_transaction_is_applied_once(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    frame = spark.range(100).selectExpr("cast(id as string) as payload")
    for version, total in ((1, 100), (1, 100), (0, 100), (2, 200)):
        write(frame, name, txnAppId="nightly", txnVersion=version)
        assert client.partitions(name)[0].next_offset == total
    write(frame, name)
    write(frame.where("false"), name)
    assert client.partitions(name)[0].next_offset == 300


@pytest.mark.feature("S03")
def test_repeated_tasks_and_aborts_after_a_commit_have_no_effect(
    client: SyncClient, url: str, name: str
) -> None:
    client.create_topic(name)
    read = options.read({"topic": name}, url)
    topic = client.run(get_topic(names.topic(name)))
    schema = columns.spark_schema(pa.schema({"payload": pa.binary()}))
    writer = TopicWriter(read, topic, schema, overwrite=False)
    batch = pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())})
    failed, counted = writer.write(iter([batch])), writer.write(iter([batch]))
    assert isinstance(failed, StagedRows)
    writer.commit([counted, None])
    # Spark calls abort also when a commit came through and its answer did not.
    writer.commit([counted, None])
    writer.abort([counted, failed])
    assert [row["payload"] for row in fetched(client, name)] == [b"a", b"b"]
    uploaded(client, name)
    assert [row["payload"] for row in fetched(client, name)] == [b"a", b"b"]


@pytest.mark.feature("S03")
def test_a_stream_writes_every_batch_to_a_topic_once(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    target, checkpoint = f"{name}t", tmp_path / "checkpoint"
    client.create_topic(name)
    client.create_topic(target)
    client.push(name, messages(0, 3000))
    kept = source(spark, name, maxOffsetsPerTrigger=1000).select("payload")
    stream_into(kept, target, checkpoint)
    forget_last_commit(checkpoint)
    stream_into(kept, target, checkpoint)
    assert client.partitions(target)[0].next_offset == 3000
    forget_last_commit(checkpoint)
    client.push(name, messages(3000, 500))
    stream_into(kept, target, checkpoint)
    found = [row["payload"] for row in fetched(client, target)]
    assert sorted(found) == sorted(b"message %d" % i for i in range(3500))


@pytest.mark.feature("S03")
@pytest.mark.timeout(300)
def test_a_killed_driver_loses_and_repeats_no_message_in_a_topic(
    client: SyncClient, url: str, name: str, tmp_path: Path
) -> None:
    target, checkpoint = f"{name}t", tmp_path / "checkpoint"
    client.create_topic(name)
    client.create_topic(target)
    client.push(name, messages(0, 20_000))
    arguments = (url, name, str(checkpoint), f"topic:{target}", "1500")
    kill_after(start(*arguments), checkpoint, 3)
    with start(*arguments) as process:
        output, _ = process.communicate()
    assert output == "done\n"
    found = [row["payload"] for row in fetched(client, target)]
    assert sorted(found) == sorted(b"message %d" % i for i in range(20_000))


@pytest.mark.feature("S03", "S13")
def test_an_invalid_write_is_refused_before_it_stages_anything(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name, ["id:int8", "text:string"])
    client.create_topic(f"{name}r")
    client.create_topic(f"{name}m", durability="memory")
    cases = [
        (name, "id as id", "column 'text' of topic .* is missing"),
        (name, "cast(id as tinyint) as id, 'x' as text, 1 as more", "has no column 'more'"),
        (name, "id * 1000 as id, 'x' as text", "column 'id': Integer value 1000 not in range"),
        (name, "id as id, cast(null as string) as text", "column 'text' has nulls"),
        (f"{name}r", "'x' as payload, 's.*' as subject", r"'s\.\*' is not a subject"),
        (f"{name}r", "'x' as payload, 's' as key", "has no column 'key'"),
        (f"{name}m", "'x' as payload", "is kept in memory only"),
        (f"{name}nowhere", "'x' as payload", "does not exist"),
    ]
    for topic, select, words in cases:
        frame = spark.range(2).selectExpr(*select.split(", "))
        with pytest.raises(Exception, match=words):
            write(frame, topic)
    good = spark.range(1).selectExpr("cast(id as tinyint) as id", "'x' as text")
    with pytest.raises(Exception, match="cannot be overwritten"):
        good.write.format("penstock").option("topic", name).mode("overwrite").save()
    assert client.partitions(name)[0].next_offset == 0
    client.push(f"{name}r", [b"x"])
    odd = source(spark, f"{name}r").withColumnRenamed("subject", "key")
    with pytest.raises(StreamingQueryException, match="has no column 'key'"):
        stream_into(odd, f"{name}r", tmp_path / "checkpoint")
