"""Topics read and written by Spark, compared with Spark's Parquet reader on the same files.

Warm runs, the mean of the quieter half of several. CPU seconds are those of the JVM and its Python
workers together, which is the figure to compare on a machine that is not idle.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them

from bench.report import Report, Table, Target
from penstock.client import SyncClient, get_plan
from penstock.model import names
from penstock.spark import session, topic
from penstock.spark.pipelines import compact_topic
from tests.integration.process import FREE_PORT, Broker

RUNS_MIN: Final = 3
RUNS_MAX: Final = 30
RUNS_TRIED: Final = 2
"""Factor of attempted runs, because some of them cannot be counted."""
COMPACTIONS: Final = 5
PUSH_ROWS: Final = 100_000
_TICKS: Final = os.sysconf("SC_CLK_TCK")
WAIT_SECONDS: Final = 120


class Took(NamedTuple):
    """The figures of a run."""

    wall: float
    cpu: float


class Ratio(NamedTuple):
    """Speed relative to Spark's own reader."""

    wall: float
    cpu: float


class Effort(NamedTuple):
    """Number of runs of a piece of work."""

    warm_ups: int
    seconds: float
    """Approximate total seconds."""


FIRST: Final = Effort(5, 4.0)
LATER: Final = Effort(1, 4.0)
"""Number of runs with more messages, when the JVM is warm."""


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
            name, effort = f"bench{rows}", FIRST if rows == sizes[0] else LATER
            _fill(client, name, rows)
            ratios = _reads(spark, name, rows, effort, reads)
            _works(spark, client, name, rows, effort, data, works)
            targets += _targets(ratios, works) if rows == sizes[0] else []
            targets += _scan_targets(rows, ratios["full scan", "format"])
    columns = ["what", "messages", "wall s", "CPU s", "M/s", "M per CPU s"]
    compared = [*columns, "of parquet (wall)", "of parquet (CPU)"]
    tables = [
        Table("Spark: cold reads", compared, reads),
        Table("Spark: streams, writes, compaction", columns, works),
    ]
    if len(sizes) > 1:
        tables.append(_growth(sizes[0], sizes[-1], [*reads, *works]))
    return Report(tables, targets)


def _growth(few: int, many: int, figures: list[list[Any]]) -> Table:
    """Growth of the CPU time with more messages."""
    first = {row[0]: row[3] for row in figures if row[1] == few}
    last = {row[0]: row[3] for row in figures if row[1] == many}
    columns = ["what", f"CPU s, {few:,}", f"CPU s, {many:,}", "times"]
    rows = [
        [what, cpu, last[what], last[what] / cpu] for what, cpu in first.items() if what in last
    ]
    return Table(f"Spark: {many // few} times as many messages", columns, rows)


def _fill(client: SyncClient, name: str, rows: int) -> None:
    """Create a topic with messages of about 100 bytes, all of them in objects."""
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
    plan = client.run(get_plan(names.topic(name), with_objects=False))
    return any(item.hot_offset < item.next_offset for item in plan.partitions)


