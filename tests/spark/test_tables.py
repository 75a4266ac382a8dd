"""Topics as tables of open formats, read back by their own libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from penstock.cli.pipeline import pipeline
from penstock.client import SyncClient
from penstock.spark.pipelines import (
    DeltaTable,
    IcebergTable,
    PublishedTable,
    TableChanged,
    publish_topic,
)
from penstock.spark.pipelines import publish as publish_module
from penstock.spark.tables import topic as read_topic
from tests.spark.topics import FIELDS, fetched, messages, plain, rows, uploaded


class Kind:
    """A table format, with a writer and a reader of another library."""

    def __init__(self, form: str, directory: Path, topic: str) -> None:
        self.form, self.directory, self.topic = form, directory, topic
        self.files = directory if form == "delta" else directory / "files"

    def open(self) -> PublishedTable:
        if self.form == "delta":
            return DeltaTable(self.directory, self.topic)
        return IcebergTable(self.directory, f"penstock.{self.topic}")

    def read(self) -> pa.Table:
        if self.form == "delta":
            return pa.table(deltalake.DeltaTable(str(self.directory)).to_pyarrow_table())
        uri = f"sqlite:///{self.directory}/catalog.db"
        catalog = load_catalog("penstock", type="sql", uri=uri)
        return catalog.load_table(f"penstock.{self.topic}").scan().to_arrow()

    def offsets(self) -> list[int]:
        return sorted(self.read().column("offset").to_pylist())


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> Kind:
    return Kind(request.param, tmp_path / "table", name)


@pytest.mark.feature("S10")
def test_new_messages_are_added_once_with_the_same_values(
    spark: SparkSession, client: SyncClient, name: str, kind: Kind
) -> None:
    client.create_topic(name, FIELDS)
    client.push(name, rows(0, 500))
    uploaded(client, name)
    client.push(name, rows(500, 100))
    would = publish_topic(spark, name, kind.open(), kind.files, dry_run=True)
    assert (would.messages, kind.open().position()) == (600, None)
    done = publish_topic(spark, name, kind.open(), kind.files)
    assert (done.messages, done.offsets) == (600, {0: 600})
    assert publish_topic(spark, name, kind.open(), kind.files).messages == 0
    client.push(name, rows(600, 50))
    assert publish_topic(spark, name, kind.open(), kind.files).messages == 50
    found = kind.read().sort_by("offset").to_pylist()
    expected = plain(fetched(client, name))
    assert [{k: int(v) if k == "large" else v for k, v in row.items()} for row in found] == expected


@pytest.mark.feature("S10")
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_a_job_that_dies_around_its_commit_adds_every_message_once(
    spark: SparkSession,
    client: SyncClient,
    name: str,
    kind: Kind,
    committed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 100))
    publish_topic(spark, name, kind.open(), kind.files)
    client.push(name, messages(100, 100))
    table = kind.open()
    append = table.append

    def dies(*arguments: object) -> None:
        if committed:
            append(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        publish_topic(spark, name, table, kind.files)
    done = publish_topic(spark, name, kind.open(), kind.files)
    assert done.messages == (0 if committed else 100)
    assert kind.offsets() == list(range(200))


@pytest.mark.feature("S10")
def test_one_of_two_concurrent_jobs_fails_and_can_be_repeated(
    spark: SparkSession,
    client: SyncClient,
    name: str,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_topic(name)
    client.push(name, messages(0, 100))
    publish_topic(spark, name, kind.open(), kind.files)
    client.push(name, messages(100, 100))
    read: Callable[..., object] = read_topic

    def overtaken(*arguments: object, **options: object) -> object:
        with monkeypatch.context() as other:
            other.setattr(publish_module, "read_topic", read)
            assert publish_topic(spark, name, kind.open(), kind.files).messages == 100
        return read(*arguments, **options)

    monkeypatch.setattr(publish_module, "read_topic", overtaken)
    with pytest.raises(TableChanged, match="run it again"):
        publish_topic(spark, name, kind.open(), kind.files)
    assert kind.offsets() == list(range(200))


@pytest.mark.feature("S10")
def test_the_command_prints_the_number_of_added_messages(
    spark: SparkSession, client: SyncClient, url: str, name: str, kind: Kind
) -> None:
    client.create_topic(name, ["region:string"], partition_column="region")
    client.push(name, pa.table({"region": ["eu", "us", "eu"]}))
    arguments = ["table", name, str(kind.directory), "--format", kind.form, "--url", url]
    for added in (3, 0):
        done = CliRunner().invoke(pipeline, [*arguments, "--master", "local[2]"])
        assert done.stdout == f"{added} messages added to {kind.directory}\n", done.exception
    assert kind.read().num_rows == 3
