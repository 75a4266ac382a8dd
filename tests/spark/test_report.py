"""Reports of topics: tables that add up, and a page that shows them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

import nats
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from penstock.cli.pipeline import pipeline
from penstock.client import SyncClient
from penstock.spark.columns import RAW, spark_schema
from penstock.spark.errors import OptionInvalid
from penstock.spark.pipelines import write_report
from penstock.spark.pipelines.report import statistics
from tests.integration.channels.api import Api, Channel
from tests.integration.process import FREE_PORT, Broker
from tests.spark.topics import messages, rows, uploaded

NASTY: Final = "s.<script>alert(1)</script>"


def table(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(place).to_pylist()
    return found


async def consumed(url: str, stream: str, deleted: int) -> None:
    """Create a consumer that settles two of three deliveries, and delete a message."""
    client = await nats.connect(url)
    js = client.jetstream()
    pulls = await js.pull_subscribe("", durable="slow", stream=stream)
    first, second, _ = await pulls.fetch(3, timeout=30)
    await first.ack_sync()
    await second.ack_sync()
    await js.delete_msg(stream, deleted + 1)
    await client.close()


@pytest.fixture
def reported(broker: Broker, client: SyncClient, name: str) -> str:
    """Create a channel with 100 messages in objects, 20 hot ones, a consumer and a dead job."""
    channel = Channel(Api(broker.host, broker.port), name)
    client.push(name, messages(0, 100))
    uploaded(client, name)
    asyncio.run(consumed(broker.nats_url, name, 50))
    worker = channel.consumer("worker")
    client.push(name, [{"subject": NASTY, "payload": b"x" * 1000}] * 20)
    job = worker.queued()[0]["ID"]
    assert worker.move(job, "INFLIGHT").status == 202
    assert worker.move(job, "DEAD").status == 202
    return name


@pytest.mark.feature("S09")
def test_a_report_shows_throughput_lag_deliveries_and_dead_letters(
    spark: SparkSession, reported: str, tmp_path: Path
) -> None:
    done = write_report(spark, reported, tmp_path, ["1m", "1d"])
    assert done.warnings == []
    found = {name: table(tmp_path / f"{name}.parquet") for name in done.tables}
    assert {name: len(rows) for name, rows in found.items()} == done.tables
    for bucket in ("throughput_1m", "throughput_1d"):
        assert sum(row["messages"] for row in found[bucket]) == 119
        assert {row["partition"] for row in found[bucket]} == {0}
    assert found["subjects"][0]["subject"] == NASTY
    assert [row["messages"] for row in found["subjects"]] == [20, *[10] * 9, 9]
    assert found["sizes"][-1] == {"quantile": 1.0, "bytes": 1000 + len(NASTY)}
    (partition,) = found["partitions"]
    assert (partition["messages"], partition["deleted"]) == (119, 1)
    assert [tuple(row.values()) for row in found["gaps"]] == [(0, 50, 51, 1)]
    (consumer,) = found["consumers"]
    assert (consumer["name"], consumer["lag"], consumer["deliveries"]) == ("slow", 118, 3)
    assert (consumer["settled_offset"], consumer["ack_pending"]) == (2, 1)
    jobs = {row["state"]: row["jobs"] for row in found["jobs"]}
    assert jobs == {"queued": 19, "dead": 1}
    assert [(row["consumer"], row["dead"]) for row in found["dead_letters"]] == [("worker", 1)]
    text = done.page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "s.&lt;script&gt;" in text
    for told in ("Messages in ", "Bytes in ", "Messages by subject", "Lag by consumer"):
        assert f'class="title">{told}' in text
    assert text.count("<svg") == 11


@pytest.mark.feature("S09", "S13")
def test_the_command_writes_csv_tables_of_a_typed_topic(
    spark: SparkSession, client: SyncClient, url: str, name: str, tmp_path: Path
) -> None:
    client.create_topic(
        name, ["id:int64", "small:uint8", "large:uint64", "text:string?", "flag:bool"]
    )
    client.push(name, rows(0, 30))
    asked = ["report", name, "--format", "csv", "--json", "--url", url, "--master", "local[2]"]
    into = tmp_path / "made" / "here"
    done = CliRunner().invoke(pipeline, [*asked, "--into", str(into)])
    told = json.loads(done.stdout)
    assert told["page"] == str(into / "index.html")
    assert told["tables"]["throughput_1h"] >= 1
    assert (told["tables"]["consumers"], "subjects" in told["tables"]) == (0, False)
    (file,) = (into / "partitions.csv").glob("*.csv")
    assert pyarrow.csv.read_csv(file).column("messages").to_pylist() == [30]
    assert "There are no rows." in (into / "index.html").read_text(encoding="utf-8")
    chosen = CliRunner().invoke(pipeline, [*asked, "--into", str(into), "-o", "endingOffsets=10"])
    assert chosen.exit_code == 0
    counted = [pyarrow.csv.read_csv(f) for f in (into / "throughput_1h.csv").glob("*.csv")]
    assert sum(sum(part.column("messages").to_pylist()) for part in counted) == 10


@pytest.mark.feature("S09")
def test_an_empty_topic_has_a_report(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    done = write_report(spark, name, tmp_path)
    assert {name: rows for name, rows in done.tables.items() if rows} == {"partitions": 1}
    with pytest.raises(OptionInvalid, match="bucket '1w' must be a number and s, m, h or d"):
        write_report(spark, name, tmp_path, ["1w"])


@pytest.mark.feature("S09")
def test_statistics_that_the_broker_refuses_are_warnings_of_the_report(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    secret = ("--set", "channels.gateway.secrets=a2V5")
    with Broker("--data", str(tmp_path / "data"), *FREE_PORT, *secret) as broker:
        url = f"http://{broker.host}:{broker.port}"
        with SyncClient(url) as client:
            client.create_topic(name)
            client.push(name, messages(0, 3))
        done = write_report(spark, name, tmp_path / "report", broker=url)
    first, second = done.warnings
    assert first.startswith("jobs are missing: ")
    assert second.startswith("dead letters are missing: ")
    assert (done.tables["partitions"], "jobs" in done.tables) == (1, False)
    assert f'<p class="warn">{escape(first)}</p>' in done.page.read_text(encoding="utf-8")


def test_intervals_start_at_full_hours_of_utc_in_any_session_time_zone(
    spark: SparkSession,
) -> None:
    times = [datetime(2026, 3, 29, hour, 59, 59, 999_999, UTC) for hour in (0, 1, 1, 23)]
    raw = pa.table(
        {
            "partition": [0, 0, 1, 0],
            "offset": [0, 1, 0, 2],
            "timestamp": times,
            "subject": ["a", "a", "b", "ä"],
            "headers": [None, b"12", None, None],
            "payload": [b"", b"123", None, b"1"],
        },
        pa.schema(RAW),
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        frame = spark.createDataFrame(raw, spark_schema(pa.schema(RAW)))
        hours = statistics.throughput(frame, 3600).orderBy("bucket", "partition")
        days = statistics.over_time(hours, 86400).toArrow().to_pylist()
        counted = hours.toArrow().to_pylist()
        subjects = statistics.subjects(frame, 2).toArrow().to_pylist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    begins = [row["bucket"].astimezone(UTC).hour for row in counted]
    assert begins == [0, 1, 1, 23]
    assert [(row["partition"], row["messages"], row["bytes"]) for row in counted] == [
        (0, 1, 1),
        (0, 1, 6),
        (1, 1, 1),
        (0, 1, 3),
    ]
    assert [(row["messages"], row["bytes"]) for row in days] == [(4, 11)]
    assert [(row["subject"], row["messages"], row["bytes"]) for row in subjects] == [
        ("a", 2, 7),
        ("b", 1, 1),
    ]
