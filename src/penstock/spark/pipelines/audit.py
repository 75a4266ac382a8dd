"""Checks a topic: its manifest, its bucket, every byte of its objects, and its hot tail.

    manifest     ranges without overlap or unrecorded gap; rows + deleted = offsets
    bucket       every object of the manifest exists in its size; objects without a manifest entry
    contents     checksums, row counts, offsets ascending and within their range (by Spark's tasks)
    hot tail     as many messages as there are offsets that are not deleted

An audit does not stop at the first problem: it returns a list of findings.
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

from penstock.client import TopicPlan
from penstock.formats.objects import facts_of, staged_prefix, topic_prefix
from penstock.formats.plan_api import PlanObject
from penstock.model.errors import FormatError
from penstock.objects import ObjectInfo, ObjectMissing
from penstock.spark import options as options_
from penstock.spark import planning
from penstock.spark.buckets import SparkBucket
from penstock.spark.options import SourceOptions
from penstock.spark.readers import reachable_bucket
from penstock.spark.sessions import broker_of
from penstock.spark.slices import deleted_of
from penstock.spark.tables import topic as read_topic

OBJECTS_PER_TASK: Final = 4
_DATA: Final = re.compile(r"data-(\d{17})-p\d+-\d+-(\d+)-(\d+)-")
_RESULT: Final = "object string, kind string, problem string"


class AuditFinding(NamedTuple):
    """A deviation from the expected state."""

    kind: str
    """`missing`, `damaged`, `duplicate`, `gap`, `stale`, `count`, or `leftover`, which is harmless:
    a replaced object in its grace time, or a staged object that was never linked.
    """
    object: str
    problem: str

    @property
    def harmless(self) -> bool:
        return self.kind == "leftover"


class TopicAudit(NamedTuple):
    """What was checked, and the findings."""

    objects: int
    rows: int
    hot_messages: int
    findings: list[AuditFinding]

    @property
    def sound(self) -> bool:
        return all(finding.harmless for finding in self.findings)


def audit_topic(spark: SparkSession, topic: str, **options: object) -> TopicAudit:
    """Check everything of a topic; raises if the broker or the bucket is unreachable."""
    texts = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **texts}, broker_of(spark))
    plan = planning.make_plan(read)
    findings = manifest_findings(plan)
    bucket = reachable_bucket(read, plan)
    if bucket is not None:
        found = bucket.list(topic_prefix(read.topic))
        findings += bucket_findings(plan, found, staged_prefix(read.topic))
        there = {info.key for info in found}
        findings += _contents(spark, bucket, [o for o in plan.objects if o.key in there])
    hot, problems = _hot(spark, read, plan, texts)
    rows = sum(item.rows for item in plan.objects)
    return TopicAudit(len(plan.objects), rows, hot, findings + problems)


# -- the manifest against itself


def manifest_findings(plan: TopicPlan) -> list[AuditFinding]:
    """Findings of the manifest itself: overlaps, unrecorded gaps and wrong numbers of rows."""
    deleted = {item.partition_id: deleted_of(item) for item in plan.partitions}
    starts = {item.partition_id: item.start_offset for item in plan.partitions}
    ranges: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
    findings: list[AuditFinding] = []
    for item in plan.objects:
        for partition, first, next_ in item.ranges:
            ranges[partition].append((first, next_, item.key))
        findings += _counted(item, deleted, starts)
    for partition, spans in sorted(ranges.items()):
        findings += _neighbours(partition, sorted(spans), deleted[partition], starts[partition])
    return findings


def _counted(
    item: PlanObject, deleted: dict[int, BitMap64], starts: dict[int, int]
) -> Iterator[AuditFinding]:
    most = sum(next_ - first for _, first, next_ in item.ranges)
    live = 0
    for partition, first, next_ in item.ranges:
        start = min(max(first, starts[partition]), next_)
        live += next_ - start - deleted[partition].range_cardinality(start, next_)
    if not live <= item.rows <= most:
        yield AuditFinding(
            "count",
            item.key,
            f"it has {item.rows} rows for {most} offsets of which {live} are not deleted",
        )


def _neighbours(
    partition: int, spans: list[tuple[int, int, str]], deleted: BitMap64, start: int
) -> Iterator[AuditFinding]:
    covered_to = start
    for first, next_, key in spans:
        if start <= first < covered_to:
            last = min(covered_to, next_) - 1
            words = f"partition {partition}: offsets {first} to {last} are in another object too"
            yield AuditFinding("duplicate", key, words)
        elif first > covered_to and (
            deleted.range_cardinality(covered_to, first) < first - covered_to
        ):
            words = f"partition {partition}: offsets {covered_to} to {first - 1} are in no object"
            yield AuditFinding("gap", key, f"{words} and no gap is recorded")
        covered_to = max(covered_to, next_)


# -- the manifest against the bucket


def bucket_findings(
    plan: TopicPlan, objects: Iterable[ObjectInfo], prefix: str
) -> list[AuditFinding]:
    """Objects that are missing or of wrong size, and objects without a manifest entry."""
    there = {info.key: info for info in objects}
    findings = []
    for item in plan.objects:
        info = there.get(item.key)
        if info is None:
            findings.append(AuditFinding("missing", item.key, "it is not in the bucket"))
        elif info.size_bytes != item.size:
            words = f"it has {info.size_bytes} bytes and should have {item.size}"
            findings.append(AuditFinding("damaged", item.key, words))
    named = {item.key for item in plan.objects}
    ends = max((next_ for item in plan.objects for _, _, next_ in item.ranges), default=0)
    for key in sorted(there.keys() - named):
        match = _DATA.match(key.rpartition("/")[2])
        if match is not None and int(match[3]) >= ends and plan.objects:
            words = (
                f"it is not in the manifest and has offsets up to {match[3]}, after the last one"
            )
            findings.append(
                AuditFinding("stale", key, f"{words} that the manifest knows: {ends - 1}")
            )
        elif match is not None:
            findings.append(AuditFinding("leftover", key, "it was replaced and will be removed"))
        elif key.startswith(prefix):
            findings.append(AuditFinding("leftover", key, "it was staged and never linked"))
    return findings


# -- every byte


def _contents(
    spark: SparkSession, bucket: SparkBucket, objects: list[PlanObject]
) -> list[AuditFinding]:
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
    return [AuditFinding(row["kind"], row["object"], row["problem"]) for row in found]


def object_problems(
    bucket: SparkBucket, key: str, size: int, crc: int, expected: dict[str, object]
) -> list[str]:
    """Problems of one object: its bytes, its metadata and its rows."""
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
        if file.metadata.num_rows != expected["rows"]:
            problems.append(
                f"it has {file.metadata.num_rows} rows and should have {expected['rows']}"
            )
        if not expected["linked"]:
            facts_of(file.metadata)
            lead = file.read(columns=["partition", "offset"], use_threads=False)
            problems += _row_problems(lead, expected["ranges"])  # type: ignore[arg-type]
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
            yield f"partition {partition} has offsets outside its range"
        if (np.diff(mine) <= 0).any():
            yield f"partition {partition} has duplicate or unordered offsets"


# -- the hot tail


def _hot(
    spark: SparkSession, read: SourceOptions, plan: TopicPlan, texts: dict[str, str]
) -> tuple[int, list[AuditFinding]]:
    """The number of messages that are not in objects, and a finding where it is wrong."""
    hot = [item for item in plan.partitions if item.hot_offset < item.next_offset]
    if not hot:
        return 0, []
    starting = {item.partition_id: item.hot_offset for item in hot}
    ending = {item.partition_id: item.next_offset for item in hot}
    frame = read_topic(
        spark,
        str(read.topic),
        **{**texts, "startingOffsets": _json(starting), "endingOffsets": _json(ending)},
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
            findings.append(AuditFinding("count", "", f"{words} {found} messages, not {expected}"))
    return sum(counts.values()), findings


def _json(offsets: dict[int, int]) -> str:
    return "{" + ", ".join(f'"{number}": {offset}' for number, offset in offsets.items()) + "}"
