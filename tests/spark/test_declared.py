"""A declared pipeline writes every row to every sink once, in any number of runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from penstock.cli.pipeline import pipeline
from penstock.client import SyncClient
from penstock.spark.pipelines import declared
from tests.spark.topics import fetched, messages, wait_for


def write(tmp_path: Path, name: str) -> Path:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
name: fives
checkpoint: {tmp_path / "checkpoint"}
trigger: 1 second
sources: {{messages: {{topic: {name}}}}}
steps:
  - name: numbers
    sql: select cast(split(cast(payload as string), ' ')[1] as bigint) as n from messages
  - {{name: fives, sql: select n from numbers where n % 5 = 0}}
sinks:
  - {{from: fives, topic: {name}fives}}
  - {{from: fives, path: {tmp_path / "files"}, format: parquet}}
"""
    )
    return file


@pytest.mark.feature("S11")
def test_a_declared_pipeline_continues_where_it_stopped(
    spark: SparkSession, client: SyncClient, url: str, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.create_topic(f"{name}fives", ["n:int64?"])
    file = write(tmp_path, name)
    for first in (0, 1000):
        client.push(name, messages(first, 1000))
        arguments = ["run", str(file), "--url", url, "--master", "local[2]"]
        done = CliRunner().invoke(pipeline, arguments)
        assert done.stdout == "2000 rows read\n", done.exception
    expected = list(range(0, 2000, 5))
    assert sorted(row["n"] for row in fetched(client, f"{name}fives")) == expected
    files = spark.read.parquet(str(tmp_path / "files")).orderBy("n").toArrow()
    assert files.column("n").to_pylist() == expected


@pytest.mark.feature("S11")
def test_a_continuous_pipeline_processes_new_messages(
    spark: SparkSession, client: SyncClient, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    client.create_topic(f"{name}fives", ["n:int64?"])
    read = declared.parse_pipeline(write(tmp_path, name).read_text())
    queries = declared.start(spark, read, continuous=True)
    try:
        for first in (0, 100):
            client.push(name, messages(first, 100))
            wait_for(partial(_has, client, f"{name}fives", (first + 100) // 5))
        assert all(query.isActive for query in queries)
    finally:
        for query in queries:
            query.stop()


def _has(client: SyncClient, topic: str, messages_: int) -> bool:
    return client.partitions(topic)[0].next_offset == messages_
