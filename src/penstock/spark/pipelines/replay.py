"""Copies a range or a time window of a topic to another topic, with an optional filter or query.

The copy is one transaction of the target: it becomes visible as a whole. A replay with a name is
done only once. Copies get new offsets and timestamps; without a query they keep their order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.client import get_topic
from penstock.formats.api import TopicReply
from penstock.model import names
from penstock.spark.columns import LEAD
from penstock.spark.planning import ask_once
from penstock.spark.sessions import broker_of
from penstock.spark.tables import topic as read_topic
from penstock.spark.writers import check_columns

VIEW: Final = "source"
"""The name of the source topic's view in a query."""


class ReplayResult(NamedTuple):
    """The result of a replay, or of its dry run."""

    messages: int
    """Number of messages to copy; if the name was used before, none of them was copied again."""


def replay_topic(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    where: str | None = None,
    sql: str | None = None,
    name: str | None = None,
    dry_run: bool = False,
    **options: object,
) -> ReplayResult:
    """Copy the messages of `source` that the options select to the existing topic `target`.

    `where` is a condition on messages, `sql` a query over the view `source`. A second replay with
    the same `name` copies nothing.
    """
    frame = selected_messages(spark, read_topic(spark, source, **options), where, sql)
    frame = target_rows(frame, _topic(spark, target))
    counted = frame.count()
    if not dry_run:
        writer = frame.write.format("penstock").option("topic", target).mode("append")
        if name is not None:
            writer = writer.option("txnAppId", f"replay-{name}").option("txnVersion", 0)
        writer.save()
    return ReplayResult(counted)


def selected_messages(
    spark: SparkSession, frame: DataFrame, where: str | None, sql: str | None
) -> DataFrame:
    """The messages to copy; in order if there is no query."""
    if where is not None:
        frame = frame.where(where)
    if sql is None:
        return frame.orderBy("partition", "offset")
    frame.createOrReplaceTempView(VIEW)
    return spark.sql(sql)


def target_rows(frame: DataFrame, target: TopicReply) -> DataFrame:
    """Rows without offset and timestamp; raises ColumnsInvalid if they do not match the target."""
    frame = frame.drop(*LEAD)
    check_columns(target, frame.columns)
    return frame


def _topic(spark: SparkSession, name: str) -> TopicReply:
    return ask_once(broker_of(spark) or "", get_topic(names.topic(name)))
