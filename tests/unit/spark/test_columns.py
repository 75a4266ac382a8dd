import pytest
from pyspark.sql.types import StructType

from penstock.formats.api import Field
from penstock.model.schema import TYPES
from penstock.spark import columns
from penstock.spark.errors import ColumnsInvalid
from tests.unit.spark.plans import topic


def test_every_type_of_a_topic_has_a_spark_type() -> None:
    made = topic(*(Field(f"c_{name}", name) for name in TYPES))
    told = columns.spark_schema(columns.arrow_schema(made))
    found = {field.name: field.dataType.simpleString() for field in told}
    assert list(found)[:3] == ["partition", "offset", "timestamp"]
    assert {name: found[f"c_{name}"] for name in TYPES} == {
        "int8": "tinyint",
        "int16": "smallint",
        "int32": "int",
        "int64": "bigint",
        "uint8": "smallint",
        "uint16": "int",
        "uint32": "bigint",
        "uint64": "decimal(20,0)",
        "float32": "float",
        "float64": "double",
        "string": "string",
        "bool": "boolean",
        "binary": "binary",
    }
    assert all(field.nullable for field in told)


def test_raw_topics_have_the_columns_of_the_envelope() -> None:
    names = columns.arrow_schema(topic()).names
    assert names == ["partition", "offset", "timestamp", "subject", "headers", "payload"]


def test_the_strict_schema_marks_columns_that_are_never_null() -> None:
    raw = columns.spark_schema(columns.strict_schema(topic()))
    assert [field.name for field in raw if field.nullable] == ["headers"]
    typed = topic(Field("must", "int64"), Field("may", "uint8", nullable=True))
    told = columns.spark_schema(columns.strict_schema(typed))
    assert [field.name for field in told if field.nullable] == ["may"]
    assert told["may"].dataType.simpleString() == "smallint"


def test_a_requested_schema_may_make_columns_nullable() -> None:
    typed = topic(Field("must", "int64"), Field("may", "int64", nullable=True))
    loose = StructType().add("must", "long").add("may", "long")
    assert [field.nullable for field in columns.selected_schema(typed, loose)] == [True, True]
    strict = columns.spark_schema(columns.strict_schema(typed))
    assert columns.selected_schema(typed, strict) == columns.strict_schema(typed)
    with pytest.raises(ColumnsInvalid, match=r"column 'may' of topic .* may be null"):
        columns.selected_schema(typed, StructType().add("may", "long", nullable=False))


def test_a_requested_schema_may_have_some_columns_in_any_order() -> None:
    known = columns.spark_schema(columns.arrow_schema(topic()))
    wanted = StructType([known["payload"], known["offset"]])
    assert columns.selected_schema(topic(), wanted).names == ["payload", "offset"]
    with pytest.raises(ColumnsInvalid, match="has no column 'x'; known: partition"):
        columns.selected_schema(topic(), StructType().add("x", "string"))
    with pytest.raises(ColumnsInvalid, match=r"'offset' of topic .* is bigint, not int"):
        columns.selected_schema(topic(), StructType().add("offset", "integer"))
