"""Small objects become large ones: made by Spark's workers, counted by the topic's owner.

    plan -> runs of neighbours -> one new object a run (read, sort, write, read back) -> swap

The owner takes a proposal only while everything it replaces still counts, so readers, producers,
the broker's own merging and a second compaction are not in the way. A job that dies leaves objects
that nobody counts, and which the owner is asked to sweep. Linked objects become ordinary ones, and
what was deleted is left out for good.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyspark.sql import SparkSession

from penstock.client import plans
from penstock.client.calls import schema_of
from penstock.client.exchange import BrokerRefused
from penstock.client.plans import Plan
from penstock.formats import objects as form
from penstock.formats.objects import OBJECT_VERSION, ObjectFacts, Range
from penstock.formats.plan_api import CompactedObject, PlanObject
from penstock.model.names import TopicName
from penstock.objects.interface import ObjectMissing
from penstock.spark import options as options_
from penstock.spark import planning, slices
from penstock.spark.buckets import Bucket
from penstock.spark.errors import DataUnread, OptionInvalid
from penstock.spark.reader import bucket_of
from penstock.spark.reading import patiently, stored_tables
from penstock.spark.sessions import broker_of
from penstock.spark.slices import ObjectSlice, deleted_of

OBJECT_BYTES: Final = 128 << 20
OBJECTS_AT_ONCE: Final = 60
"""Of one run: what one change of the manifest can take out."""

_STALE: Final = 409
_RESULT: Final = "run int, key string, size bigint, crc bigint, etag string, problem string"


class Compacted(NamedTuple):
    """What a compaction did, or would do."""

    objects_before: int
    objects_after: int
    rows: int
    """In objects that were written anew."""
    refused: int
    """Runs that changed under way; the next compaction looks at them again."""
    swept: int
    """Objects of jobs that died long ago, removed."""


def compact(
    spark: SparkSession,
    topic: str,
    object_bytes: int = OBJECT_BYTES,
    dry_run: bool = False,
    **options: object,
) -> Compacted:
    """Join small objects of a topic into ones of about `object_bytes`."""
    told = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **told}, broker_of(spark))
    plan = planning.make_plan(read)
    bucket = bucket_of(read, plan)
    if bucket is None:
        raise OptionInvalid(f"topic {topic} has no bucket that Spark can reach")
    runs = choose(plan, object_bytes)
    before, replaced = len(plan.objects), sum(len(run) for run in runs)
    rows = sum(item.rows for run in runs for item in run)
    if dry_run:
        return Compacted(before, before - replaced + len(runs), rows, 0, 0)
    refused = done = 0
    for row in _made(spark, read.topic, plan, bucket, runs):
        if row["problem"]:
            raise DataUnread(f"topic {topic}: {row['problem']}")
        keys = [item.key for item in runs[row["run"]]]
        made = CompactedObject(row["key"], row["size"], row["crc"], row["etag"])
        if _swapped(read.broker, read.topic, keys, made):
            done += len(keys) - 1
        else:
            bucket.delete(made.key)
            refused += 1
    swept = patiently(read.broker, lambda: plans.sweep(read.topic))
    return Compacted(before, before - done, rows, refused, swept.swept)


def choose(plan: Plan, object_bytes: int) -> list[list[PlanObject]]:
    """Runs of neighbours that are worth one object each."""
    deleted = {item.partition_id: deleted_of(item) for item in plan.partitions}
    runs: list[list[PlanObject]] = []
    ends: dict[int, int] = {}
    size = 0
    for item in plan.objects:
        whole = all(
            ends.get(p, first) == first
            or deleted[p].range_cardinality(ends[p], first) == first - ends[p]
            for p, first, _ in item.ranges
        )
        fits = size + item.size <= object_bytes and runs and len(runs[-1]) < OBJECTS_AT_ONCE
        if not (whole and fits):
            runs.append([])
            ends, size = {}, 0
        runs[-1].append(item)
        size += item.size
        ends |= {p: next_ for p, _, next_ in item.ranges}
    return [run for run in runs if len(run) > 1 or run[0].linked]


def _swapped(broker: str, topic: TopicName, keys: Sequence[str], made: CompactedObject) -> bool:
    try:
        patiently(broker, lambda: plans.compact(topic, keys, made))
    except BrokerRefused as error:
        if error.status != _STALE:
            raise
        return False
    return True


# -- in tasks


def _made(
    spark: SparkSession,
    topic: TopicName,
    plan: Plan,
    bucket: Bucket,
    runs: Sequence[Sequence[PlanObject]],
) -> Iterator[Any]:
    """One row for every new object, as soon as it is there."""
    if not runs:
        return iter(())
    own = schema_of(plan.topic)
    schema = b"" if own is None else own.serialize().to_pybytes()
    typed = own is not None
    wanted = {i.partition_id: (i.start_offset, i.next_offset) for i in plan.partitions}
    pieces = {p.key: p for p in slices.cut(plan, wanted) if isinstance(p, ObjectSlice)}
    rows = [
        (number, msgspec.msgpack.encode((run, [pieces.get(item.key) for item in run])))
        for number, run in enumerate(runs)
    ]
    frame = spark.createDataFrame(rows, "run int, work binary").repartition(len(rows))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                run, cut = _decoded(row["work"])
                yield _result(row["run"], bucket, topic, run, cut, typed, schema)

    return frame.mapInArrow(work, _RESULT).toLocalIterator(prefetchPartitions=True)


def _decoded(data: bytes) -> tuple[list[PlanObject], list[ObjectSlice | None]]:
    decoded: tuple[list[PlanObject], list[ObjectSlice | None]] = msgspec.msgpack.decode(
        data, type=tuple[list[PlanObject], list[ObjectSlice | None]]
    )
    return decoded


def _result(
    number: int,
    bucket: Bucket,
    topic: TopicName,
    run: Sequence[PlanObject],
    cut: Sequence[ObjectSlice | None],
    typed: bool,
    schema: bytes,
) -> pa.RecordBatch:
    made, problem = None, None
    try:
        made = merged(bucket, topic, run, cut, typed, schema)
    except (OSError, pa.ArrowException, ObjectMissing) as error:
        problem = f"objects {run[0].key} to {run[-1].key}: {error}"
    return pa.record_batch(
        {
            "run": pa.array([number], pa.int32()),
            "key": pa.array([made and made.key], pa.string()),
            "size": pa.array([made and made.size_bytes], pa.int64()),
            "crc": pa.array([made and made.crc32c], pa.int64()),
            "etag": pa.array([made and made.etag], pa.string()),
            "problem": pa.array([problem], pa.string()),
        }
    )


def merged(
    bucket: Bucket,
    topic: TopicName,
    run: Sequence[PlanObject],
    cut: Sequence[ObjectSlice | None],
    typed: bool,
    schema: bytes,
) -> CompactedObject:
    """One object from several, put and read back."""
    facts = _facts(topic, run, typed, schema)
    stored = form.stored_schema(facts)
    tables = [
        table
        for piece in cut
        if piece is not None
        for table in stored_tables(bucket, topic, piece, stored)
    ]
    table = pa.concat_tables(tables) if tables else stored.empty_table()
    partitions = table.column("partition").to_numpy()
    if (np.diff(partitions) < 0).any():
        table = table.take(pa.array(np.argsort(partitions, kind="stable")))
    data = form.encode_table(table, msgspec.structs.replace(facts, rows=table.num_rows))
    key = form.object_key(topic, time.time_ns() // 1000, facts.ranges, uuid.uuid4().hex)
    info = bucket.put(key, data)
    crc = crc32c(data)
    if crc32c(bucket.get(key)) != crc:
        raise OSError(f"object {key} reads back wrong")
    return CompactedObject(key, len(data), crc, info.etag)


def _facts(topic: TopicName, run: Sequence[PlanObject], typed: bool, schema: bytes) -> ObjectFacts:
    spans: dict[int, Range] = {}
    for partition, first, next_ in (span for item in run for span in item.ranges):
        held = spans.get(partition, Range(partition, first, next_))
        spans[partition] = Range(partition, min(held.first, first), max(held.next, next_))
    return ObjectFacts(
        version=OBJECT_VERSION,
        topic=str(topic),
        ranges=[spans[partition] for partition in sorted(spans)],
        rows=0,
        first_timestamp=min(item.first_timestamp for item in run),
        last_timestamp=max(item.last_timestamp for item in run),
        epoch=max(item.epoch for item in run),
        first_frame=run[0].first_frame,
        next_frame=max(item.next_frame for item in run),
        typed=typed,
        schema=schema,
    )
