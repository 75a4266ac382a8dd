"""A topic as a DataFrame that is, for all that lies in objects, Spark's own Parquet scan.

    whole objects -> plain scan            linked ones -> scan, offsets from row numbers
    the others    -> scan, cut to what counts       the rest -> format("penstock")

The four are united. Where Spark itself cannot read the bucket (its pip package has no classes for
S3), all of it is `format("penstock")`, whose tasks read objects with Arrow.
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

from penstock.client.plans import Plan
from penstock.formats.plan_api import StoreReply
from penstock.model.names import TopicName
from penstock.spark import columns, planning, slices
from penstock.spark import options as options_
from penstock.spark.jvm import has_file_system
from penstock.spark.options import Options
from penstock.spark.reader import bucket_of
from penstock.spark.sessions import broker_of
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
    """The topic as it is now, or the part of it that the options of `format("penstock")` choose.

    Planned once: the DataFrame gives the same messages whenever it is used, for as long as the
    broker keeps replaced objects (`storage.uploader.trash_seconds`).
    """
    told = {key: str(value) for key, value in options.items()}
    read = options_.read({"topic": name, **told}, broker_of(spark))
    plan = planning.make_plan(read)
    wanted = planning.wanted(read, plan)
    schema = columns.spark_schema(columns.arrow_schema(plan.topic))
    root = _root(spark, read, plan)
    pieces = slices.cut(plan, wanted, from_objects=root is not None)
    parts = [] if root is None else _scans(spark, read.topic, root, schema, pieces)
    rest = [piece for piece in pieces if isinstance(piece, FetchSlice)]
    if root is None and bucket_of(read, plan) is not None:
        parts.append(_source(spark, read, told, wanted, "bucket"))
    elif rest or not parts:
        # Between the objects of a partition nothing is hot but what the broker must explain.
        parts += _hot(spark, read, told, rest)
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
    if some := [piece for piece in own if not piece.whole]:
        parts.append(_cut(spark, _scan(spark, root, schema, some), some))
    if linked := [piece for piece in objects if piece.linked]:
        frame = _with_offsets(spark, root, schema, topic_, linked)
        partial = any(not piece.whole for piece in linked)
        parts.append(_cut(spark, frame, linked) if partial else frame)
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
    """Rows of linked objects: the n-th of a file has the n-th offset of its range."""
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


def _cut(spark: SparkSession, frame: DataFrame, pieces: Sequence[ObjectSlice]) -> DataFrame:
    """Only the rows within the spans, and of those none that is deleted."""
    spans = _joined([(s.partition, s.first, s.next) for piece in pieces for s in piece.spans])
    low, high = min(first for _, first, _ in spans), max(next_ for _, _, next_ in spans)
    bounds = spark.createDataFrame(spans, "partition int, __first bigint, __next bigint")
    # The plain condition is for Parquet, which leaves out row groups by it.
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
    """Runs of deleted offsets: partition, first, and the one behind the last."""
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
    """Runs of offsets in a set: the first, and the one behind the last."""
    offsets = np.asarray(bitmap.to_array(), np.uint64).astype(np.int64)
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts, lasts = offsets[np.append(0, breaks)], offsets[np.append(breaks, len(offsets)) - 1]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _joined(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Neighbouring spans as one."""
    found: list[tuple[int, int, int]] = []
    for partition, first, next_ in sorted(set(spans)):
        if found and found[-1][0] == partition and found[-1][2] >= first:
            found[-1] = (partition, found[-1][1], max(found[-1][2], next_))
        else:
            found.append((partition, first, next_))
    return found


# -- what is not scanned


def _hot(
    spark: SparkSession, read: Options, told: dict[str, str], rest: Sequence[FetchSlice]
) -> list[DataFrame]:
    """The slices through the broker: one source for the first of every partition, and so on."""
    layers: list[dict[int, tuple[int, int]]] = [{}]
    for piece in rest:
        layer = next((layer for layer in layers if piece.partition not in layer), None)
        if layer is None:
            layer = {}
            layers.append(layer)
        layer[piece.partition] = (piece.first, piece.next)
    return [_source(spark, read, told, layer, "broker") for layer in layers]


def _source(
    spark: SparkSession,
    read: Options,
    told: dict[str, str],
    wanted: slices.Wanted,
    through: str,
) -> DataFrame:
    """These offsets by the data source; partitions that are not wanted end where they begin."""
    reader = spark.read.format("penstock").option("topic", str(read.topic))
    for name, value in told.items():
        if name.lower() not in _REPLACED:
            reader = reader.option(name, value)
    offsets = {
        "startingOffsets": {partition: first for partition, (first, _) in wanted.items()},
        "endingOffsets": {partition: next_ for partition, (_, next_) in wanted.items()},
    }
    for name, by_partition in offsets.items():
        reader = reader.option(name, json.dumps(by_partition))
    return reader.option("broker", read.broker).option("through", through).load()


# -- whether Spark itself can read the bucket


def _root(spark: SparkSession, read: Options, plan: Plan) -> str | None:
    """The bucket as Spark names it, None when it cannot be read by Spark."""
    bucket = bucket_of(read, plan)
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
