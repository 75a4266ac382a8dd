"""Topics as DataFrames: `topic` reads a range of messages, `stream` reads without end.

`topic` is a union of Spark's own Parquet scans and of the data source:

    whole objects      plain scan
    parts of objects   scan, filtered by spans and deleted offsets
    linked objects     scan, with offsets from row numbers
    hot offsets        format("penstock"), through the broker

If Spark cannot read the bucket (its pip package has no classes for S3), all of it is
`format("penstock")`, whose tasks read objects with Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

import numpy as np
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them
from pyspark.sql.types import StructType

from penstock.client import TopicPlan
from penstock.formats.plan_api import StoreReply
from penstock.model.names import TopicName
from penstock.spark import columns, planning, slices
from penstock.spark import options as options_
from penstock.spark.options import EARLIEST, SourceOptions
from penstock.spark.readers import reachable_bucket
from penstock.spark.sessions import SmallTextFile, broker_of, has_file_system
from penstock.spark.slices import FetchSlice, ObjectSlice

_SCHEMES: Final = {"s3": ("s3://", "s3a://"), "gcs": ("gs://", "gs://"), "azblob": ("az://", "")}
_REPLACED: Final = (
    "topic",
    "namespace",
    "broker",
    "through",
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
)
_RUNS_BROADCAST_MAX: Final = 1 << 20


def topic(spark: SparkSession, name: str, **options: object) -> DataFrame:
    """The current messages of a topic, or those that the options of `format("penstock")` select.

    The plan is made once: the DataFrame has the same messages whenever it is used, for as long as
    the broker keeps replaced objects (`storage.uploader.trash_seconds`).
    """
    texts = {key: str(value) for key, value in options.items()}
    read = options_.read({"topic": name, **texts}, broker_of(spark))
    plan = planning.make_plan(read)
    ranges = planning.selected_offsets(read, plan)
    schema = columns.spark_schema(columns.arrow_schema(plan.topic))
    root = _root(spark, read, plan)
    pieces = slices.slice_plan(plan, ranges, from_objects=root is not None)
    parts = [] if root is None else _scans(spark, read.topic, root, schema, pieces)
    fetches = [piece for piece in pieces if isinstance(piece, FetchSlice)]
    if root is None and reachable_bucket(read, plan) is not None:
        parts.append(_source(spark, read, texts, ranges, "bucket"))
    elif fetches or not parts:
        # Offsets between the objects of a partition are fetched too: the broker reports errors.
        parts += _hot(spark, read, texts, fetches)
    return reduce(DataFrame.unionAll, parts)


def _scans(
    spark: SparkSession,
    topic_: TopicName,
    root: str,
    schema: StructType,
    pieces: Iterable[slices.Slice],
) -> list[DataFrame]:
    objects = [piece for piece in pieces if isinstance(piece, ObjectSlice)]
    own = [piece for piece in objects if not piece.linked]
    parts = []
    if whole := [piece for piece in own if piece.whole]:
        parts.append(_scan(spark, root, schema, whole))
    if partial := [piece for piece in own if not piece.whole]:
        parts.append(_live_rows(spark, _scan(spark, root, schema, partial), partial))
    if linked := [piece for piece in objects if piece.linked]:
        frame = _with_offsets(spark, root, schema, topic_, linked)
        whole_only = all(piece.whole for piece in linked)
        parts.append(frame if whole_only else _live_rows(spark, frame, linked))
    return parts


def _scan(
    spark: SparkSession, root: str, schema: StructType, pieces: Sequence[ObjectSlice]
) -> DataFrame:
    return spark.read.schema(schema).parquet(*(f"{root}/{piece.key}" for piece in pieces))


def _with_offsets(
    spark: SparkSession,
    root: str,
    schema: StructType,
    topic_: TopicName,
    pieces: Sequence[ObjectSlice],
) -> DataFrame:
    """Rows of linked objects, whose offsets are counted from the start of their range."""
    stored = StructType([field for field in schema if field.name not in columns.LEAD])
    unique = {piece.key: piece for piece in pieces}
    scanned = _scan(spark, root, stored, list(unique.values())).select(
        *stored.names,
        F.col("_metadata.file_name").alias("__file"),
        F.col("_metadata.row_index").alias("__row"),
    )
    facts = [
        (piece.key.rpartition("/")[2], span.partition, span.base, piece.timestamp)
        for piece in pieces
        for span in piece.spans
    ]
    places = spark.createDataFrame(
        list(dict.fromkeys(facts)), "__file string, partition int, __first bigint, __time bigint"
    )
    joined = scanned.join(F.broadcast(places), "__file").select(
        *stored.names,
        "partition",
        (F.col("__first") + F.col("__row")).alias("offset"),
        F.timestamp_micros("__time").alias("timestamp"),
    )
    if "subject" in schema.names:
        own = F.coalesce("subject", F.lit(topic_.topic))
        joined = joined.withColumn("subject", own)
    return joined.select(*schema.names)


def _live_rows(spark: SparkSession, frame: DataFrame, pieces: Sequence[ObjectSlice]) -> DataFrame:
    """The rows within the spans that are not deleted."""
    spans = _merged([(s.partition, s.first, s.next) for piece in pieces for s in piece.spans])
    low, high = min(first for _, first, _ in spans), max(next_ for _, _, next_ in spans)
    bounds = spark.createDataFrame(spans, "partition int, __first bigint, __next bigint")
    # Parquet skips row groups by the plain condition.
    frame = frame.where((F.col("offset") >= low) & (F.col("offset") < high)).join(
        F.broadcast(bounds),
        (frame["partition"] == bounds["partition"])
        & (frame["offset"] >= bounds["__first"])
        & (frame["offset"] < bounds["__next"]),
        "left_semi",
    )
    dead = deleted_runs(pieces)
    if not dead:
        return frame
    runs = spark.createDataFrame(dead, "partition int, __first bigint, __next bigint")
    gone = runs.select(
        "partition", F.explode(F.sequence("__first", F.col("__next") - 1)).alias("offset")
    )
    if sum(next_ - first for _, first, next_ in dead) <= _RUNS_BROADCAST_MAX:
        gone = F.broadcast(gone)
    return frame.join(gone, ["partition", "offset"], "left_anti").select(*frame.columns)


def deleted_runs(pieces: Iterable[ObjectSlice]) -> list[tuple[int, int, int]]:
    """Runs of deleted offsets: partition, first offset and end offset."""
    found: dict[int, BitMap64] = {}
    for piece in pieces:
        for partition, data in piece.deleted:
            found[partition] = found.get(partition, BitMap64()) | BitMap64.deserialize(data)
    return [
        (partition, first, next_)
        for partition, bitmap in sorted(found.items())
        for first, next_ in runs_of(bitmap)
    ]


def runs_of(bitmap: BitMap64) -> list[tuple[int, int]]:
    """Runs of offsets in a set: first offset and end offset."""
    offsets = np.asarray(bitmap.to_array(), np.uint64).astype(np.int64)
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts, lasts = offsets[np.append(0, breaks)], offsets[np.append(breaks, len(offsets)) - 1]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _merged(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Spans with adjacent and overlapping ones merged."""
    found: list[tuple[int, int, int]] = []
    for partition, first, next_ in sorted(set(spans)):
        if found and found[-1][0] == partition and found[-1][2] >= first:
            found[-1] = (partition, found[-1][1], max(found[-1][2], next_))
        else:
            found.append((partition, first, next_))
    return found


