"""Jobs over a topic of a million messages, compared row by row."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from penstock.cli.pipeline import pipeline
from penstock.client import SyncClient, TopicPlan
from penstock.spark.pipelines import audit_topic
from tests.spark.conftest import HOT, MILLION, SUBJECTS
from tests.spark.topics import numbered, uploaded

TOTAL = MILLION + HOT


@pytest.fixture(scope="module")
def expected() -> pa.Table:
    """The pushed messages with their offsets."""
    offsets = pa.array(np.arange(TOTAL))
    return numbered(0, TOTAL, SUBJECTS).add_column(0, "offset", offsets)


def command(url: str, *arguments: str) -> str:
    """Run a command on the active session and return its output."""
    done = CliRunner().invoke(pipeline, [*arguments, "--url", url, "--master", "local[2]"])
    assert done.exit_code == 0, done.exception
    return done.stdout


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Assert that these are the pushed messages, each once."""
    found = found.select(expected.schema.names).sort_by("offset")
    return bool(found.cast(expected.schema).combine_chunks().equals(expected.combine_chunks()))


def objects_of(plan: TopicPlan) -> pa.Table:
    """All rows of a topic's objects, read as plain Parquet files."""
    assert plan.store is not None
    root = Path(plan.store.root)
    return pa.concat_tables(pq.read_table(root / item.key) for item in plan.objects)


@pytest.mark.feature("S05")
def test_a_million_messages_are_compacted_without_loss_or_duplicates(
    spark: SparkSession, client: SyncClient, url: str, million: str, expected: pa.Table
) -> None:
    before = uploaded(client, million)
    assert len(before.objects) > 1
    told = json.loads(command(url, "compact", million, "--json"))
    while told["refused"]:  # the broker merged some meanwhile
        told = json.loads(command(url, "compact", million, "--json"))
    assert told["objects_after"] == 1
    after = uploaded(client, million)
    assert [item.ranges for item in after.objects] == [[(0, 0, TOTAL)]]
    assert same(objects_of(after), expected)
    assert audit_topic(spark, million).sound


@pytest.mark.feature("S10")
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_million_messages_are_published_as_a_table_of_an_open_format(
    spark: SparkSession, url: str, million: str, expected: pa.Table, tmp_path: Path, form: str
) -> None:
    place = tmp_path / "table"
    arguments = ("table", million, str(place), "--format", form)
    first = (*arguments, "-o", f"endingOffsets={MILLION // 2}")
    assert command(url, *first) == f"{MILLION // 2} messages added to {place}\n"
    assert command(url, *arguments) == f"{TOTAL - MILLION // 2} messages added to {place}\n"
    assert command(url, *arguments) == f"0 messages added to {place}\n"
    if form == "delta":
        found = pa.table(deltalake.DeltaTable(str(place)).to_pyarrow_table())
    else:
        catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{place}/catalog.db")
        found = catalog.load_table(f"penstock.{million}").scan().to_arrow()
    assert same(found, expected)


@pytest.mark.feature("S09")
def test_the_report_of_a_million_messages_adds_up(
    spark: SparkSession, url: str, million: str, expected: pa.Table, tmp_path: Path
) -> None:
    told = json.loads(
        command(url, "report", million, "--into", str(tmp_path), "--bucket", "1m", "--json")
    )
    sizes = pc.add(
        pc.binary_length(expected["subject"]), pc.binary_length(expected["payload"])
    ).cast(pa.int64())
    counted = expected.append_column("bytes", sizes).group_by("subject")
    by_subject = counted.aggregate([([], "count_all"), ("bytes", "sum")]).sort_by("subject")
    found = pq.read_table(tmp_path / "subjects.parquet").sort_by("subject")
    assert found.num_rows == told["tables"]["subjects"] == SUBJECTS
    for ours, theirs in (("messages", "count_all"), ("bytes", "bytes_sum")):
        assert found[ours].to_pylist() == by_subject[theirs].to_pylist()
    over_time = pq.read_table(tmp_path / "throughput_1m.parquet")
    assert pc.sum(over_time["messages"]).as_py() == TOTAL
    assert pc.sum(over_time["bytes"]).as_py() == pc.sum(sizes).as_py()
    quantiles = pq.read_table(tmp_path / "sizes.parquet").to_pylist()
    ends = {row["quantile"]: row["bytes"] for row in quantiles}
    assert [ends[0.0], ends[1.0]] == list(pc.min_max(sizes).as_py().values())
    assert "<svg" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.feature("S11")
def test_a_declared_pipeline_writes_a_million_messages_to_every_sink(
    spark: SparkSession, client: SyncClient, url: str, million: str, name: str, tmp_path: Path
) -> None:
    client.create_topic(name, ["n:int64?", "key:string?"])
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
name: numbers
checkpoint: {tmp_path / "checkpoint"}
sources: {{messages: {{topic: {million}, options: {{maxOffsetsPerTrigger: "400000"}}}}}}
steps:
  - name: numbers
    sql: select cast(cast(payload as string) as bigint) as n, subject as key from messages
  - {{name: fives, sql: select * from numbers where n % 5 = 0}}
sinks:
  - {{from: numbers, topic: {name}}}
  - {{from: fives, path: {tmp_path / "files"}, format: parquet}}
"""
    )
    assert command(url, "run", str(file)) == f"{2 * TOTAL} rows read\n"
    assert command(url, "run", str(file)) == "0 rows read\n"
    numbers = np.arange(TOTAL)
    stored = objects_of(uploaded(client, name)).sort_by("n")
    assert np.array_equal(stored["n"].to_numpy(), numbers)
    keys = pc.binary_join_element_wise("k", pa.array(numbers % SUBJECTS).cast(pa.string()), ".")
    assert stored["key"].combine_chunks().equals(keys)
    files = spark.read.parquet(str(tmp_path / "files")).select("n").toArrow().sort_by("n")
    assert np.array_equal(files["n"].to_numpy(), numbers[::5])
