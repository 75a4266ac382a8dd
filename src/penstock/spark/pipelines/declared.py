"""Pipelines declared in a file: source topics, SQL between, sinks; once or without end.

    name: paid
    checkpoint: /checkpoints/paid
    sources: {orders: {topic: orders}}
    steps: [{name: paid, sql: "select id, total from orders where state = 'paid'"}]
    sinks: [{from: paid, topic: paid-orders}, {from: paid, path: /lake/paid, format: parquet}]

Each sink is a streaming query with a checkpoint of its own, so a run goes on where the last one
stopped, and a topic or a directory of files gets every row once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.errors import OptionInvalid

FILE_FORMATS: Final = ("parquet", "json", "csv", "orc")


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """A topic, under the name that it has in queries."""

    topic: str
    options: dict[str, str] = {}


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """A query over sources and earlier steps, and the name of what it gives."""

    name: str
    sql: str


class Sink(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    """Where the rows of a source or step go: into a topic, or into files."""

    source: str
    topic: str | None = None
    path: str | None = None
    format: str = "parquet"


class Pipeline(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    name: str
    checkpoint: str
    sources: dict[str, Source]
    sinks: list[Sink]
    steps: list[Step] = []
    trigger: str = "10 seconds"
    """How often a pipeline without end looks for what is new."""


def read(text: str) -> Pipeline:
    """A pipeline as it is written; raises OptionInvalid."""
    try:
        declared = msgspec.convert(yaml.safe_load(text), Pipeline)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise OptionInvalid(f"the pipeline cannot be read: {error}") from None
    known = {*declared.sources, *(step.name for step in declared.steps)}
    if not declared.sources or not declared.sinks:
        raise OptionInvalid("a pipeline needs at least one source and one sink")
    if len(known) != len(declared.sources) + len(declared.steps):
        raise OptionInvalid("a name is there twice among the sources and steps")
    for sink in declared.sinks:
        if sink.source not in known:
            names = ", ".join(sorted(known))
            raise OptionInvalid(f"a sink is from {sink.source!r}, which is none of {names}")
        if (sink.topic is None) == (sink.path is None):
            raise OptionInvalid(f"the sink from {sink.source!r} needs a topic or a path, not both")
        if sink.format not in FILE_FORMATS:
            raise OptionInvalid(f"format {sink.format!r} is none of {', '.join(FILE_FORMATS)}")
    return declared


def start(spark: SparkSession, declared: Pipeline, continuous: bool) -> list[StreamingQuery]:
    """One running query for every sink; with `continuous` they do not end by themselves."""
    for name, source in declared.sources.items():
        reader = spark.readStream.format("penstock").option("topic", source.topic)
        reader.options(**source.options).load().createOrReplaceTempView(name)
    for step in declared.steps:
        spark.sql(step.sql).createOrReplaceTempView(step.name)
    trigger: dict[str, Any] = (
        {"processingTime": declared.trigger} if continuous else {"availableNow": True}
    )
    return [_started(spark, declared, sink, trigger) for sink in declared.sinks]


def run(spark: SparkSession, file: Path, continuous: bool = False) -> int:
    """Run a declared pipeline until it is done; how many rows its queries read."""
    queries = start(spark, read(file.read_text(encoding="utf-8")), continuous)
    try:
        for query in queries:
            query.awaitTermination()
    finally:
        for query in queries:
            query.stop()
    return sum(progress["numInputRows"] for query in queries for progress in query.recentProgress)


def _started(
    spark: SparkSession, declared: Pipeline, sink: Sink, trigger: dict[str, Any]
) -> StreamingQuery:
    place = sink.topic or sink.path or ""
    # By where it goes, not by its number: a sink that is added must not take another's progress.
    kept = (
        f"{sink.source}-{'topic' if sink.topic else 'files'}-{place.strip('/').replace('/', '_')}"
    )
    writer = spark.table(sink.source).writeStream.trigger(**trigger)
    writer = writer.option("checkpointLocation", f"{declared.checkpoint.rstrip('/')}/{kept}")
    if sink.topic is not None:
        return writer.format("penstock").option("topic", sink.topic).start()
    return writer.format(sink.format).option("path", place).start()