def _reads(
    spark: SparkSession, name: str, rows: int, effort: Effort, table: list[list[Any]]
) -> dict[tuple[str, str], Ratio]:
    """Run each query with each reader and compare them with Spark's own."""
    scanned = topic(spark, name)
    ways: dict[str, DataFrame] = {
        # The files that `topic` scans: the broker may have merged objects since an earlier plan.
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
        took = _compared({way: _fresh(shape, frame) for way, frame in ways.items()}, effort)
        for way, typical in took.items():
            own = took["parquet"]
            ratios[query, way] = Ratio(own.wall / typical.wall, own.cpu / typical.cpu)
            figures = _figures(rows, typical)
            table.append([f"{query}, {way}", rows, *figures, *ratios[query, way]])
    return ratios


def _fresh(shape: Callable[[DataFrame], DataFrame], frame: DataFrame) -> Callable[[], object]:
    """Build the query for each run: a query that has run keeps the results of its shuffles."""
    return lambda: shape(frame).collect()


def _works(
    spark: SparkSession,
    client: SyncClient,
    name: str,
    rows: int,
    effort: Effort,
    data: Path,
    table: list[list[Any]],
) -> None:
    def stream() -> None:
        source = spark.readStream.format("penstock").option("topic", name).load()
        sink = source.writeStream.format("noop").trigger(availableNow=True)
        with tempfile.TemporaryDirectory(dir=data) as checkpoint:
            sink.option("checkpointLocation", checkpoint).start().awaitTermination()

    def write(target: str = f"{name}copy") -> None:
        frame = topic(spark, name).select("payload")
        frame.write.format("penstock").option("topic", target).mode("append").save()

    client.create_topic(f"{name}copy")
    for what, took in _compared({"stream read": stream, "topic write": write}, effort).items():
        table.append([what, rows, *_figures(rows, took)])
    compactions: list[Took] = []
    for number in range(COMPACTIONS):
        target = f"{name}small{number}"
        client.create_topic(target)
        write(target)
        while _hot(client, target):
            time.sleep(0.2)
        once = _measured(partial(compact_topic, spark, target))
        # The first run warms up.
        compactions += [once] if number and once else []
    if compactions:
        table.append(["compaction", rows, *_figures(rows, _quiet(compactions))])


def _targets(ratios: dict[tuple[str, str], Ratio], works: list[list[Any]]) -> list[Target]:
    targets = [
        Target(
            f"spark: topic, {query}, at least 0.9 of parquet",
            f"{ratios[query, 'topic'].cpu:.2f}",
            ratios[query, "topic"].cpu >= 0.9,
        )
        for query, way in ratios
        if way == "topic" and query != "full scan"
    ]
    promise = "spark: compaction, at least 1 M rows per CPU s"
    rate = next((row[5] for row in works if row[0] == "compaction"), None)
    if rate is None:
        return [*targets, Target(promise, "a process ended: not measured", met=False)]
    return [*targets, Target(promise, f"{rate:.2f} M", rate >= 1.0)]


def _scan_targets(rows: int, full: Ratio) -> list[Target]:
    promise = f"spark: format, full scan of {rows:,}, at least 0.5 of parquet"
    return [
        Target(f"{promise} by wall", f"{full.wall:.2f}", full.wall >= 0.5),
        Target(f"{promise} by CPU", f"{full.cpu:.2f}", full.cpu >= 0.5),
    ]


def _figures(rows: int, took: Took) -> list[float]:
    return [took.wall, took.cpu, rows / took.wall / 1e6, rows / max(took.cpu, 0.01) / 1e6]


def _compared(works: dict[str, Callable[[], object]], effort: Effort) -> dict[str, Took]:
    """The cost of each: the mean of the faster half of its runs, after some to warm up.

    Runs alternate, because the JVM gets faster over time and the machine has other work. Only half
    of them count, because the JVM compiles and collects garbage during some of them. Spark's Python
    daemon does not wait for its workers, which loses the CPU time of a worker that ends: runs in
    which a process ended do not count.
    """
    walls = {way: _warmed(work, effort.warm_ups) for way, work in works.items()}
    runs = {way: _runs(effort, wall) for way, wall in walls.items()}
    found: dict[str, list[Took]] = {way: [] for way in works}
    order = list(works.items())
    for _ in range(RUNS_TRIED * max(runs.values())):
        # Rotated, so that none always runs after the same other one and on the heap it left.
        order = [*order[1:], order[0]]
        for way, work in order:
            if len(found[way]) < runs[way] and (took := _measured(work)):
                found[way].append(took)
    assert all(found.values()), "in every run a process ended: nothing was measured"
    return {way: _quiet(took) for way, took in found.items()}


def _warmed(work: Callable[[], object], times: int) -> float:
    """Approximate seconds of a warm run."""
    begun = time.monotonic()
    for _ in range(times):
        begun = time.monotonic()
        work()
    return time.monotonic() - begun


def _runs(effort: Effort, wall: float) -> int:
    return min(max(RUNS_MIN, round(effort.seconds / wall)), RUNS_MAX)


def _quiet(took: list[Took]) -> Took:
    half = sorted(took, key=lambda one: one.cpu)[: (len(took) + 1) // 2]
    return Took(sum(one.wall for one in half) / len(half), sum(one.cpu for one in half) / len(half))


def _measured(work: Callable[[], object]) -> Took | None:
    """The cost of a piece of work; None if the CPU time of a process was lost."""
    before, begun = _processes(), time.monotonic()
    work()
    wall, after = time.monotonic() - begun, _processes()
    if before.keys() - after.keys():
        return None
    return Took(wall, sum(used - before.get(number, 0.0) for number, used in after.items()))


def _processes() -> dict[int, float]:
    """CPU seconds of this process and its descendants, except the broker."""
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
