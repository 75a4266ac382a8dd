"""A driver process that tests kill: copies a topic into files or into another topic as a stream.

python -m tests.spark.driver BROKER TOPIC CHECKPOINT files:DIRECTORY|topic:NAME PER_TRIGGER
"""

from __future__ import annotations

import sys

from penstock.spark import session
from tests.spark.conftest import SMALL


def main() -> None:
    broker, topic, checkpoint, target, per_trigger = sys.argv[1:]
    spark = session(broker, "local[2]", **SMALL)
    frame = (
        spark.readStream.format("penstock")
        .option("topic", topic)
        .option("maxOffsetsPerTrigger", per_trigger)
        .load()
    )
    kind, _, place = target.partition(":")
    if kind == "files":
        writer = frame.writeStream.format("parquet").option("path", place)
    else:
        kept = frame.select("payload", "headers")
        writer = kept.writeStream.format("penstock").option("topic", place)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
