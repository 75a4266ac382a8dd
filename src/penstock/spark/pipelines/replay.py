"""Copy a range or a time window of a topic into another one, with a filter or a query on the way.

The copy is one transaction of the target: all of it is there, or nothing. Named, it can be asked
for again without harm. Copies get offsets and times of their own; without a query they keep their
order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.client import calls
from penstock.formats.api import TopicReply
from penstock.model import names
from penstock.spark import staging
from penstock.spark.columns import LEAD
from penstock.spark.reading import promptly
from penstock.spark.sessions import broker_of
from penstock.spark.tables import topic as read_topic

VIEW: Final = "source"
"""What the topic is called in a query."""


class Replayed(NamedTuple):
    """What a replay did, or would do."""

    messages: int
    """How many there are to be copied; with a name that was used before, none was copied again."""


def replay(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    where: str | None = None,
    sql: str | None = None,
    name: str | None = None,
    dry_run: bool = False,
    **options: object,
) -> Replayed:
    """Copy messages of `source` that the options choose into `target`, which exists.

    `where` is a condition on them, `sql` a query over the view `source`; `name` makes a second call
    of the same name harmless.
    """
    frame = chosen(spark, read_topic(spark, source, **options), where, sql)
    frame = fitted(frame, _topic(spark, target))
    counted = frame.count()
    if not dry_run:
        writer = frame.write.format("penstock").option("topic", target).mode("append")
        if name is not None:
            writer = writer.option("txnAppId", f"replay-{name}").option("txnVersion", 0)
        writer.save()
    return Replayed(counted)


def chosen(spark: SparkSession, frame: DataFrame, where: str | None, sql: str | None) -> DataFrame:
    """The messages that are to be copied; in order unless a query makes others of them."""
    if where is not None:
        frame = frame.where(where)
    if sql is None:
        return frame.orderBy("partition", "offset")
    frame.createOrReplaceTempView(VIEW)
    return spark.sql(sql)


def fitted(frame: DataFrame, target: TopicReply) -> DataFrame:
    """Without the columns that messages get anew; raises ColumnsInvalid if others do not fit."""
    frame = frame.drop(*LEAD)
    staging.check_columns(target, frame.columns)
    return frame


def _topic(spark: SparkSession, name: str) -> TopicReply:
    return promptly(broker_of(spark) or "", calls.get_topic(names.topic(name)))
