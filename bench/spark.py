"""Topics read and written by Spark, beside Spark's own Parquet reader on the same files.

Warm runs, the median of several; CPU seconds are those of the JVM and its Python workers together,
which is the figure to compare on a machine that is not idle.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them

from bench.report import Report, Table, Target
from penstock.client import plans
from penstock.client.sync import SyncClient
from penstock.model import names
from penstock.spark import session, topic
from penstock.spark.pipelines.compact import compact
from tests.integration.process import FREE_PORT, Broker

WARM_UPS: Final = 3
ROUNDS: Final = 5
ROUNDS_TRIED: Final = 4
"""So many times as many rounds are tried, where some cannot be counted."""
PUSH_ROWS: Final = 100_000
_TICKS: Final = os.sysconf("SC_CLK_TCK")
WAIT_SECONDS: Final = 120


class Took(NamedTuple):
    """One run."""

    wall: float
    cpu: float


def run(quick: bool) -> Report:
    sizes = [1_000_000] if quick else [1_000_000, 10_000_000]
    with tempfile.TemporaryDirectory() as data:
        settings = ("--set", "storage.uploader.interval_seconds=1")
        with Broker("--data", data, *FREE_PORT, *settings) as broker:
            url = f"http://{broker.host}:{broker.port}"
            spark = session(url, "local[2]", **{"spark.log.level": "ERROR"})
            try:
                return _report(spark, url, Path(data), sizes)
            finally:
                spark.stop()


def _report(spark: SparkSession, url: str, data: Path, sizes: list[int]) -> Report:
    reads: list[list[Any]] = []
    works: list[list[Any]] = []
    targets: list[Target] = []
    with SyncClient(url) as client:
        for rows in sizes:
            name = f"bench{rows}"
            _fill(client, name, rows)
            rates = _reads(spark, name, rows, reads)
            _works(spark, client, name, rows, data, works)
            targets += _targets(rates, works, rows) if rows == sizes[0] else []
    columns = ["what", "messages", "wall s", "CPU s", "M/s", "M per CPU s", "of parquet (CPU)"]
    tables = [
        Table("Spark: cold reads", columns, reads),
        Table("Spark: streams, writes, compaction", columns[:-1], works),
    ]
    return Report(tables, targets)


def _fill(client: SyncClient, name: str, rows: int) -> None:
    """Messages of about 100 bytes, all of them in objects."""
    client.create_topic(name)
    for first in range(0, rows, PUSH_ROWS):
        numbers = pa.array(range(first, first + PUSH_ROWS), pa.int64())
        text = pc.cast(numbers, pa.string())
        subjects = pc.binary_join_element_wise("s", pc.utf8_slice_codeunits(text, -2), ".")
        filler = pa.repeat(pa.scalar("x" * 60), PUSH_ROWS)
        payloads = pc.cast(pc.binary_join_element_wise(text, filler, " "), pa.binary())
        client.push(name, pa.table({"subject": subjects, "payload": payloads}))
    until = time.monotonic() + WAIT_SECONDS
    while _hot(client, name):
        assert time.monotonic() < until, "the broker does not upload"
        time.sleep(0.2)


def _hot(client: SyncClient, name: str) -> bool:
    plan = client.run(plans.plan(names.topic(name), with_objects=False))
    return any(item.hot_offset < item.next_offset for item in plan.partitions)


def _reads(
    spark: SparkSession, name: str, rows: int, table: list[list[Any]]
) -> dict[tuple[str, str], float]:
    """CPU of each query each way, relative to Spark's own reader."""
    scanned = topic(spark, name)
    ways: dict[str, DataFrame] = {
        # The very files that `topic` scans: the broker may have merged some since another plan.
        "parquet": spark.read.schema(scanned.schema).parquet(*scanned.inputFiles()),
        "topic": scanned,
        "format": spark.read.format("penstock").option("topic", name).load(),
    }
    queries: dict[str, Callable[[DataFrame], DataFrame]] = {
        "full scan": lambda f: f.agg(*(F.max(column) for column in f.columns)),
        "count": lambda f: f.agg(F.count("*")),
        "one subject": lambda f: f.where("subject = 's.07'").agg(F.max("payload")),
        "group by": lambda f: f.groupBy("subject").count().agg(F.max("count")),
        "1 % of offsets": lambda f: f.where(
            f"offset >= {rows // 2} and offset < {rows // 2 + rows // 100}"
        ).agg(F.max("payload")),
    }
    ratios = {}
    for query, shape in queries.items():
        took = _compared({way: _fresh(shape, frame) for way, frame in ways.items()})
        for way, typical in took.items():
            ratios[query, way] = took["parquet"].cpu / typical.cpu
            figures = _figures(rows, typical)
            table.append([f"{query}, {way}", rows, *figures, ratios[query, way]])
    return ratios


