import pyarrow as pa
import pytest

from penstock.model import names, schema
from penstock.model.errors import PartitionInvalid, SchemaInvalid
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Durability, Topic, TopicSpec
from penstock.model.units import Microseconds

NAME = names.topic("orders")
ROWS = schema.schema(map(schema.field, ["id:int64", "customer:string", "total:float64"]))


def _topic(spec: TopicSpec) -> Topic:
    return Topic(spec, "u", Microseconds(0))


def test_pushed_rows_of_a_partitioned_topic_lack_the_partition_column() -> None:
    spec = TopicSpec(NAME, ROWS, "customer")
    assert spec.partition_type == pa.string()
    assert spec.pushed_schema is not None
    assert spec.pushed_schema.names == ["id", "total"]


def test_pushed_rows_of_an_unpartitioned_topic_have_all_columns() -> None:
    assert TopicSpec(NAME, ROWS).pushed_schema == ROWS
    assert TopicSpec(NAME).pushed_schema is None
    assert TopicSpec(NAME, ROWS).partition_type is None


def test_a_raw_topic_can_be_partitioned_by_subject_only() -> None:
    assert TopicSpec(NAME, None, "subject").partition_type == pa.string()
    with pytest.raises(SchemaInvalid, match="no column 'payload' to partition by; known: subject"):
        TopicSpec(NAME, None, "payload")


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ("place", "there is no column 'place' to partition by; known: id, customer, total"),
        ("total", "cannot be partitioned by column 'total' of type double"),
    ],
)
def test_a_column_that_cannot_be_a_partition_column_is_refused(column: str, complaint: str) -> None:
    with pytest.raises(SchemaInvalid, match=complaint):
        TopicSpec(NAME, ROWS, column)


def test_a_nullable_column_cannot_be_a_partition_column() -> None:
    with pytest.raises(SchemaInvalid, match="partition column 'a' cannot be nullable"):
        TopicSpec(NAME, schema.schema([schema.field("a:int8?")]), "a")


@pytest.mark.feature("F03")
@pytest.mark.parametrize(
    ("spec", "value", "complaint"),
    [
        (TopicSpec(NAME, ROWS), PartitionValue("Int64", 7), "does not specify a partition key"),
        (TopicSpec(NAME, ROWS, "id"), None, "does not contain a partition value"),
        (
            TopicSpec(NAME, ROWS, "id"),
            PartitionValue("UInt64", 7),
            "data type Int64 does not match partition value data type UInt64",
        ),
    ],
)
def test_a_missing_an_unexpected_and_a_wrong_partition_value_are_three_errors(
    spec: TopicSpec, value: PartitionValue | None, complaint: str
) -> None:
    with pytest.raises(PartitionInvalid, match=complaint):
        _topic(spec).check_partition(value)


def test_a_valid_partition_value_is_accepted() -> None:
    _topic(TopicSpec(NAME, ROWS)).check_partition(None)
    _topic(TopicSpec(NAME, ROWS, "id")).check_partition(PartitionValue("Int64", 7))


def test_the_levels_have_the_names_that_users_write() -> None:
    assert [level.value for level in Durability] == ["memory", "fsync", "cloud"]
