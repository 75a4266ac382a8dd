"""Topics read as tables: every committed message once, with the broker's values."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

import penstock.spark
from penstock.client import SyncClient
from penstock.model.retention import TopicRetention
from penstock.spark import planning
from tests.integration.process import FREE_PORT, Broker
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
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


def both(spark: SparkSession, topic: str, **options: object) -> list[DataFrame]:
    """`penstock.spark.topic` and `format("penstock")`."""
    reader = spark.read.format("penstock").option("topic", topic)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return [penstock.spark.topic(spark, topic, **options), reader.load()]


@pytest.mark.feature("S01", "S04", "X01")
def test_typed_rows_are_read_from_objects_and_from_the_hot_tail(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name, FIELDS)
    client.push(name, rows(0, 5000))
    uploaded(client, name)
    client.push(name, rows(5000, 100))
    expected = plain(fetched(client, name))
    assert [row["id"] for row in expected] == list(range(5100))
    for frame in both(spark, name):
        assert frame.columns == [
            "partition",
            "offset",
            "timestamp",
            *(f.split(":")[0] for f in FIELDS),
        ]
        assert collected(frame) == expected


@pytest.mark.feature("S01", "S04", "X01")
def test_raw_messages_have_the_columns_of_the_envelope(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 3000))
    uploaded(client, name)
    client.push(name, messages(3000, 77))
    expected = plain(fetched(client, name))
    for frame in both(spark, name):
        told = {field.name: field.dataType.simpleString() for field in frame.schema}
        assert told == {
            "partition": "int",
            "offset": "bigint",
            "timestamp": "timestamp",
            "subject": "string",
            "headers": "binary",
            "payload": "binary",
        }
        assert collected(frame) == expected


@pytest.mark.feature("S01")
def test_partitions_are_read_with_offsets_of_their_own(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name, ["region:string", "n:int32"], partition_column="region")
    for start in (0, 300):
        table = pa.table(
            {
                "region": [("eu", "us", "as")[i % 3] for i in range(start, start + 300)],
                "n": pa.array(range(start, start + 300), pa.int32()),
            }
        )
        client.push(name, table)
        if not start:
            uploaded(client, name)
    expected = [row for region in ("eu", "us", "as") for row in fetched(client, name, region)]
    expected.sort(key=lambda row: (row["partition"], row["offset"]))
    assert len(expected) == 600
    for frame in both(spark, name):
        assert collected(frame) == expected
    starting, ending = {"0": 20, "2": -2}, {"0": 120, "2": 5}
    options = {"startingOffsets": json.dumps(starting), "endingOffsets": json.dumps(ending)}
    for frame in both(spark, name, **options):
        counted = {
            row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()
        }
        assert counted == {0: 100, 2: 5}


@pytest.mark.feature("S01")
def test_offsets_and_times_select_a_range(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    for start in (0, 1000, 2000):
        client.push(name, messages(start, 1000))
    uploaded(client, name)
    client.push(name, messages(3000, 10))
    for frame in both(spark, name, startingOffsets=990, endingOffsets=3005):
        assert [row["offset"] for row in collected(frame.select("partition", "offset"))] == list(
            range(990, 3005)
        )
    for frame in both(spark, name, startingOffsets="latest"):
        assert frame.count() == 0
    first = fetched(client, name)[1000]["timestamp"]
    last = fetched(client, name)[3000]["timestamp"]
    for frame in both(
        spark, name, startingTimestamp=first.isoformat(), endingTimestamp=last.isoformat()
    ):
        found = {row["offset"] for row in frame.select("offset").collect()}
        stamps = {row["offset"]: row["timestamp"] for row in fetched(client, name)}
        assert found == {o for o, stamp in stamps.items() if first <= stamp < last}
    later = int(last.timestamp() * 1000) + 60_000
    for frame in both(spark, name, startingTimestamp=later):
        assert frame.count() == 0


@pytest.mark.feature("S01")
def test_times_mean_the_same_in_every_time_zone(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 10))
    uploaded(client, name)
    client.push(name, messages(10, 10))
    expected = [row["timestamp"] for row in fetched(client, name)]
    middle = expected[10].isoformat()
    for zone in ("America/New_York", "Asia/Kathmandu", "UTC"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            for frame in both(spark, name):
                table = frame.orderBy("offset").selectExpr("unix_micros(timestamp) as us").toArrow()
                assert table.column("us").to_pylist() == [
                    int(stamp.timestamp()) * 1_000_000 + stamp.microsecond for stamp in expected
                ]
                after = frame.where(f"timestamp >= timestamp'{middle}'").count()
                assert after == sum(stamp >= expected[10] for stamp in expected)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.feature("S01")
def test_a_requested_schema_reads_only_its_columns(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name, FIELDS)
    client.push(name, rows(0, 50))
    uploaded(client, name)
    client.push(name, rows(50, 50))
    reader = spark.read.format("penstock").option("topic", name)
    frame = reader.schema("text string, id bigint").load()
    assert frame.columns == ["text", "id"]
    assert {row["id"] for row in frame.collect()} == set(range(100))
    for wrong in ("id int", "nothing string"):
        with pytest.raises(Exception, match=r"is bigint, not int|has no column 'nothing'"):
            reader.schema(wrong).load().collect()


@pytest.mark.feature("S01", "S04")
def test_two_filters_over_one_frame_do_not_affect_each_other(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 1000))
    uploaded(client, name)
    client.push(name, messages(1000, 1000))
    for frame in both(spark, name):
        parts = frame.where("offset >= 1500").union(frame.where("offset < 200"))
        assert parts.count() == 700
        assert frame.select("payload").count() == 2000


@pytest.mark.feature("S01")
def test_work_is_divided_into_the_requested_number_of_tasks(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 4000))
    uploaded(client, name)
    client.push(name, messages(4000, 1000))
    frame = spark.read.format("penstock").option("topic", name).option("minPartitions", 8).load()
    assert frame.rdd.getNumPartitions() >= 8
    assert frame.select("offset").distinct().count() == 5000


@pytest.mark.feature("S01", "S04")
def test_an_empty_topic_and_a_topic_in_memory_can_be_read(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    for frame in both(spark, name):
        assert frame.count() == 0
    client.create_topic(f"{name}m", durability="memory")
    client.push(f"{name}m", [b"a", b"b"])
    for frame in both(spark, f"{name}m"):
        assert [bytes(row["payload"]) for row in frame.orderBy("offset").collect()] == [b"a", b"b"]


@pytest.mark.feature("S01", "S04")
def test_deleted_messages_are_not_read_from_any_kind_of_object(
    spark: SparkSession, client: SyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 1000))
    uploaded(client, name)
    frame = spark.range(0, 500, 1, 1).selectExpr("'linked ' || id as payload")
    frame.write.format("penstock").option("topic", name).mode("append").save()
    plan = uploaded(client, name)
    assert {item.linked for item in plan.objects} == {False, True}
    dead = BitMap64([0, 5, *range(100, 200), 1100, *range(1490, 1500)])
    plan.partitions[0].deleted = base64.b64encode(dead.serialize()).decode()
    monkeypatch.setattr(planning, "make_plan", lambda options, with_objects=True: plan)
    table = penstock.spark.topic(spark, name)
    found = [row["offset"] for row in collected(table.select("partition", "offset"))]
    assert found == sorted(set(range(1500)) - set(dead))
    part = penstock.spark.topic(spark, name, startingOffsets=150, endingOffsets=1110)
    found = [row["offset"] for row in collected(part.select("partition", "offset"))]
    assert found == sorted(set(range(150, 1110)) - set(dead))


@pytest.mark.feature("S14")
def test_lost_offsets_fail_or_are_skipped(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name, retention=TopicRetention(max_messages=100))
    client.push(name, messages(0, 1000))
    wait_for(lambda: plan_of(client, name).partitions[0].start_offset == 900)
    with pytest.raises(Exception, match="offsets 10 to 899 are gone"):
        penstock.spark.topic(spark, name, startingOffsets=10).count()
    reader = spark.read.format("penstock").option("topic", name).option("startingOffsets", 10)
    with pytest.raises(Exception, match="offsets 10 to 899 are gone"):
        reader.load().count()
    for frame in both(spark, name, startingOffsets=10, failOnDataLoss=False):
        assert {row["offset"] for row in frame.select("offset").collect()} == set(range(900, 1000))
    for frame in both(spark, name):
        assert frame.count() == 100


@pytest.mark.feature("S13")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "nowhere"}, "topics/nowhere does not exist"),
        ({"topic": "x", "broker": "http://127.0.0.1:9"}, "127.0.0.1:9 does not answer"),
        ({"topic": "x", "startingofsets": "1"}, "unknown option 'startingofsets'"),
        ({}, "option topic is missing"),
    ],
)
def test_errors_are_one_line(spark: SparkSession, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        spark.read.format("penstock").options(**options).load()


@pytest.mark.feature("S01", "S12")
def test_python_workers_read_a_bucket_that_spark_cannot_read(
    spark: SparkSession, rclone: S3Server, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    cloud = rclone.cloud()
    settings = {
        "storage.mode": "wal_cloud",
        "storage.cloud.backend": "s3",
        "storage.cloud.root": cloud.root,
        "storage.cloud.s3.endpoint": cloud.s3.endpoint,
        "storage.cloud.s3.region": cloud.s3.region,
        "storage.cloud.s3.access_key": ACCESS_KEY,
        "storage.cloud.s3.secret_key": SECRET_KEY,
        "storage.uploader.interval_seconds": "1",
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    data = tmp_path_factory.mktemp("s3-broker")
    with Broker("--data", str(data), *FREE_PORT, *sets) as broker:
        url = f"http://{broker.host}:{broker.port}"
        with SyncClient(url) as client:
            client.create_topic(name, FIELDS)
            client.push(name, rows(0, 2000))
            uploaded(client, name)
            client.push(name, rows(2000, 50))
            expected = plain(fetched(client, name))
        keys = {"store.access_key": ACCESS_KEY, "store.secret_key": SECRET_KEY}
        for frame in both(spark, name, broker=url, **keys):
            assert collected(frame) == expected
        for frame in both(
            spark, name, broker=url, **keys, startingOffsets=1990, endingOffsets=2010
        ):
            assert collected(frame) == expected[1990:2010]
