"""A report on a topic: a table for each statistic, and a page that shows them with charts.

    from messages    throughput over time and by partition, subjects, sizes (computed by Spark)
    from the plan    offsets of partitions, gaps
    from the broker  consumers and their lag, jobs and dead letters of a channel

The driver and the workers must share the directory. Tables of the same names are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them

from penstock.client import BrokerRefused, TopicPlan
from penstock.spark import options as options_
from penstock.spark import planning
from penstock.spark.options import SourceOptions
from penstock.spark.pipelines.report import charts, standing, statistics
from penstock.spark.pipelines.report.charts import ChartPoint
from penstock.spark.pipelines.report.page import ReportSection, page, shown
from penstock.spark.sessions import broker_of
from penstock.spark.tables import topic as read_topic

SUBJECTS_MAX: Final = 1000
ROWS_SHOWN: Final = 50
BARS_SHOWN: Final = 25
COLUMNS_SHOWN: Final = 300
"""Maximum number of columns of a chart; more buckets are combined to wider ones."""

Row = dict[str, Any]


class TopicReport(NamedTuple):
    """The files of a report."""

    page: Path
    tables: dict[str, int]
    """Number of rows of each table."""
    warnings: list[str]
    """Statistics that the broker refused."""


class Statistic(NamedTuple):
    """A table, and how it is shown on the page."""

    name: str
    note: str
    frame: DataFrame
    order: Sequence[Column]
    plots: Callable[[DataFrame, list[Row]], list[str]] = lambda frame, rows: []
    """Charts from the whole table and from the rows on the page."""


def write_report(
    spark: SparkSession,
    topic: str,
    into: Path,
    buckets: Sequence[str] = ("1h",),
    form: str = "parquet",
    **options: object,
) -> TopicReport:
    """Write the tables, as `parquet` or `csv`, and `index.html` into a directory.

    Raises OptionInvalid, and errors if the broker or the bucket is unreachable. If the broker
    refuses statistics of consumers or jobs, the report has a warning instead.
    """
    texts = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **texts}, broker_of(spark))
    widths = {bucket: statistics.bucket_seconds(bucket) for bucket in buckets}
    plan = planning.make_plan(read)
    messages = read_topic(spark, topic, **options)
    broker_statistics, warnings = _broker_statistics(spark, read)
    all_statistics = [
        *_message_statistics(messages, widths),
        *_plan_statistics(spark, plan),
        *broker_statistics,
    ]
    into.mkdir(parents=True, exist_ok=True)
    sections = [_write_table(spark, statistic, into, form) for statistic in all_statistics]
    text = page(f"Topic {read.topic}", _facts(read, plan), warnings, sections)
    index = into / "index.html"
    index.write_text(text, encoding="utf-8")
    counted = {
        item.name: section.total for item, section in zip(all_statistics, sections, strict=True)
    }
    return TopicReport(index, counted, warnings)


def _facts(read: SourceOptions, plan: TopicPlan) -> dict[str, object]:
    store = plan.store
    return {
        "topic": read.topic.full,
        "created": datetime.now(UTC),
        "partitions": len(plan.partitions),
        "offsets": sum(item.next_offset - item.start_offset for item in plan.partitions),
        "offsets that are not in objects yet": sum(
            p.next_offset - p.hot_offset for p in plan.partitions
        ),
        "objects": len(plan.objects),
        "bytes of objects": sum(item.size for item in plan.objects),
        "store": "memory" if store is None else f"{store.backend} {store.root}",
        "times": "UTC",
    }


# -- which statistics there are


def _message_statistics(messages: DataFrame, widths: dict[str, int]) -> list[Statistic]:
    items = [
        Statistic(
            f"throughput_{bucket}",
            f"Messages and bytes of each partition in every {bucket}.",
            statistics.throughput(messages, seconds),
            (F.desc("bucket"), F.col("partition")),
            partial(_over_time, seconds),
        )
        for bucket, seconds in widths.items()
    ]
    if "subject" in messages.columns:
        items.append(
            Statistic(
                "subjects",
                f"The subjects with most messages, at most {SUBJECTS_MAX}.",
                statistics.subjects(messages, SUBJECTS_MAX),
                (F.desc("messages"), F.col("subject")),
                lambda frame, rows: _bars("Messages by subject", rows, "subject", "messages"),
            )
        )
    sizes = Statistic(
        "sizes",
        "Sizes of messages: half of them are at most as large as the quantile 0.5.",
        statistics.sizes(messages),
        (F.col("quantile"),),
        lambda frame, rows: _bars("Bytes of a message, by quantile", rows, "quantile", "bytes"),
    )
    return [*items, sizes]


def _plan_statistics(spark: SparkSession, plan: TopicPlan) -> list[Statistic]:
    return [
        Statistic(
            "partitions",
            "Offsets of each partition: from start to next; those below hot are in objects.",
            _frame(spark, standing.partitions(plan)),
            (F.desc("messages"), F.col("partition")),
            lambda frame, rows: _bars("Messages by partition", rows, "partition", "messages"),
        ),
        Statistic(
            "gaps",
            "Runs of offsets without a message: deleted ones and recorded gaps.",
            _frame(spark, standing.gaps(plan)),
            (F.desc("offsets"), F.col("partition"), F.col("first_offset")),
        ),
    ]


def _broker_statistics(
    spark: SparkSession, read: SourceOptions
) -> tuple[list[Statistic], list[str]]:
    """Statistics from the broker, and warnings for those that it refuses."""
    items: list[Statistic] = []
    warnings: list[str] = []
    for name, ask, build in _BROKER_TABLES:
        if name != "consumers" and not standing.may_be_channel(read.topic):
            continue
        try:
            table = ask(read)
        except BrokerRefused as error:
            warnings.append(f"{name} are missing: {error}")
            continue
        items.append(build(_frame(spark, table)))
    return items, warnings


def _consumers(frame: DataFrame) -> Statistic:
    return Statistic(
        "consumers",
        "NATS consumers. Lag: committed offsets that are not settled.",
        frame,
        (F.desc("lag"), F.col("name"), F.col("partition_id")),
        lambda frame, rows: [
            charts.bars(title, [ChartPoint(_named(row), row[value]) for row in rows[:BARS_SHOWN]])
            for title, value in (("Lag by consumer", "lag"), ("Deliveries", "deliveries"))
        ],
    )


def _named(row: Row) -> str:
    return f"{row['name']}, partition {row['partition_id']}" if row["partition_id"] else row["name"]


def _jobs(frame: DataFrame) -> Statistic:
    return Statistic(
        "jobs",
        "Jobs of the channel by consumer and state.",
        frame,
        (F.col("consumer"), F.col("state")),
        lambda frame, rows: [
            charts.bars(
                "Jobs by consumer and state",
                [
                    ChartPoint(f"{r['consumer']}, {r['state']}", r["jobs"])
                    for r in rows[:BARS_SHOWN]
                ],
            )
        ],
    )


def _dead_letters(frame: DataFrame) -> Statistic:
    return Statistic(
        "dead_letters",
        "Dead jobs of the channel by consumer.",
        frame,
        (F.desc("dead"), F.col("consumer")),
        lambda frame, rows: _bars("Dead jobs by consumer", rows, "consumer", "dead"),
    )


_BROKER_TABLES: Final[
    tuple[tuple[str, Callable[[SourceOptions], pa.Table], Callable[..., Statistic]], ...]
] = (
    ("consumers", lambda read: standing.consumers(read.broker, read.topic), _consumers),
    ("jobs", lambda read: standing.jobs(read.broker, read.topic.topic), _jobs),
    (
        "dead letters",
        lambda read: standing.dead_letters(read.broker, read.topic.topic),
        _dead_letters,
    ),
)


# -- writing and drawing


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table).coalesce(1)


def _write_table(spark: SparkSession, statistic: Statistic, into: Path, form: str) -> ReportSection:
    """Write a table, read it back, and return its section of the page."""
    path, settings = str(into / f"{statistic.name}.{form}"), {"header": "true", "timeZone": "UTC"}
    frame = statistic.frame
    frame.write.format(form).options(**settings).mode("overwrite").save(path)
    written = spark.read.format(form).options(**settings).schema(frame.schema).load(path)
    rows: list[Row] = written.orderBy(*statistic.order).limit(ROWS_SHOWN).toArrow().to_pylist()
    plots = statistic.plots(written, rows) if rows else []
    title = statistic.name.replace("_", " ").capitalize()
    return ReportSection(title, statistic.note, plots, rows, frame.columns, written.count())


def _over_time(seconds: int, counted: DataFrame, shown_rows: list[Row]) -> list[str]:
    """Charts of messages and bytes over time; an interval without messages is an empty column."""
    times = F.unix_seconds("bucket")
    first, last = counted.agg(F.min(times), F.max(times)).collect()[0]
    wide = seconds * -(-((last - first) // seconds + 1) // COLUMNS_SHOWN)
    rows = statistics.over_time(counted, wide).toArrow().to_pylist()
    by_time = {int(row["bucket"].timestamp()): row for row in rows}
    drawn = []
    for column in ("messages", "bytes"):
        points = [
            ChartPoint(
                shown(datetime.fromtimestamp(time, UTC)), by_time.get(time, {column: 0})[column]
            )
            for time in range(min(by_time), max(by_time) + 1, wide)
        ]
        drawn.append(charts.columns(f"{column.capitalize()} in {wide:,} seconds", points))
    return drawn


def _bars(title: str, rows: list[Row], name: str, value: str) -> list[str]:
    return [charts.bars(title, [ChartPoint(str(r[name]), r[value]) for r in rows[:BARS_SHOWN]])]
