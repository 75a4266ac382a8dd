"""The columns of a topic as a Spark schema and as an Arrow schema, which must match exactly.

The columns are `partition`, `offset`, `timestamp`, then `subject`, `headers`, `payload` or those of
a typed topic. Spark has no unsigned integers: they become the next larger signed type, as in
objects.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.client import topic_schema
from penstock.formats.api import TopicReply
from penstock.model.batch import ENVELOPE
from penstock.spark.errors import ColumnsInvalid

LEAD: Final = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
RAW: Final = {**LEAD, "subject": pa.string(), "headers": pa.binary(), "payload": pa.binary()}
_NEVER_NULL: Final = frozenset(field.name for field in ENVELOPE if not field.nullable)
_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_SPARK: Final[dict[pa.DataType, spark.DataType]] = {
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.bool_(): spark.BooleanType(),
    pa.binary(): spark.BinaryType(),
    pa.timestamp("us", tz="UTC"): spark.TimestampType(),
    pa.decimal128(20, 0): spark.DecimalType(20, 0),
}


def arrow_schema(topic: TopicReply) -> pa.Schema:
    """The columns that a read returns, all of them nullable, as Spark treats files."""
    own = topic_schema(topic)
    if own is None:
        return pa.schema(RAW)
    return pa.schema({**LEAD, **{field.name: wider(field.type) for field in own}})


def strict_schema(topic: TopicReply) -> pa.Schema:
    """The columns that a read returns, with exact nullability, which spares Spark null checks."""
    own = {field.name: field.nullable for field in topic_schema(topic) or ()}
    return pa.schema(
        [
            field.with_nullable(own.get(field.name, field.name not in _NEVER_NULL))
            for field in arrow_schema(topic)
        ]
    )


def wider(type_: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark uses for a type of a topic."""
    return _WIDER.get(type_, type_)


def spark_schema(columns: pa.Schema) -> spark.StructType:
    return spark.StructType(
        [spark.StructField(field.name, _SPARK[field.type], field.nullable) for field in columns]
    )


def selected_schema(topic: TopicReply, requested: spark.StructType) -> pa.Schema:
    """The columns that a user requested with `.schema(...)`, in order; raises ColumnsInvalid."""
    known = strict_schema(topic)
    fields = []
    for field in requested:
        if field.name not in known.names:
            raise ColumnsInvalid(
                f"topic {topic.name} has no column {field.name!r}; known: {', '.join(known.names)}"
            )
        column = known.field(field.name)
        if field.dataType != _SPARK[column.type]:
            actual = _SPARK[column.type].simpleString()
            raise ColumnsInvalid(
                f"column {field.name!r} of topic {topic.name} is {actual}, "
                f"not {field.dataType.simpleString()}"
            )
        if column.nullable and not field.nullable:
            raise ColumnsInvalid(f"column {field.name!r} of topic {topic.name} may be null")
        fields.append(column.with_nullable(field.nullable))
    return pa.schema(fields)
