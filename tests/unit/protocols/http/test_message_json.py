import pyarrow as pa
import pytest

from penstock.model import names, schema
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic, TopicSpec
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.protocols.http.message_json import messages_json, partition_json


def _topic(*fields: str, partition: str | None = None) -> Topic:
    columns = schema.schema(map(schema.field, fields)) if fields else None
    return Topic(TopicSpec(names.topic("t"), columns, partition), "unique", Microseconds(0))


def _batch(content: Columns | pa.RecordBatch, count: int) -> Batch:
    return Batch(PartitionId(0), Offset(0), count, Microseconds(0), content)


def test_partition_values_are_tagged() -> None:
    assert (partition_json(None), partition_json(PartitionValue("Bytes", b"\x01"))) == (
        None,
        {"Bytes": [1]},
    )


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (None, b'{"a":1,"b":"x"},{"a":2,"b":"x"},'),
        ("a", b'{"b":"x"},{"b":"x"},'),
        ("b", b'{"a":1},{"a":2},'),
    ],
)
def test_rows_are_without_the_partition_column(partition: str | None, expected: bytes) -> None:
    rows = pa.record_batch({"a": [1, 2], "b": ["x", "x"]})
    topic = _topic("a:int64", "b:string", partition=partition)
    assert b"".join(messages_json(topic, _batch(rows, 2))) == expected


def test_rows_of_nothing_else_are_empty_objects() -> None:
    rows = pa.record_batch({"a": [1, 1]})
    assert b"".join(messages_json(_topic("a:int64", partition="a"), _batch(rows, 2))) == b"{},{},"


def test_raw_messages_are_shown_with_their_subject() -> None:
    content = Columns(b"s", pa.array([b"x"]))
    expected = b'{"subject":"s","timestamp":"1970-01-01T00:00:00.000000Z","payload":"x"},'
    assert b"".join(messages_json(_topic(partition="subject"), _batch(content, 1))) == expected
