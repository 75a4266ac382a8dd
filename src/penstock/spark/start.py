"""Where a stream begins, decided once: turned into numbers and kept beside Spark's checkpoint."""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.spark import options as options_
from penstock.spark import planning
from penstock.spark.jvm import SmallFile
from penstock.spark.options import EARLIEST
from penstock.spark.sessions import broker_of

FILE: Final = "penstock-start.json"
_STARTING: Final = ("startingoffsets", "startingtimestamp")


def stream(spark: SparkSession, topic: str, checkpoint: str, **options: object) -> DataFrame:
    """A streaming DataFrame of a topic, for a query whose `checkpointLocation` is `checkpoint`.

    Options are those of `format("penstock")`; `startingOffsets` and `startingTimestamp` are looked
    up when the checkpoint is new, and kept in it, so that a restart begins at the same messages.
    """
    told = {name: str(value) for name, value in options.items()}
    starting = {name: told.pop(name) for name in list(told) if name.lower() in _STARTING}
    read = options_.read({"topic": topic, **told, **starting}, broker_of(spark))
    file = SmallFile(spark, f"{checkpoint.rstrip('/')}/{FILE}")
    kept = file.read()
    if kept is None:
        plan = planning.make_plan(read, with_objects=False)
        begins = planning.starting_offsets(read, plan)
        simple = read.starting == EARLIEST and read.starting_us is None
        kept = "earliest" if simple else json.dumps(begins)
        file.write(kept)
    reader = spark.readStream.format("penstock").option("topic", str(read.topic))
    for name, value in told.items():
        reader = reader.option(name, value)
    return reader.option("broker", read.broker).option("startingOffsets", kept).load()
