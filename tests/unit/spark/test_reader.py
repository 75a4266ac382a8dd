from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from penstock.formats.plan_api import StoreReply
from penstock.spark import columns, options, reader
from tests.unit.spark.plans import an_object, partition, plan

ROWS = 300_000


def test_tasks_of_all_cores_read_every_message_once_in_the_asked_columns(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"partition": pa.array([0] * ROWS, pa.int32()), "offset": range(ROWS)}),
        tmp_path / "a",
        row_group_size=128 << 10,
    )
    made = plan([partition(next_=ROWS, hot=ROWS)], [an_object("a", (0, 0, ROWS))])
    made.store = StoreReply("fs", str(tmp_path))
    told = options.read({"topic": "t"}, "http://127.0.0.1:1", cores=2)
    strict = columns.spark_schema(columns.strict_schema(made.topic))
    wanted = StructType([strict["offset"]])
    tasks = reader.tasks_of(told, made, {0: (0, ROWS)}, wanted)
    assert len(tasks) == 2
    try:
        batches = [batch for task in tasks for batch in reader.batches_of(task)]
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    table = pa.Table.from_batches(batches)
    assert table.schema == pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    assert table.column("offset").to_pylist() == list(range(ROWS))
