"""Pipelines declared in a file, with source topics, SQL steps and sinks; run once or forever.

    name: paid
    checkpoint: /checkpoints/paid
    sources: {orders: {topic: orders}}
    steps: [{name: paid, sql: "select id, total from orders where state = 'paid'"}]
    sinks: [{from: paid, topic: paid-orders}, {from: paid, path: /lake/paid, format: parquet}]

Each sink is a streaming query with a checkpoint of its own: a run continues where the last one
stopped, and every row is written once.
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


class PipelineSource(msgspec.Struct, forbid_unknown_fields=True):
    """A source topic; its key in the file is the name of its view in queries."""

    topic: str
    options: dict[str, str] = {}


class PipelineStep(msgspec.Struct, forbid_unknown_fields=True):
    """A query over sources and earlier steps, and the name of its view."""

    name: str
    sql: str


class PipelineSink(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    """The destination of the rows of a source or step: a topic or files."""

    source: str
    topic: str | None = None
    path: str | None = None
    format: str = "parquet"


class DeclaredPipeline(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a pipeline file."""

    name: str
    checkpoint: str
    sources: dict[str, PipelineSource]
    sinks: list[PipelineSink]
    steps: list[PipelineStep] = []
    trigger: str = "10 seconds"
    """Interval of micro-batches of a continuous run."""


def parse_pipeline(text: str) -> DeclaredPipeline:
    """Parse a pipeline file; raises OptionInvalid."""
    try:
        declared = msgspec.convert(yaml.safe_load(text), DeclaredPipeline)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise OptionInvalid(f"the pipeline cannot be read: {error}") from None
    known = {*declared.sources, *(step.name for step in declared.steps)}
    if not declared.sources or not declared.sinks:
        raise OptionInvalid("a pipeline needs at least one source and one sink")
    if len(known) != len(declared.sources) + len(declared.steps):
        raise OptionInvalid("the names of sources and steps must be different")
    for sink in declared.sinks:
        if sink.source not in known:
            names = ", ".join(sorted(known))
            raise OptionInvalid(f"a sink is from {sink.source!r}, which is none of {names}")
        if (sink.topic is None) == (sink.path is None):
            raise OptionInvalid(f"the sink from {sink.source!r} needs a topic or a path, not both")
        if sink.format not in FILE_FORMATS:
            raise OptionInvalid(f"format {sink.format!r} is none of {', '.join(FILE_FORMATS)}")
    return declared


def start(
    spark: SparkSession, declared: DeclaredPipeline, continuous: bool
) -> list[StreamingQuery]:
    """Start a query for every sink; with `continuous` they do not end by themselves."""
    for name, source in declared.sources.items():
        reader = spark.readStream.format("penstock").option("topic", source.topic)
        reader.options(**source.options).load().createOrReplaceTempView(name)
    for step in declared.steps:
        spark.sql(step.sql).createOrReplaceTempView(step.name)
    trigger: dict[str, Any] = (
        {"processingTime": declared.trigger} if continuous else {"availableNow": True}
    )
    return [_start_query(spark, declared, sink, trigger) for sink in declared.sinks]


def run_pipeline(spark: SparkSession, file: Path, continuous: bool = False) -> int:
    """Run a declared pipeline to its end and return the number of rows that its queries read."""
    queries = start(spark, parse_pipeline(file.read_text(encoding="utf-8")), continuous)
    try:
        for query in queries:
            query.awaitTermination()
    finally:
        for query in queries:
            query.stop()
    return sum(progress["numInputRows"] for query in queries for progress in query.recentProgress)


def _start_query(
    spark: SparkSession, declared: DeclaredPipeline, sink: PipelineSink, trigger: dict[str, Any]
) -> StreamingQuery:
    destination = sink.topic or sink.path or ""
    # Named by the destination and not by number: a new sink must not use another's checkpoint.
    kind = "topic" if sink.topic else "files"
    checkpoint = f"{sink.source}-{kind}-{destination.strip('/').replace('/', '_')}"
    writer = spark.table(sink.source).writeStream.trigger(**trigger)
    writer = writer.option("checkpointLocation", f"{declared.checkpoint.rstrip('/')}/{checkpoint}")
    if sink.topic is not None:
        return writer.format("penstock").option("topic", sink.topic).start()
    return writer.format(sink.format).option("path", destination).start()
