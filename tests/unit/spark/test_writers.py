from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock.formats.api import Field, TopicReply
from penstock.formats.plan_api import StoreReply
from penstock.spark import writers
from penstock.spark.buckets import SparkBucket
from penstock.spark.errors import ColumnsInvalid, WriteRefused
from penstock.spark.writers import RowStager
from tests.unit.spark.plans import topic

ORDERS = topic(Field("id", "uint16"), Field("text", "string", True), partition_column="id")


def stage(tmp_path: Path, made: TopicReply = ORDERS) -> RowStager:
    return RowStager(made, SparkBucket(StoreReply("fs", str(tmp_path)), {}))


def orders(ids: list[int], **columns: list[object]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int32()), **columns})


def test_rows_are_staged_as_one_object_for_each_partition(
    tmp_path: Path,
) -> None:
    batches = [orders([7, 9], text=["a", "b"]), orders([], text=[]), orders([7], text=["c"])]
    staged = stage(tmp_path).rows(batches)
    assert [(item.partition_value, item.rows) for item in staged] == [
        ({"UInt16": 7}, 2),
        ({"UInt16": 9}, 1),
    ]
    data = (tmp_path / staged[0].key).read_bytes()
    assert (staged[0].size_bytes, staged[0].crc32c) == (len(data), crc32c(data))
    table = pq.read_table(pa.BufferReader(data))
    assert table.to_pylist() == [{"id": 7, "text": "a"}, {"id": 7, "text": "c"}]
    assert table.schema == writers.stored_schema(ORDERS)
    assert stage(tmp_path).rows([]) == []


def test_nullable_columns_may_be_missing(tmp_path: Path) -> None:
    (item,) = stage(tmp_path).rows([orders([1])])
    assert pq.read_table(tmp_path / item.key).column("text").null_count == 1


def test_raw_messages_keep_their_subjects(tmp_path: Path) -> None:
    columns = {"payload": pa.array(["x", "y"]), "subject": pa.array(["a.b", None])}
    (item,) = stage(tmp_path, topic()).rows([pa.record_batch(columns)])
    table = pq.read_table(tmp_path / item.key)
    assert table.schema.names == ["subject", "payload"]
    assert table.column("subject").to_pylist() == ["a.b", None]
    wrong = pa.record_batch({**columns, "subject": pa.array(["a.b", "a.*"])})
    with pytest.raises(ColumnsInvalid, match=r"'a\.\*' is not a subject"):
        stage(tmp_path, topic()).rows([wrong])


def test_raw_messages_without_headers_have_no_such_column(tmp_path: Path) -> None:
    payload = pa.array(["x", "y"])
    (item,) = stage(tmp_path, topic()).rows([pa.record_batch({"payload": payload})])
    table = pq.read_table(tmp_path / item.key)
    assert table.schema == pa.schema([pa.field("payload", pa.binary(), nullable=False)])
    block = pa.array([None, b"h"], pa.binary())
    batch = pa.record_batch({"payload": payload, "headers": block})
    (item,) = stage(tmp_path, topic()).rows([batch])
    assert pq.read_table(tmp_path / item.key).column("headers").to_pylist() == [None, b"h"]


def test_many_rows_are_staged_as_several_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "STAGED_BYTES", 1000)
    batches = [pa.record_batch({"payload": pa.array(["x" * 400])}) for _ in range(7)]
    staged = stage(tmp_path, topic()).rows(batches)
    assert [item.rows for item in staged] == [3, 3, 1]
    assert len({item.key for item in staged}) == 3


def test_values_that_do_not_match_a_column_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ColumnsInvalid, match="column 'id': Integer value 70000 not in range"):
        stage(tmp_path).rows([orders([70_000])])
    nothing = pa.record_batch({"id": pa.array([None], pa.int32())})
    with pytest.raises(ColumnsInvalid, match="column 'id' has nulls"):
        stage(tmp_path).rows([nothing])
    assert not list(tmp_path.rglob("*.parquet"))


def test_columns_are_checked_before_anything_is_written() -> None:
    writers.check_columns(ORDERS, ["id", "offset", "partition", "timestamp"])
    writers.check_columns(topic(), ["payload"])
    writers.check_columns(topic(), ["subject", "headers", "payload", "offset"])
    for made, given, words in (
        (ORDERS, ["text"], "'id' of topic .* is missing"),
        (ORDERS, ["id", "x"], "has no column 'x'"),
        (topic(), ["payload", "key"], "has no column 'key'"),
        (topic(), ["headers"], "'payload' of topic .* is missing"),
    ):
        with pytest.raises(ColumnsInvalid, match=words):
            writers.check_columns(made, given)


def test_topics_that_cannot_be_linked_are_refused() -> None:
    writers.refuse_unwritable(ORDERS, overwrite=False)
    by_subject = topic(partition_column="subject")
    memory = topic()
    memory.durability = "memory"
    for made, overwrite in ((ORDERS, True), (by_subject, False), (memory, False)):
        with pytest.raises(WriteRefused):
            writers.refuse_unwritable(made, overwrite)
