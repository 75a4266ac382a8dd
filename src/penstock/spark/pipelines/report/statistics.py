"""Statistics of a topic's messages, each a function from a DataFrame to a DataFrame."""

from __future__ import annotations

import re
from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them
from pyspark.sql.types import BinaryType, DataType, StringType

from penstock.spark.columns import LEAD
from penstock.spark.errors import OptionInvalid

QUANTILES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
QUANTILE_ACCURACY: Final = 10_000
"""The error of a rank is at most one in this number."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BUCKET: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_WIDTHS: Final = {"boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4}
_WIDTH: Final = 8
"""Bytes of a value of any other type, except text and bytes."""


def bucket_seconds(text: str) -> int:
    """Seconds of an interval such as `30s`, `1m`, `1h` or `1d`; raises OptionInvalid."""
    match = _BUCKET.fullmatch(text)
    if match is None:
        raise OptionInvalid(f"bucket {text!r} must be a number and s, m, h or d, such as 1h")
    return int(match[1]) * _UNITS[match[2]]


def throughput(messages: DataFrame, seconds: int) -> DataFrame:
    """From a topic: `bucket` (its start in UTC), `partition`, `messages`, `bytes`."""
    time = F.unix_seconds("timestamp")
    bucket = F.timestamp_seconds(time - time % seconds).alias("bucket")
    return messages.groupBy(bucket, "partition").agg(*_amounts(messages))


def over_time(counted: DataFrame, seconds: int) -> DataFrame:
    """From a throughput: `bucket` of this many seconds, `messages`, `bytes`, in order."""
    time = F.unix_seconds("bucket")
    bucket = F.timestamp_seconds(time - time % seconds).alias("bucket")
    sums = (F.sum(name).alias(name) for name in ("messages", "bytes"))
    return counted.groupBy(bucket).agg(*sums).orderBy("bucket")


def subjects(messages: DataFrame, most: int) -> DataFrame:
    """From a topic, the subjects with most messages: `subject`, `messages`, `bytes`, `first`,
    `last`.
    """
    times = F.min("timestamp").alias("first"), F.max("timestamp").alias("last")
    counted = messages.groupBy("subject").agg(*_amounts(messages), *times)
    return counted.orderBy(F.desc("messages"), "subject").limit(most)


def sizes(messages: DataFrame) -> DataFrame:
    """From a topic: `quantile`, `bytes`; no rows if there are no messages."""
    shares = F.array(*(F.lit(share) for share in QUANTILES))
    found = messages.select(message_bytes(messages).alias("bytes")).agg(
        F.percentile_approx("bytes", list(QUANTILES), QUANTILE_ACCURACY).alias("bytes")
    )
    pairs = F.explode(F.arrays_zip(shares.alias("quantile"), F.col("bytes"))).alias("pair")
    return found.where(F.col("bytes").isNotNull()).select(pairs).select("pair.*")


def message_bytes(messages: DataFrame) -> Column:
    """The size of a message: subject, headers and payload, or the columns of a typed topic."""
    own = [field for field in messages.schema if field.name not in LEAD]
    return reduce(add, (_bytes(field.name, field.dataType) for field in own), F.lit(0).cast("long"))


def _bytes(name: str, kind: DataType) -> Column:
    column = F.col(f"`{name.replace('`', '``')}`")
    if isinstance(kind, StringType | BinaryType):
        return F.coalesce(F.octet_length(column), F.lit(0)).cast("long")
    width = _WIDTHS.get(kind.typeName(), _WIDTH)
    return F.when(column.isNull(), 0).otherwise(width).cast("long")


def _amounts(messages: DataFrame) -> tuple[Column, Column]:
    return F.count("*").alias("messages"), F.sum(message_bytes(messages)).alias("bytes")
