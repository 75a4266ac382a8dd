"""A topic in numbers: one table for each statistic, and a page that shows them with plots.

    of messages    throughput over time and by partition, subjects, sizes      (Spark)
    of the plan    offsets of partitions, gaps
    of the broker  consumers and their lag, jobs and dead letters of a channel

The directory is one that driver and workers share. Tables of the same names are replaced.
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

from penstock.client.exchange import BrokerRefused
from penstock.client.plans import Plan
from penstock.spark import options as options_
from penstock.spark import planning
from penstock.spark.options import Options
from penstock.spark.pipelines import charts, standing, statistics
from penstock.spark.pipelines.charts import Point
from penstock.spark.pipelines.page import Section, page, shown
from penstock.spark.sessions import broker_of
from penstock.spark.tables import topic as read_topic

SUBJECTS_MAX: Final = 1000
ROWS_SHOWN: Final = 50
BARS_SHOWN: Final = 25
COLUMNS_SHOWN: Final = 300
"""Of a plot over time; more buckets are drawn as fewer, wider ones."""

Row = dict[str, Any]


class Report(NamedTuple):
    """What was written."""

    page: Path
    tables: dict[str, int]
    """How many rows each has."""
    warnings: list[str]
    """What the broker did not tell."""


class Statistic(NamedTuple):
    """A table, and how the page shows it."""

    name: str
    note: str
    frame: DataFrame
    order: Sequence[Column]
    plots: Callable[[DataFrame, list[Row]], list[str]] = lambda frame, rows: []
    """From the whole table and the rows that are shown."""


def report(
    spark: SparkSession,
    topic: str,
    into: Path,
    buckets: Sequence[str] = ("1h",),
    form: str = "parquet",
    **options: object,
) -> Report:
    """Write the tables, as `parquet` or `csv`, and `index.html` into a directory.

    Raises OptionInvalid, and when broker or bucket cannot be asked. Where the broker refuses to
    tell of consumers or jobs, that is a warning.
    """
    told = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **told}, broker_of(spark))
    widths = {bucket: statistics.bucket_seconds(bucket) for bucket in buckets}
    plan = planning.make_plan(read)
    messages = read_topic(spark, topic, **options)
    found, warnings = _standing(spark, read)
    made = [*_of_messages(messages, widths), *_of_plan(spark, plan), *found]
    into.mkdir(parents=True, exist_ok=True)
    sections = [_written(spark, statistic, into, form) for statistic in made]
    text = page(f"Topic {read.topic}", _facts(read, plan), warnings, sections)
    index = into / "index.html"
    index.write_text(text, encoding="utf-8")
    counted = {item.name: section.total for item, section in zip(made, sections, strict=True)}
    return Report(index, counted, warnings)


def _facts(read: Options, plan: Plan) -> dict[str, object]:
    store = plan.store
    return {
        "topic": read.topic.full,
        "made": datetime.now(UTC),
        "partitions": len(plan.partitions),
        "offsets kept": sum(item.next_offset - item.start_offset for item in plan.partitions),
        "of these not in objects yet": sum(p.next_offset - p.hot_offset for p in plan.partitions),
        "objects": len(plan.objects),
        "bytes of objects": sum(item.size for item in plan.objects),
        "store": "memory" if store is None else f"{store.backend} {store.root}",
        "times": "UTC",
    }


# -- which statistics there are


def _of_messages(messages: DataFrame, widths: dict[str, int]) -> list[Statistic]:
    made = [
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
        made.append(
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
        "How large messages are: half of them are not larger than the quantile 0.5 says.",
        statistics.sizes(messages),
        (F.col("quantile"),),
        lambda frame, rows: _bars("Bytes of a message, by quantile", rows, "quantile", "bytes"),
    )
    return [*made, sizes]


def _of_plan(spark: SparkSession, plan: Plan) -> list[Statistic]:
    return [
        Statistic(
            "partitions",
            "Offsets of each partition: kept from start to next, in objects below hot.",
            _frame(spark, standing.partitions(plan)),
            (F.desc("messages"), F.col("partition")),
            lambda frame, rows: _bars("Messages by partition", rows, "partition", "messages"),
        ),
        Statistic(
            "gaps",
            "Runs of offsets that have no message: deleted ones, and holes that are on record.",
            _frame(spark, standing.gaps(plan)),
            (F.desc("offsets"), F.col("partition"), F.col("first_offset")),
        ),
    ]


def _standing(spark: SparkSession, read: Options) -> tuple[list[Statistic], list[str]]:
    """What only the broker can tell, and what it does not tell."""
    made: list[Statistic] = []
    warnings: list[str] = []
    for name, ask, build in _ASKED:
        if name != "consumers" and not standing.is_channel_place(read.topic):
            continue
        try:
            table = ask(read)
        except BrokerRefused as error:
            warnings.append(f"{name} are not told: {error}")
            continue
        made.append(build(_frame(spark, table)))
    return made, warnings


def _consumers(frame: DataFrame) -> Statistic:
    return Statistic(
        "consumers",
        "Consumers of the NATS door. Lag: offsets that are committed and not settled.",
        frame,
        (F.desc("lag"), F.col("name"), F.col("partition_id")),
        lambda frame, rows: [
            charts.bars(title, [Point(_named(row), row[value]) for row in rows[:BARS_SHOWN]])
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
                [Point(f"{r['consumer']}, {r['state']}", r["jobs"]) for r in rows[:BARS_SHOWN]],
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


_ASKED: Final[tuple[tuple[str, Callable[[Options], pa.Table], Callable[..., Statistic]], ...]] = (
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


def _written(spark: SparkSession, statistic: Statistic, into: Path, form: str) -> Section:
    """Write a table, and show its beginning as it was written."""
    place, settings = str(into / f"{statistic.name}.{form}"), {"header": "true", "timeZone": "UTC"}
    frame = statistic.frame
    frame.write.format(form).options(**settings).mode("overwrite").save(place)
    kept = spark.read.format(form).options(**settings).schema(frame.schema).load(place)
    rows: list[Row] = kept.orderBy(*statistic.order).limit(ROWS_SHOWN).toArrow().to_pylist()
    plots = statistic.plots(kept, rows) if rows else []
    title = statistic.name.replace("_", " ").capitalize()
    return Section(title, statistic.note, plots, rows, frame.columns, kept.count())


def _over_time(seconds: int, counted: DataFrame, shown_rows: list[Row]) -> list[str]:
    """Messages and bytes over time, as columns of equal width; no message is an empty one."""
    times = F.unix_seconds("bucket")
    first, last = counted.agg(F.min(times), F.max(times)).collect()[0]
    wide = seconds * -(-((last - first) // seconds + 1) // COLUMNS_SHOWN)
    rows = statistics.over_time(counted, wide).toArrow().to_pylist()
    by_time = {int(row["bucket"].timestamp()): row for row in rows}
    drawn = []
    for column in ("messages", "bytes"):
        points = [
            Point(shown(datetime.fromtimestamp(time, UTC)), by_time.get(time, {column: 0})[column])
            for time in range(min(by_time), max(by_time) + 1, wide)
        ]
        drawn.append(charts.columns(f"{column.capitalize()} in {wide:,} seconds", points))
    return drawn


def _bars(title: str, rows: list[Row], name: str, value: str) -> list[str]:
    return [charts.bars(title, [Point(str(r[name]), r[value]) for r in rows[:BARS_SHOWN]])]
