"""Is everything there that should be? The manifest against itself, the bucket, and every byte.

    arithmetic   ranges without overlap or unrecorded gap; rows + deleted = range
    bucket       every named object is there, in its size; objects that no manifest names
    contents     checksums, row counts, offsets ascending and within the range, one object a row
    hot tail     as many messages as the offsets say

Nothing stops at the first bad object: what is found is a list.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from penstock.client.plans import Plan
from penstock.formats.objects import facts_of, staged_prefix, topic_prefix
from penstock.formats.plan_api import PlanObject
from penstock.model.errors import FormatError
from penstock.objects.interface import ObjectInfo, ObjectMissing
from penstock.spark import options as options_
from penstock.spark import planning
from penstock.spark.buckets import Bucket
from penstock.spark.options import Options
from penstock.spark.reader import bucket_of
from penstock.spark.sessions import broker_of
from penstock.spark.slices import deleted_of
from penstock.spark.tables import topic as read_topic

OBJECTS_PER_TASK: Final = 4
_DATA: Final = re.compile(r"data-(\d{17})-p\d+-\d+-(\d+)-(\d+)-")
_RESULT: Final = "object string, kind string, problem string"


class Finding(NamedTuple):
    """Something that is not as it should be."""

    kind: str
    """`missing`, `damaged`, `duplicate`, `gap`, `stale`, `count`, or `leftover`, which is harmless:
    replaced objects in their time of grace, and staged ones that were never linked.
    """
    object: str
    problem: str

    @property
    def harmless(self) -> bool:
        return self.kind == "leftover"


class Audit(NamedTuple):
    """What was looked at and what was found."""

    objects: int
    rows: int
    hot_messages: int
    findings: list[Finding]

    @property
    def sound(self) -> bool:
        return all(finding.harmless for finding in self.findings)


def audit(spark: SparkSession, topic: str, **options: object) -> Audit:
    """Look at everything of a topic; raises when the broker or the bucket cannot be asked."""
    told = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **told}, broker_of(spark))
    plan = planning.make_plan(read)
    findings = arithmetic(plan)
    bucket = bucket_of(read, plan)
    if bucket is not None:
        found = bucket.list(topic_prefix(read.topic))
        findings += against_bucket(plan, found, staged_prefix(read.topic))
        there = {info.key for info in found}
        findings += _contents(spark, bucket, [o for o in plan.objects if o.key in there])
    hot, problems = _hot(spark, read, plan, told)
    rows = sum(item.rows for item in plan.objects)
    return Audit(len(plan.objects), rows, hot, findings + problems)


# -- the manifest against itself


def arithmetic(plan: Plan) -> list[Finding]:
    """Overlaps, gaps that nobody recorded, and rows that do not add up."""
    deleted = {item.partition_id: deleted_of(item) for item in plan.partitions}
    starts = {item.partition_id: item.start_offset for item in plan.partitions}
    ranges: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
    findings: list[Finding] = []
    for item in plan.objects:
        for partition, first, next_ in item.ranges:
            ranges[partition].append((first, next_, item.key))
        findings += _counted(item, deleted, starts)
    for partition, spans in sorted(ranges.items()):
        findings += _neighbours(partition, sorted(spans), deleted[partition], starts[partition])
    return findings


def _counted(
    item: PlanObject, deleted: dict[int, BitMap64], starts: dict[int, int]
) -> Iterator[Finding]:
    most = sum(next_ - first for _, first, next_ in item.ranges)
    live = 0
    for partition, first, next_ in item.ranges:
        start = min(max(first, starts[partition]), next_)
        live += next_ - start - deleted[partition].range_cardinality(start, next_)
    if not live <= item.rows <= most:
        yield Finding(
            "count",
            item.key,
            f"it has {item.rows} rows for {most} offsets of which {live} are not deleted",
        )


def _neighbours(
    partition: int, spans: list[tuple[int, int, str]], deleted: BitMap64, start: int
) -> Iterator[Finding]:
    at = start
    for first, next_, key in spans:
        if first < at and first >= start:
            words = f"partition {partition}: offsets {first} to {min(at, next_) - 1} are in another"
            yield Finding("duplicate", key, f"{words} object too")
        elif first > at and deleted.range_cardinality(at, first) < first - at:
            words = f"partition {partition}: offsets {at} to {first - 1} are in no object"
            yield Finding("gap", key, f"{words} and no hole is recorded")
        at = max(at, next_)


# -- the manifest against the bucket


def against_bucket(plan: Plan, found: Iterable[ObjectInfo], staged: str) -> list[Finding]:
    """Objects that are missing or others than they should be, and those that nobody names."""
    there = {info.key: info for info in found}
    findings = []
    for item in plan.objects:
        info = there.get(item.key)
        if info is None:
            findings.append(Finding("missing", item.key, "it is not in the bucket"))
        elif info.size_bytes != item.size:
            words = f"it has {info.size_bytes} bytes and should have {item.size}"
            findings.append(Finding("damaged", item.key, words))
    named = {item.key for item in plan.objects}
    ends = max((next_ for item in plan.objects for _, _, next_ in item.ranges), default=0)
    for key in sorted(there.keys() - named):
        match = _DATA.match(key.rpartition("/")[2])
        if match is not None and int(match[3]) >= ends and plan.objects:
            words = f"no manifest names it, and it has offsets up to {match[3]}, past the last one"
            findings.append(Finding("stale", key, f"{words} that the manifest knows: {ends - 1}"))
        elif match is not None:
            findings.append(Finding("leftover", key, "it was replaced and waits to be removed"))
        elif key.startswith(staged):
            findings.append(Finding("leftover", key, "it was staged and never linked"))
    return findings


# -- every byte


def _contents(spark: SparkSession, bucket: Bucket, objects: list[PlanObject]) -> list[Finding]:
    if not objects:
        return []
    rows = [
        (o.key, o.size, o.crc32c, o.rows, o.linked, [list(span) for span in o.ranges])
        for o in objects
    ]
    schema = "key string, size bigint, crc bigint, rows bigint, linked boolean"
    frame = spark.createDataFrame(rows, f"{schema}, ranges array<array<bigint>>")
    frame = frame.repartition(max(1, len(rows) // OBJECTS_PER_TASK))

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                problems = object_problems(bucket, row["key"], row["size"], row["crc"], row)
                yield pa.record_batch(
                    {
                        "object": pa.array([row["key"]] * len(problems), pa.string()),
                        "kind": pa.array(["damaged"] * len(problems), pa.string()),
                        "problem": pa.array(problems, pa.string()),
                    }
                )

    found = frame.mapInArrow(check, _RESULT).collect()
    return [Finding(row["kind"], row["object"], row["problem"]) for row in found]


def object_problems(
    bucket: Bucket, key: str, size: int, crc: int, told: dict[str, object]
) -> list[str]:
    """What is wrong with the bytes of one object."""
    try:
        data = bucket.get(key)
    except ObjectMissing:
        return ["it is not in the bucket"]
    if len(data) != size:
        return [f"it has {len(data)} bytes and should have {size}"]
    if crc32c(data) != crc:
        return [f"its bytes have the CRC32C {crc32c(data):08x} instead of {crc:08x}"]
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        problems = []
        if file.metadata.num_rows != told["rows"]:
            problems.append(f"it has {file.metadata.num_rows} rows and should have {told['rows']}")
        if not told["linked"]:
            facts_of(file.metadata)
            lead = file.read(columns=["partition", "offset"], use_threads=False)
            problems += _row_problems(lead, told["ranges"])  # type: ignore[arg-type]
        file.read(use_threads=False)
    except (FormatError, OSError, pa.ArrowException) as error:
        return [f"it cannot be read: {error}"]
    return problems


def _row_problems(table: pa.Table, ranges: Iterable[tuple[int, int, int]]) -> Iterator[str]:
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    known = {partition: (first, next_) for partition, first, next_ in ranges}
    for partition in np.unique(partitions).tolist():
        mine = offsets[partitions == partition]
        first, next_ = known.get(partition, (0, 0))
        if mine.min() < first or mine.max() >= next_:
            yield f"partition {partition} has offsets outside of its range"
        if (np.diff(mine) <= 0).any():
            yield f"partition {partition} has offsets twice or out of order"


# -- the hot tail


def _hot(
    spark: SparkSession, read: Options, plan: Plan, told: dict[str, str]
) -> tuple[int, list[Finding]]:
    """How many messages only the broker has, and whether that is as many as there should be."""
    hot = [item for item in plan.partitions if item.hot_offset < item.next_offset]
    if not hot:
        return 0, []
    starting = {item.partition_id: item.hot_offset for item in hot}
    ending = {item.partition_id: item.next_offset for item in hot}
    frame = read_topic(
        spark,
        str(read.topic),
        **{**told, "startingOffsets": _json(starting), "endingOffsets": _json(ending)},
    )
    counts = {
        row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()
    }
    findings = []
    for item in hot:
        first, next_ = item.hot_offset, item.next_offset
        expected = next_ - first - deleted_of(item).range_cardinality(first, next_)
        found = counts.get(item.partition_id, 0)
        if found != expected:
            words = f"partition {item.partition_id}: the hot offsets {first} to {next_ - 1} have"
            findings.append(Finding("count", "", f"{words} {found} messages, not {expected}"))
    return sum(counts.values()), findings


def _json(offsets: dict[int, int]) -> str:
    return "{" + ", ".join(f'"{number}": {offset}' for number, offset in offsets.items()) + "}"
