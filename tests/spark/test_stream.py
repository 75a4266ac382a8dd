"""Topics read as streams, with offsets in Spark's checkpoint and each message once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import penstock.spark
from penstock.client import SyncClient
from penstock.model.retention import TopicRetention
from tests.spark.topics import messages, plan_of, uploaded, wait_for

ROOT = Path(__file__).parents[2]


def reading(spark: SparkSession, topic: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("penstock").option("topic", topic)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return reader.load()


def drain(frame: DataFrame, sink: Path, checkpoint: Path) -> list[int]:
    """Write all current messages to files; returns the number of rows of each batch."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(sink))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [
        progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]
    ]


def offsets(spark: SparkSession, sink: Path) -> list[int]:
    found = spark.read.parquet(str(sink)).select("offset").orderBy("offset").toArrow()
    numbers: list[int] = found.column("offset").to_pylist()
    return numbers


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.spark.driver", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def kill_after(process: subprocess.Popen[str], checkpoint: Path, commits: int) -> None:
    """Kill the driver as soon as Spark has committed a number of batches."""
    with process:
        wait_for(
            lambda: (
                process.poll() is not None
                or len(list((checkpoint / "commits").glob("[0-9]*"))) >= commits
            )
        )
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.feature("S02")
def test_a_stream_continues_where_it_stopped_and_respects_its_rate_limit(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 5000))
    uploaded(client, name)
    client.push(name, messages(5000, 1000))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    limited = reading(spark, name, maxOffsetsPerTrigger=2500)
    assert drain(limited, sink, checkpoint) == [2500, 2500, 1000]
    assert offsets(spark, sink) == list(range(6000))
    assert drain(reading(spark, name), sink, checkpoint) == []
    client.push(name, messages(6000, 500))
    assert drain(reading(spark, name), sink, checkpoint) == [500]
    assert offsets(spark, sink) == list(range(6500))


@pytest.mark.feature("S02")
def test_a_repeated_batch_has_the_same_messages(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 3000))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    drain(reading(spark, name, maxOffsetsPerTrigger=1000), sink, checkpoint)
    # As after a crash before Spark's last commit, with the hot messages in objects meanwhile.
    last = max((checkpoint / "commits").glob("[0-9]*"))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    uploaded(client, name)
    client.push(name, messages(3000, 700))
    drain(reading(spark, name), sink, checkpoint)
    assert offsets(spark, sink) == list(range(3700))


@pytest.mark.feature("S02")
@pytest.mark.timeout(300)
def test_a_killed_driver_loses_and_repeats_no_message_in_a_file_sink(
    spark: SparkSession, client: SyncClient, url: str, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 20_000))
    uploaded(client, name)
    client.push(name, messages(20_000, 10_000))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    arguments = (url, name, str(checkpoint), f"files:{sink}", "1500")
    kill_after(start(*arguments), checkpoint, 3)
    with start(*arguments) as process:
        output, _ = process.communicate()
    assert output == "done\n"
    assert offsets(spark, sink) == list(range(30_000))


@pytest.mark.feature("S02")
def test_new_messages_are_delivered(spark: SparkSession, client: SyncClient, name: str) -> None:
    client.create_topic(name, ["region:string", "n:int64"], partition_column="region")

    def push(region: str, first: int) -> None:
        table = pa.table({"region": [region] * 50, "n": range(first, first + 50)})
        client.push(name, table)

    push("eu", 0)
    query = reading(spark, name).writeStream.format("memory").queryName(name).start()
    try:
        wait_for(lambda: spark.table(name).count() == 50)
        push("us", 50)
        push("eu", 100)
        wait_for(lambda: spark.table(name).count() == 150)
        uploaded(client, name)
        push("as", 150)
        wait_for(lambda: spark.table(name).count() == 200)
        assert spark.table(name).select("n").distinct().count() == 200
        wait_for(lambda: query.lastProgress is not None)
        told = json.loads(query.lastProgress["sources"][0]["latestOffset"])  # type: ignore[index]
        assert told == {"0": 100, "1": 50, "2": 50}
    finally:
        query.stop()


@pytest.mark.feature("S02")
def test_latest_and_times_are_resolved_once_and_stored_in_the_checkpoint(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 100))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    penstock.spark.stream(spark, name, str(checkpoint), startingOffsets="latest")
    client.push(name, messages(100, 50))
    frame = penstock.spark.stream(spark, name, str(checkpoint), startingOffsets="latest")
    drain(frame, sink, checkpoint)
    assert offsets(spark, sink) == list(range(100, 150))
    moment = client.fetch(name, 100).table.column("timestamp")[0].as_py()
    by_time = tmp_path / "by-time"
    frame = penstock.spark.stream(spark, name, str(by_time), startingTimestamp=moment.isoformat())
    drain(frame, tmp_path / "sink2", by_time)
    assert offsets(spark, tmp_path / "sink2")[0] <= 100
    with pytest.raises(StreamingQueryException, match=r"penstock\.spark\.stream"):
        drain(reading(spark, name, startingOffsets="latest"), sink, tmp_path / "other")


@pytest.mark.feature("S14")
def test_a_stream_with_lost_messages_fails_or_continues(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name, retention=TopicRetention(max_messages=200))
    client.push(name, messages(0, 100))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    drain(reading(spark, name), sink, checkpoint)
    client.push(name, messages(100, 900))
    wait_for(lambda: plan_of(client, name).partitions[0].start_offset == 800)
    with pytest.raises(StreamingQueryException, match="offsets 100 to 799 are gone"):
        drain(reading(spark, name), sink, checkpoint)
    drain(reading(spark, name, failOnDataLoss="false"), sink, checkpoint)
    assert offsets(spark, sink) == [*range(100), *range(800, 1000)]


@pytest.mark.feature("S02")
def test_a_topic_that_was_created_again_is_not_taken_for_the_old_one(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 100))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    drain(reading(spark, name), sink, checkpoint)
    client.delete_topic(name)
    client.create_topic(name)
    client.push(name, messages(0, 10))
    with pytest.raises(StreamingQueryException, match="was created again"):
        drain(reading(spark, name), sink, checkpoint)
