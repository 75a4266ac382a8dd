"""Compaction of small objects into large ones, by Spark's workers and the topic's owner.

    plan -> runs of neighbours -> one new object a run (read, sort, write, read back) -> swap

Workers write the new objects; the owner replaces a run only if all its objects are still in the
manifest. So readers, producers, the broker's own merges and a second compaction may run at the same
time. A job that dies leaves objects that are not in the manifest; the owner sweeps them. Linked
objects become ordinary ones, and deleted messages are removed for good.
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

from penstock.client import BrokerRefused, TopicPlan, compact_objects, sweep_objects, topic_schema
from penstock.formats import objects as form
from penstock.formats.objects import OBJECT_VERSION, ObjectFacts
from penstock.formats.plan_api import CompactedObject, PlanObject
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.objects import ObjectMissing
from penstock.spark import options as options_
from penstock.spark import planning, slices
from penstock.spark.buckets import SparkBucket
from penstock.spark.errors import DataUnread, OptionInvalid
from penstock.spark.planning import ask_broker
from penstock.spark.readers import reachable_bucket
from penstock.spark.sessions import broker_of
from penstock.spark.slice_reader import object_tables
from penstock.spark.slices import ObjectSlice, deleted_of

OBJECT_BYTES: Final = 128 << 20
OBJECTS_AT_ONCE: Final = 60
"""Limit of objects in a run: one change of the manifest can replace that many."""

_STALE: Final = "compaction_stale"
_RESULT: Final = "run int, key string, size bigint, crc bigint, etag string, problem string"


class CompactionResult(NamedTuple):
    """The result of a compaction, or of its dry run."""

    objects_before: int
    objects_after: int
    rows: int
    """Rows of the new objects."""
    refused: int
    """Runs that changed meanwhile; the next compaction tries them again."""
    swept: int
    """Objects of jobs that died long ago and were removed."""


def compact_topic(
    spark: SparkSession,
    topic: str,
    object_bytes: int = OBJECT_BYTES,
    dry_run: bool = False,
    **options: object,
) -> CompactionResult:
    """Compact small objects of a topic into objects of about `object_bytes`."""
    texts = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **texts}, broker_of(spark))
    plan = planning.make_plan(read)
    bucket = reachable_bucket(read, plan)
    if bucket is None:
        raise OptionInvalid(f"topic {topic} has no bucket that Spark can reach")
    runs = compactable_runs(plan, object_bytes)
    before, replaced = len(plan.objects), sum(len(run) for run in runs)
    rows = sum(item.rows for run in runs for item in run)
    if dry_run:
        return CompactionResult(before, before - replaced + len(runs), rows, 0, 0)
    refused = done = 0
    for row in _new_objects(spark, read.topic, plan, bucket, runs):
        if row["problem"]:
            raise DataUnread(f"topic {topic}: {row['problem']}")
        keys = [item.key for item in runs[row["run"]]]
        compacted = CompactedObject(row["key"], row["size"], row["crc"], row["etag"])
        if _swapped(read.broker, read.topic, keys, compacted):
            done += len(keys) - 1
        else:
            bucket.delete(compacted.key)
            refused += 1
    swept = ask_broker(read.broker, lambda: sweep_objects(read.topic))
    return CompactionResult(before, before - done, rows, refused, swept.swept)


def compactable_runs(plan: TopicPlan, object_bytes: int) -> list[list[PlanObject]]:
    """Runs of adjacent objects, each to become one object.

    No run spans a gap that a returning disk may still fill: the owner would refuse it.
    """
    deleted = {item.partition_id: deleted_of(item) for item in plan.partitions}
    runs: list[list[PlanObject]] = []
    ends: dict[int, int] = {}
    size = 0
    for item in plan.objects:
        adjacent = not item.after_gap and all(
            ends.get(p, first) == first
            or deleted[p].range_cardinality(ends[p], first) == first - ends[p]
            for p, first, _ in item.ranges
        )
        fits = size + item.size <= object_bytes and runs and len(runs[-1]) < OBJECTS_AT_ONCE
        if not (adjacent and fits):
            runs.append([])
            ends, size = {}, 0
        runs[-1].append(item)
        size += item.size
        ends |= {p: next_ for p, _, next_ in item.ranges}
    return [run for run in runs if len(run) > 1 or run[0].linked]


def _swapped(
    broker: str, topic: TopicName, keys: Sequence[str], compacted: CompactedObject
) -> bool:
    try:
        ask_broker(broker, lambda: compact_objects(topic, keys, compacted))
    except BrokerRefused as error:
        if error.code != _STALE:
            raise
        return False
    return True


# -- in tasks


def _new_objects(
    spark: SparkSession,
    topic: TopicName,
    plan: TopicPlan,
    bucket: SparkBucket,
    runs: Sequence[Sequence[PlanObject]],
) -> Iterator[Any]:
    """A row for each new object, as soon as a task has written it."""
    if not runs:
        return iter(())
    own = topic_schema(plan.topic)
    schema = b"" if own is None else own.serialize().to_pybytes()
    typed = own is not None
    ranges = {i.partition_id: (i.start_offset, i.next_offset) for i in plan.partitions}
    pieces = {p.key: p for p in slices.slice_plan(plan, ranges) if isinstance(p, ObjectSlice)}
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
    bucket: SparkBucket,
    topic: TopicName,
    run: Sequence[PlanObject],
    cut: Sequence[ObjectSlice | None],
    typed: bool,
    schema: bytes,
) -> pa.RecordBatch:
    compacted, problem = None, None
    try:
        compacted = merge_objects(bucket, topic, run, cut, typed, schema)
    except (OSError, pa.ArrowException, ObjectMissing) as error:
        problem = f"objects {run[0].key} to {run[-1].key}: {error}"
    return pa.record_batch(
        {
            "run": pa.array([number], pa.int32()),
            "key": pa.array([compacted and compacted.key], pa.string()),
            "size": pa.array([compacted and compacted.size_bytes], pa.int64()),
            "crc": pa.array([compacted and compacted.crc32c], pa.int64()),
            "etag": pa.array([compacted and compacted.etag], pa.string()),
            "problem": pa.array([problem], pa.string()),
        }
    )


def merge_objects(
    bucket: SparkBucket,
    topic: TopicName,
    run: Sequence[PlanObject],
    cut: Sequence[ObjectSlice | None],
    typed: bool,
    schema: bytes,
) -> CompactedObject:
    """Write one object with the rows of several, and read it back."""
    facts = _object_facts(topic, run, typed, schema)
    stored = form.stored_schema(facts)
    tables = [
        table
        for piece in cut
        if piece is not None
        for table in object_tables(bucket, topic, piece, stored)
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
        raise OSError(f"object {key} differs from what was written")
    return CompactedObject(key, len(data), crc, info.etag)


def _object_facts(
    topic: TopicName, run: Sequence[PlanObject], typed: bool, schema: bytes
) -> ObjectFacts:
    spans: dict[int, PartitionRange] = {}
    for partition, first, next_ in (span for item in run for span in item.ranges):
        held = spans.get(partition, PartitionRange(partition, first, next_))
        spans[partition] = PartitionRange(partition, min(held.first, first), max(held.next, next_))
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