# -- offsets that are read by the data source


def _hot(
    spark: SparkSession, read: SourceOptions, texts: dict[str, str], fetches: Sequence[FetchSlice]
) -> list[DataFrame]:
    """Reads of slices through the broker: one with the first slice of each partition, and so on."""
    layers: list[dict[int, tuple[int, int]]] = [{}]
    for piece in fetches:
        layer = next((layer for layer in layers if piece.partition not in layer), None)
        if layer is None:
            layer = {}
            layers.append(layer)
        layer[piece.partition] = (piece.first, piece.next)
    return [_source(spark, read, texts, layer, "broker") for layer in layers]


def _source(
    spark: SparkSession,
    read: SourceOptions,
    texts: dict[str, str],
    ranges: slices.OffsetRanges,
    through: str,
) -> DataFrame:
    """A read of ranges by the data source; the ranges of other partitions are empty."""
    reader = spark.read.format("penstock").option("topic", str(read.topic))
    for name, value in texts.items():
        if name.lower() not in _REPLACED:
            reader = reader.option(name, value)
    offsets = {
        "startingOffsets": {partition: first for partition, (first, _) in ranges.items()},
        "endingOffsets": {partition: next_ for partition, (_, next_) in ranges.items()},
    }
    for name, by_partition in offsets.items():
        reader = reader.option(name, json.dumps(by_partition))
    return reader.option("broker", read.broker).option("through", through).load()


# -- whether Spark itself can read the bucket


def _root(spark: SparkSession, read: SourceOptions, plan: TopicPlan) -> str | None:
    """The bucket's URL for Spark; None if Spark cannot read the bucket."""
    bucket = reachable_bucket(read, plan)
    if bucket is None or plan.store is None:
        return None
    if bucket.directory is not None:
        return f"file://{bucket.directory}"
    return _hadoop_root(spark, plan.store)


def _hadoop_root(spark: SparkSession, store: StoreReply) -> str | None:
    ours, theirs = _SCHEMES.get(store.backend, ("", ""))
    if not theirs or not has_file_system(spark, theirs.removesuffix("://")):
        return None
    return theirs + store.root.removeprefix(ours).rstrip("/")


FILE: Final = "penstock-start.json"
_STARTING: Final = ("startingoffsets", "startingtimestamp")


def stream(spark: SparkSession, topic: str, checkpoint: str, **options: object) -> DataFrame:
    """A streaming DataFrame of a topic, for a query whose `checkpointLocation` is `checkpoint`.

    Options are those of `format("penstock")`. `startingOffsets` and `startingTimestamp` are
    resolved when the checkpoint is new and stored in it, so that a restart begins at the same
    messages.
    """
    texts = {name: str(value) for name, value in options.items()}
    starting = {name: texts.pop(name) for name in list(texts) if name.lower() in _STARTING}
    read = options_.read({"topic": topic, **texts, **starting}, broker_of(spark))
    file = SmallTextFile(spark, f"{checkpoint.rstrip('/')}/{FILE}")
    position = file.read()
    if position is None:
        plan = planning.make_plan(read, with_objects=False)
        begins = planning.starting_offsets(read, plan)
        simple = read.starting == EARLIEST and read.starting_us is None
        position = "earliest" if simple else json.dumps(begins)
        file.write(position)
    reader = spark.readStream.format("penstock").option("topic", str(read.topic))
    for name, value in texts.items():
        reader = reader.option(name, value)
    return reader.option("broker", read.broker).option("startingOffsets", position).load()
