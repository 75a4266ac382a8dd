"""Batch reads: a plan on the driver, slices in tasks."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.client.plans import Plan
from penstock.spark import columns, planning, slices
from penstock.spark.buckets import Bucket
from penstock.spark.options import Options
from penstock.spark.reading import Reading
from penstock.spark.slices import Slice, Wanted


@dataclass
class Task(InputPartition):
    """What one task reads, and how."""

    reading: Reading
    pieces: list[Slice]


class TopicReader(DataSourceReader):
    """Reads the topic as it is when the query is planned.

    Filters are left to Spark: of two queries over one DataFrame, Spark 4.3 gives both what the
    filters of the later one left of the partitions. What need not be read is told by options.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        plan = planning.make_plan(options)
        wanted = planning.wanted(options, plan)
        return tasks_of(options, plan, wanted, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition)


def bucket_of(options: Options, plan: Plan) -> Bucket | None:
    """Where tasks read objects themselves; None where everything goes through the broker."""
    if options.through_broker or plan.store is None or plan.store.backend == "memory":
        return None
    bucket = Bucket(plan.store, options.credentials)
    directory = bucket.directory
    # A directory of another machine: the broker has it.
    return None if directory is not None and not directory.is_dir() else bucket


def tasks_of(
    options: Options, plan: Plan, wanted: Wanted, schema: StructType
) -> Sequence[InputPartition]:
    """Tasks that read these offsets."""
    bucket = bucket_of(options, plan)
    reading = Reading(
        options.topic,
        options.broker,
        bucket,
        columns.chosen(plan.topic, schema),
        {item.partition_id: item.partition_value for item in plan.partitions},
        options.fail_on_data_loss,
    )
    pieces = slices.cut(plan, wanted, from_objects=bucket is not None)
    parts = slices.tasks(pieces, options.partitions_min, options.cores)
    # Never none: Spark would ask for one of its own making.
    return [Task(reading, part) for part in parts or [[]]]


def batches_of(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task reads, in a worker of Spark."""
    assert isinstance(partition, Task)
    _spare_modules()
    return partition.reading.batches(partition.pieces)


@cache
def _spare_modules() -> None:
    """Workers of Spark collect garbage after each task, and would look at all modules each time."""
    gc.freeze()
