"""Batch reads: a plan on the driver, slices in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.client.plans import Plan
from penstock.spark import columns, planning, slices
from penstock.spark.buckets import Bucket
from penstock.spark.filters import Bounds, bounds_of
from penstock.spark.options import Options
from penstock.spark.reading import Reading
from penstock.spark.slices import Slice


@dataclass
class Task(InputPartition):
    """What one task reads, and how."""

    reading: Reading
    pieces: list[Slice]


class TopicReader(DataSourceReader):
    """Reads the topic as it is when the query is planned, within what its filters allow."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds = bounds_of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        options, bounds = self._options, self._bounds
        plan = planning.make_plan(options)
        wanted = {
            number: (max(first, bounds.first), min(next_, bounds.last + 1))
            for number, (first, next_) in planning.wanted(options, plan).items()
            if bounds.partitions is None or number in bounds.partitions
        }
        wanted = {number: span for number, span in wanted.items() if span[0] < span[1]}
        bucket = bucket_of(options, plan)
        pieces = slices.cut(plan, wanted, from_objects=bucket is not None)
        pieces = slices.pruned(pieces, bounds.first_us, bounds.last_us)
        reading = reading_of(options, plan, bucket, columns.chosen(plan.topic, self._schema))
        return [Task(reading, part) for part in slices.tasks(pieces, options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return partition.reading.batches(partition.pieces)


def bucket_of(options: Options, plan: Plan) -> Bucket | None:
    """Where tasks read objects themselves; None where everything goes through the broker."""
    if options.through_broker or plan.store is None or plan.store.backend == "memory":
        return None
    bucket = Bucket(plan.store, options.credentials)
    directory = bucket.directory
    # A directory of another machine: the broker has it.
    return None if directory is not None and not directory.is_dir() else bucket


def reading_of(options: Options, plan: Plan, bucket: Bucket | None, wanted: pa.Schema) -> Reading:
    values = {item.partition_id: item.partition_value for item in plan.partitions}
    return Reading(
        options.topic,
        options.broker,
        bucket,
        wanted,
        {} if values == {0: None} else values,
        options.fail_on_data_loss,
    )
