"""A driver on a cluster: reads one topic, writes another, and prints where tasks ran.

python -m tests.spark.cluster_job MASTER BROKER TOPIC TARGET
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from penstock.spark import session
from penstock.spark.pipelines import audit_topic
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY

KEYS = {"store.access_key": ACCESS_KEY, "store.secret_key": SECRET_KEY}


def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where a task ran and its number of rows; slow enough that all executors get work."""
    rows = sum(batch.num_rows for batch in batches)
    time.sleep(0.5)
    yield pa.record_batch({"place": pa.array([os.getcwd()]), "rows": pa.array([rows], pa.int64())})


def main() -> None:
    master, broker, topic, target = sys.argv[1:]
    spark = session(
        broker,
        master,
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "600m",
            "spark.executor.cores": "1",
            "spark.log.level": "ERROR",
        },
    )
    reader = spark.read.format("penstock").options(**KEYS)
    frame = reader.option("topic", topic).option("minPartitions", 6).load()
    told = frame.mapInArrow(places, "place string, rows bigint").collect()
    offsets = frame.select("offset").distinct().count()
    writer = frame.select("payload").write.format("penstock").options(**KEYS)
    writer.option("topic", target).mode("append").save()
    sound = audit_topic(spark, target, **KEYS).sound
    result = {
        "places": sorted({row["place"] for row in told}),
        "rows": sum(row["rows"] for row in told),
        "offsets": offsets,
        "sound": sound,
    }
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
