"""A Spark session for one job, with reports of progress and errors of one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.errors import SparkError
from penstock.spark.sessions import session

POLL_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 3.0
"""Jobs that take less time report no progress."""


class JobFailed(SparkError):
    """A Spark job failed; the message is the line of its stack trace with the cause."""

    code = "spark_job_failed"


@contextmanager
def spark_job(
    broker: str | None,
    master: str | None,
    settings: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[SparkSession]:
    """The active session, or one for this job only; raises JobFailed for Spark's errors.

    `report` receives a line of progress about once a second.
    """
    ours = SparkSession.getActiveSession() is None
    spark = session(broker, master, **{"spark.log.level": "ERROR", **settings})
    try:
        with progress(spark, report):
            yield spark
    except PySparkException as error:
        raise JobFailed(cause(str(error))) from error
    finally:
        if ours:
            spark.stop()


def cause(trace: str) -> str:
    """The line of a stack trace with the cause."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("penstock.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]


@contextmanager
def progress(spark: SparkSession, report: Callable[[str], None]) -> Iterator[None]:
    """Report running stages about once a second, if they have changed."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, report, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(spark: SparkSession, report: Callable[[str], None], done: threading.Event) -> None:
    tracker, begun, last = spark.sparkContext.statusTracker(), time.monotonic(), ""
    while not done.wait(POLL_SECONDS):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        line = ", ".join(
            f"stage {stage.stageId}: {stage.numCompletedTasks} of {stage.numTasks} tasks"
            for stage in stages
            if stage is not None
        )
        if line and line != last and time.monotonic() - begun > QUIET_SECONDS:
            report(f"{time.monotonic() - begun:.0f} s, {line}")
            last = line
