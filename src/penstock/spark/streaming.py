"""Streaming reads: offsets by partition, kept by Spark in its checkpoint.

Spark asks for the first offset again after a restart, so it must be told in numbers, or be the
earliest there is; `penstock.spark.stream` turns `latest` and times into numbers once and keeps them
in the checkpoint. A batch is a range of offsets and nothing else: whatever is uploaded, merged or
pruned meanwhile, the same range gives the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

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
from penstock.spark.reader import batches_of, tasks_of

Position = dict[str, int | str]
"""Next offsets by partition, as Spark keeps them, and under MADE when the topic was made. A
partition that is missing is at its start.
"""
Ends = dict[str, int]

MADE: Final = "made"


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One on the driver decides what a batch is; tasks read their parts of it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._last: Ends | None = None
        """Where a query that reads what is there now ends."""
        _check(options)

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
        self._check_same(plan, start)
        starts = {str(item.partition_id): item.start_offset for item in plan.partitions}
        ends = _ends(plan) if self._last is None else self._last
        ahead = {
            number: (int(start.get(number, starts.get(number, 0))), end)
            for number, end in ends.items()
        }
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(ends.values())
        reached = {**start, **within(ahead, rows)}
        return start if reached == start else {**reached, MADE: plan.topic.created}

    def reportLatestOffset(self) -> Position:  # noqa: N802
        return {**_ends(self._plan())}

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        options, plan = self._options, self._plan()
        self._check_same(plan, end)
        wanted = self._wanted(plan, start, end)
        hot = {item.partition_id: item.hot_offset for item in plan.partitions}
        if any(first < hot[number] for number, (first, _) in wanted.items()):
            plan = planning.make_plan(options)
            wanted = self._wanted(plan, start, end)
        return tasks_of(options, plan, wanted, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition)

    def _plan(self) -> Plan:
        return planning.make_plan(self._options, with_objects=False)

    def _check_same(self, plan: Plan, position: Position) -> None:
        """Raises DataUnread when the position is one of another topic of the same name."""
        if position.get(MADE, plan.topic.created) != plan.topic.created:
            raise DataUnread(
                f"topic {self._options.topic} was made anew since the stream began: begin with a "
                "new checkpoint"
            )

    def _wanted(self, plan: Plan, start: Position, end: Position) -> dict[int, tuple[int, int]]:
        """The offsets of a batch; raises DataLost."""
        found: dict[int, tuple[int, int]] = {}
        for item in plan.partitions:
            number = str(item.partition_id)
            next_ = int(end.get(number, item.start_offset))
            first = int(start.get(number, item.start_offset))
            first = planning.kept_start(self._options, item, first, next_)
            if first < next_:
                found[item.partition_id] = (first, next_)
        return found


def within(ahead: Mapping[str, tuple[int, int]], offsets_max: int) -> Ends:
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


def _ends(plan: Plan) -> Ends:
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
