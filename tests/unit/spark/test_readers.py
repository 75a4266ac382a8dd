from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from penstock.formats.plan_api import StoreReply
from penstock.spark import columns, options, readers
from penstock.spark.errors import OptionInvalid
from penstock.spark.readers import TopicStreamReader, limited_ends
from tests.unit.spark.plans import an_object, partition, plan

ROWS = 300_000


def test_tasks_read_every_message_once_in_the_requested_columns(tmp_path: Path) -> None:
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
    tasks = readers.read_tasks(told, made, {0: (0, ROWS)}, wanted)
    assert len(tasks) == 2
    try:
        batches = [batch for task in tasks for batch in readers.read_batches(task)]
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    table = pa.Table.from_batches(batches)
    assert table.schema == pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    assert table.column("offset").to_pylist() == list(range(ROWS))


def test_a_limit_is_shared_in_proportion_to_the_messages_of_partitions() -> None:
    ahead = {"0": (0, 1000), "1": (100, 200), "2": (5, 5)}
    assert limited_ends(ahead, 2000) == {"0": 1000, "1": 200, "2": 5}
    assert limited_ends(ahead, 110) == {"0": 100, "1": 110, "2": 5}
    assert limited_ends(ahead, 1) == {"0": 1, "1": 100, "2": 5}


@pytest.mark.parametrize("most", [1, 2, 3, 7, 50])
def test_every_limit_is_used_in_full_and_never_exceeded(most: int) -> None:
    ahead = {str(n): (n, n + n * n) for n in range(6)}
    moved = limited_ends(ahead, most)
    assert sum(moved[n] - first for n, (first, _) in ahead.items()) == min(most, 55)
    assert all(first <= moved[n] <= max(first, end) for n, (first, end) in ahead.items())


def reader(**told: str) -> TopicStreamReader:
    read = options.read({"topic": "t", **told}, "http://127.0.0.1:1")
    return TopicStreamReader(read, StructType())


def test_a_stream_starts_at_the_earliest_offsets_or_at_numbers() -> None:
    assert reader().initialOffset() == {}
    assert reader(startingOffsets='{"0": 5, "1": -2}').initialOffset() == {"0": 5}
    for told in ({"startingOffsets": "latest"}, {"startingOffsets": '{"0": -1}'}):
        with pytest.raises(OptionInvalid, match=r"penstock\.spark\.stream"):
            reader(**told)
    with pytest.raises(OptionInvalid, match=r"penstock\.spark\.stream"):
        reader(startingTimestamp="1")
    for told in ({"endingOffsets": "5"}, {"endingTimestamp": "1"}):
        with pytest.raises(OptionInvalid, match="has no end"):
            reader(**told)
