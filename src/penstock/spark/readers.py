"""The readers of the data source: batch and streaming reads of a topic.

A streaming position holds the next offset of each partition; Spark keeps it in its checkpoint.
After a restart Spark asks for the first position again, so it must be numbers or the earliest
offsets; `penstock.spark.stream` turns `latest` and times into numbers once and keeps them in the
checkpoint. A micro-batch is a range of offsets: the range gives the same messages whatever is
uploaded, merged or pruned meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client import TopicPlan
from penstock.spark import columns, planning, slices
from penstock.spark.buckets import SparkBucket
from penstock.spark.errors import DataUnread, OptionInvalid
from penstock.spark.options import EARLIEST, SourceOptions
from penstock.spark.slice_reader import SliceReader
from penstock.spark.slices import OffsetRanges, Slice


@dataclass
class ReadTask(InputPartition):
    """The slices that one task reads."""

    reading: SliceReader
    pieces: list[Slice]


class TopicReader(DataSourceReader):
    """Reads the topic as it is when the query is planned.

    There is no filter push-down: if two queries use one DataFrame, Spark 4.3 gives both of them the
    partitions that the filters of the later one select. Options limit what is read.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        plan = planning.make_plan(options)
        ranges = planning.selected_offsets(options, plan)
        return read_tasks(options, plan, ranges, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_batches(partition)


def reachable_bucket(options: SourceOptions, plan: TopicPlan) -> SparkBucket | None:
    """The bucket that tasks can read themselves; None if they must read through the broker."""
    if options.through_broker or plan.store is None or plan.store.backend == "memory":
        return None
    bucket = SparkBucket(plan.store, options.credentials)
    directory = bucket.directory
    # The directory may be on the broker's machine only.
    return None if directory is not None and not directory.is_dir() else bucket


def read_tasks(
    options: SourceOptions, plan: TopicPlan, ranges: OffsetRanges, schema: StructType
) -> Sequence[InputPartition]:
    """Divide the reading of these ranges into tasks."""
    bucket = reachable_bucket(options, plan)
    reading = SliceReader(
        options.topic,
        options.broker,
        bucket,
        columns.selected_schema(plan.topic, schema),
        {item.partition_id: item.partition_value for item in plan.partitions},
        options.fail_on_data_loss,
    )
    pieces = slices.slice_plan(plan, ranges, from_objects=bucket is not None)
    parts = slices.divide_into_tasks(pieces, options.partitions_min, options.cores)
    # At least one: without any, Spark passes a partition of its own to the tasks.
    return [ReadTask(reading, part) for part in parts or [[]]]


def read_batches(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the messages of a task, in a Python worker."""
    assert isinstance(partition, ReadTask)
    _freeze_modules()
    return partition.reading.batches(partition.pieces)


@cache
def _freeze_modules() -> None:
    """Exclude loaded modules from garbage collection, which workers run after each task."""
    gc.freeze()


Position = dict[str, int | str]
"""The position of a stream as Spark stores it: the next offset of each partition, and under CREATED
the creation time of the topic. A partition without an entry is at its start.
"""
Ends = dict[str, int]

CREATED: Final = "made"


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream: the driver decides on the range of a micro-batch, tasks read parts of it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._last: Ends | None = None
        """End of a query with the trigger `availableNow`."""
        _check_start(options)

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's names from here on
        starting = self._options.starting
        if isinstance(starting, dict):
            return {str(number): offset for number, offset in starting.items() if offset >= 0}
        if starting == EARLIEST:
            return {}
        return dict.fromkeys(_ends(self._plan()), starting)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = _ends(self._plan())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        plan = self._plan()
        self._check_same_topic(plan, start)
        starts = {str(item.partition_id): item.start_offset for item in plan.partitions}
        ends = _ends(plan) if self._last is None else self._last
        ahead = {
            number: (int(start.get(number, starts.get(number, 0))), end)
            for number, end in ends.items()
        }
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(ends.values())
        reached = {**start, **limited_ends(ahead, rows)}
        return start if reached == start else {**reached, CREATED: plan.topic.created}

    def reportLatestOffset(self) -> Position:  # noqa: N802
        return {**_ends(self._plan())}

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        options, plan = self._options, self._plan()
        self._check_same_topic(plan, end)
        ranges = self._batch_ranges(plan, start, end)
        hot = {item.partition_id: item.hot_offset for item in plan.partitions}
        if any(first < hot[number] for number, (first, _) in ranges.items()):
            plan = planning.make_plan(options)
            ranges = self._batch_ranges(plan, start, end)
        return read_tasks(options, plan, ranges, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_batches(partition)

    def _plan(self) -> TopicPlan:
        return planning.make_plan(self._options, with_objects=False)

    def _check_same_topic(self, plan: TopicPlan, position: Position) -> None:
        """Raise DataUnread if the topic was deleted and created again since the position."""
        if position.get(CREATED, plan.topic.created) != plan.topic.created:
            raise DataUnread(
                f"topic {self._options.topic} was created again since the stream started: use a "
                "new checkpoint"
            )

    def _batch_ranges(
        self, plan: TopicPlan, start: Position, end: Position
    ) -> dict[int, tuple[int, int]]:
        """The range of offsets of each partition in a micro-batch; raises DataLost."""
        ranges: dict[int, tuple[int, int]] = {}
        for item in plan.partitions:
            number = str(item.partition_id)
            next_ = int(end.get(number, item.start_offset))
            first = int(start.get(number, item.start_offset))
            first = planning.existing_start(self._options, item, first, next_)
            if first < next_:
                ranges[item.partition_id] = (first, next_)
        return ranges


def limited_ends(ahead: Mapping[str, tuple[int, int]], offsets_max: int) -> Ends:
    """End offsets such that a batch has at most `offsets_max` offsets, shared in proportion.

    `ahead` has the next offset and the end of each partition. At least one partition advances.
    """
    remaining = {number: max(0, end - first) for number, (first, end) in ahead.items()}
    total = sum(remaining.values())
    if total <= offsets_max:
        return {number: max(span) for number, span in ahead.items()}
    shares = {number: offsets_max * count // total for number, count in remaining.items()}
    spare = offsets_max - sum(shares.values())
    for number in sorted(remaining, key=lambda number: shares[number] - remaining[number])[:spare]:
        shares[number] += shares[number] < remaining[number]
    return {number: first + shares[number] for number, (first, _) in ahead.items()}


def _ends(plan: TopicPlan) -> Ends:
    return {str(item.partition_id): item.next_offset for item in plan.partitions}


def _check_start(options: SourceOptions) -> None:
    starting = options.starting
    offsets = [starting] if isinstance(starting, int) else list(starting.values())
    if options.starting_us is not None or any(o < 0 and o != EARLIEST for o in offsets):
        raise OptionInvalid(
            "a stream must begin at numbers, or at earliest: Spark asks for its beginning again "
            "after a restart. Use penstock.spark.stream(spark, topic, checkpoint=...), which turns "
            "latest and times into numbers and keeps them"
        )
    if options.ending_us is not None or options.ending != -1:
        raise OptionInvalid("a stream has no end; leave out endingOffsets and endingTimestamp")
