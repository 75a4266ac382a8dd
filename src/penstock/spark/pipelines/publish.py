"""A topic as a table of an open format: what is new is added, each message exactly once."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from penstock.spark import columns, planning
from penstock.spark import options as options_
from penstock.spark.errors import DataUnread
from penstock.spark.pipelines.tables import Offsets, Table
from penstock.spark.sessions import broker_of
from penstock.spark.tables import topic as read_topic

_CHOOSING: Final = ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp")


class Published(NamedTuple):
    """What was added, or would be."""

    messages: int
    files: int
    offsets: Offsets
    """Up to where the table has the topic now."""


def publish(
    spark: SparkSession,
    topic: str,
    table: Table,
    files: Path,
    dry_run: bool = False,
    **options: object,
) -> Published:
    """Add the messages of a topic that the table does not have yet; it is made if need be.

    `files` is a directory that Spark's workers, the driver and the table's readers share. Raises
    TableChanged, DataLost.
    """
    told = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **told}, broker_of(spark))
    plan = planning.make_plan(read, with_objects=False)
    position = table.position()
    starts = planning.starting_offsets(read, plan)
    if position:
        starts = {item.partition_id: item.start_offset for item in plan.partitions} | position
        known = {item.partition_id: item.next_offset for item in plan.partitions}
        if any(offset > known.get(number, -1) for number, offset in position.items()):
            raise DataUnread(
                f"topic {topic} was made anew since it was published: use another table"
            )
    ends = {
        number: max(end, starts[number])
        for number, end in planning.ending_offsets(read, plan).items()
    }
    if all(starts[number] == end for number, end in ends.items()):
        return Published(0, 0, ends)
    schema = table.fitted(columns.arrow_schema(plan.topic))
    frame = read_topic(spark, topic, **_between(told, starts, ends))
    frame = frame.select(
        *(
            frame[field.name].cast(kind.dataType)
            for field, kind in zip(schema, columns.spark_schema(schema), strict=True)
        )
    ).toDF(*schema.names)
    if dry_run:
        return Published(frame.count(), 0, starts)
    if position is None:
        table.create(schema)
    directory = files / f"part-{uuid.uuid4().hex}"
    frame.write.parquet(str(directory))
    written = sorted(directory.glob("*.parquet"))
    table.append(written, ends)
    return Published(_rows(written), len(written), ends)


def _between(told: dict[str, str], starts: Offsets, ends: Offsets) -> dict[str, str]:
    """The options with these offsets, whatever chose them."""
    others = {name: value for name, value in told.items() if name.lower() not in _CHOOSING}
    return {**others, "startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}


def _rows(files: list[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)
