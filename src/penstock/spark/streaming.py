"""Streaming reads: offsets by partition, kept by Spark in its checkpoint.

Spark asks for the first offset again after a restart, so it must be told in numbers, or be the
earliest there is; `penstock.spark.stream` turns `latest` and times into numbers once and keeps them
in the checkpoint. A batch is a range of offsets and nothing else: whatever is uploaded, merged or
pruned meanwhile, the same range gives the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.plans import Plan
from penstock.spark import planning
from penstock.spark.errors import DataUnread, OptionInvalid
from penstock.spark.options import EARLIEST, Options
from penstock.spark.reader import Task, tasks_of

Position = dict[str, int]
"""Next offsets by partition, as Spark keeps them; a partition that is missing is at its start."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One on the driver decides what a batch is; tasks read their parts of it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._last: Position | None = None
        """Where a query that reads what is there now ends."""
        _check(options)

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's names from here on
        starting = self._options.starting
        if isinstance(starting, dict):
            return {str(number): offset for number, offset in starting.items() if offset >= 0}
        if starting == EARLIEST:
            return {}
        return dict.fromkeys(self._ends(), starting)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        plan = planning.make_plan(self._options, with_objects=False)
        starts = {str(item.partition_id): item.start_offset for item in plan.partitions}
        ends = _positions(plan) if self._last is None else self._last
        ahead = {
            number: (start.get(number, starts.get(number, 0)), end) for number, end in ends.items()
        }
        if isinstance(limit, ReadMaxRows):
            return {**start, **within(ahead, limit.max_rows)}
        return {**start, **{number: max(span) for number, span in ahead.items()}}

    def reportLatestOffset(self) -> Position:  # noqa: N802
        return self._ends()

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        options = self._options
        plan = planning.make_plan(options, with_objects=False)
        wanted = self._wanted(plan, start, end)
        hot = {item.partition_id: item.hot_offset for item in plan.partitions}
        if any(first < hot[number] for number, (first, _) in wanted.items()):
            plan = planning.make_plan(options)
            wanted = self._wanted(plan, start, end)
        return tasks_of(options, plan, wanted, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return partition.reading.batches(partition.pieces)

    def _ends(self) -> Position:
        return _positions(planning.make_plan(self._options, with_objects=False))

    def _wanted(self, plan: Plan, start: Position, end: Position) -> dict[int, tuple[int, int]]:
        """The offsets of a batch; raises DataLost, and DataUnread when they were never given."""
        known = {str(item.partition_id): item for item in plan.partitions}
        found: dict[int, tuple[int, int]] = {}
        for number, next_ in end.items():
            item = known.get(number)
            if item is None or item.next_offset < next_:
                raise DataUnread(
                    f"topic {self._options.topic}, partition {number} has no offset {next_ - 1}; "
                    "it was made anew: begin with a new checkpoint"
                )
            first = start.get(number, item.start_offset)
            first = planning.kept_start(self._options, item, first, next_)
            if first < next_:
                found[item.partition_id] = (first, next_)
        return found


def within(ahead: Mapping[str, tuple[int, int]], offsets_max: int) -> Position:
    """Ends of at most so many offsets in all, each partition by what it has; one at least moves."""
    left = {number: max(0, end - first) for number, (first, end) in ahead.items()}
    total = sum(left.values())
    if total <= offsets_max:
        return {number: max(span) for number, span in ahead.items()}
    taken = {number: offsets_max * count // total for number, count in left.items()}
    spare = offsets_max - sum(taken.values())
    for number in sorted(left, key=lambda number: taken[number] - left[number])[:spare]:
        taken[number] += taken[number] < left[number]
    return {number: first + taken[number] for number, (first, _) in ahead.items()}


def _positions(plan: Plan) -> Position:
    return {str(item.partition_id): item.next_offset for item in plan.partitions}


def _check(options: Options) -> None:
    starting = options.starting
    unsure = [starting] if isinstance(starting, int) else list(starting.values())
    if options.starting_us is not None or any(o < 0 and o != EARLIEST for o in unsure):
        raise OptionInvalid(
            "a stream must begin at numbers, or at earliest: Spark asks for its beginning again "
            "after a restart. Use penstock.spark.stream(spark, topic, checkpoint=...), which turns "
            "latest and times into numbers and keeps them"
        )
    if options.ending_us is not None or options.ending != -1:
        raise OptionInvalid("a stream has no end; leave out endingOffsets and endingTimestamp")