def _fresh(shape: Callable[[DataFrame], DataFrame], frame: DataFrame) -> Callable[[], object]:
    """The query made anew each time: one that ran before keeps what its shuffles gave."""
    return lambda: shape(frame).collect()


def _works(
    spark: SparkSession,
    client: SyncClient,
    name: str,
    rows: int,
    data: Path,
    table: list[list[Any]],
) -> None:
    def stream() -> None:
        source = spark.readStream.format("penstock").option("topic", name).load()
        sink = source.writeStream.format("noop").trigger(availableNow=True)
        with tempfile.TemporaryDirectory(dir=data) as checkpoint:
            sink.option("checkpointLocation", checkpoint).start().awaitTermination()

    client.create_topic(f"{name}copy")

    def write() -> None:
        frame = topic(spark, name).select("payload")
        frame.write.format("penstock").option("topic", f"{name}copy").mode("append").save()

    for what, took in _compared({"stream read": stream, "topic write": write}).items():
        table.append([what, rows, *_figures(rows, took)])
    while _hot(client, f"{name}copy"):
        time.sleep(0.2)
    compacted: list[int] = []
    once = _measured(lambda: compacted.append(compact(spark, f"{name}copy", 1 << 30).rows))
    if once is not None:
        table.append(["compaction", compacted[0], *_figures(compacted[0], once)])


def _targets(
    rates: dict[tuple[str, str], float], works: list[list[Any]], rows: int
) -> list[Target]:
    targets = [
        Target(
            f"spark: topic, {query}, at least 0.9 of parquet",
            f"{rates[query, 'topic']:.2f}",
            rates[query, "topic"] >= 0.9,
        )
        for query, way in rates
        if way == "topic" and query != "full scan"
    ]
    full = rates["full scan", "format"]
    targets.append(
        Target("spark: format, full scan, at least 0.5 of parquet", f"{full:.2f}", full >= 0.5)
    )
    promise = "spark: compaction, at least 1 M rows per CPU s"
    rate = next((row[5] for row in works if row[0] == "compaction"), None)
    if rate is None:
        return [*targets, Target(promise, "a process ended: not measured", met=False)]
    return [*targets, Target(promise, f"{rate:.2f} M", rate >= 1.0)]


def _figures(rows: int, took: Took) -> list[float]:
    return [took.wall, took.cpu, rows / took.wall / 1e6, rows / max(took.cpu, 0.01) / 1e6]


def _compared(works: dict[str, Callable[[], object]]) -> dict[str, Took]:
    """The median round of each by CPU, in turns and after several that warm up.

    In turns, because the JVM gets faster as it goes: whoever came first would pay for the others.
    Spark's Python daemon does not wait for its workers, so the CPU of one that ends is lost: a
    round in which a process ended is not counted, or the figure would be too good.
    """
    for _ in range(WARM_UPS):
        for work in works.values():
            work()
    found: dict[str, list[Took]] = {way: [] for way in works}
    order = list(works.items())
    for _ in range(ROUNDS_TRIED * ROUNDS):
        # Rotated: whoever always followed the same one would always find the heap it left.
        order = [*order[1:], order[0]]
        for way, work in order:
            if len(found[way]) < ROUNDS and (took := _measured(work)) is not None:
                found[way].append(took)
        if all(len(rounds) == ROUNDS for rounds in found.values()):
            break
    assert all(found.values()), "in every round a process ended: nothing was measured"
    return {
        way: sorted(rounds, key=lambda took: took.cpu)[len(rounds) // 2]
        for way, rounds in found.items()
    }


def _measured(work: Callable[[], object]) -> Took | None:
    """What a piece of work took; None when the CPU of a process was lost."""
    before, begun = _processes(), time.monotonic()
    work()
    wall, after = time.monotonic() - begun, _processes()
    if before.keys() - after.keys():
        return None
    return Took(wall, sum(used - before.get(number, 0.0) for number, used in after.items()))


def _processes() -> dict[int, float]:
    """CPU seconds of every process below this one, and of this one, but not of the broker."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    brokers: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        number, fields = int(path.parent.name), text.rpartition(") ")[2].split()
        children.setdefault(int(fields[1]), []).append(number)
        used[number] = (int(fields[11]) + int(fields[12])) / _TICKS
        if "(penstock)" in text:
            brokers.add(number)
    found: dict[int, float] = {}
    waiting = [os.getpid()]
    while waiting:
        number = waiting.pop()
        if number not in brokers and number in used:
            found[number] = used[number]
            waiting += children.get(number, [])
    return found
