"""Spark for the time of one job: how far it is, told while it runs, and errors in one line."""

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

LOOK_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 3.0
"""Jobs that are done by then are not worth a word."""


class JobFailed(SparkError):
    """Spark could not do the job; the message is the line of its trace that says why."""


@contextmanager
def running(
    broker: str | None,
    master: str | None,
    settings: Mapping[str, str],
    tell: Callable[[str], None],
) -> Iterator[SparkSession]:
    """A session for one job, or the one that runs already; raises JobFailed for Spark's errors."""
    ours = SparkSession.getActiveSession() is None
    spark = session(broker, master, **{"spark.log.level": "ERROR", **settings})
    try:
        with progress(spark, tell):
            yield spark
    except PySparkException as error:
        raise JobFailed(brief(str(error))) from error
    finally:
        if ours:
            spark.stop()


def brief(trace: str) -> str:
    """The line of a trace that says what happened."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("penstock.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]


@contextmanager
def progress(spark: SparkSession, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of running stages about once a second, when something has changed."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, tell, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(spark: SparkSession, tell: Callable[[str], None], done: threading.Event) -> None:
    tracker, begun, last = spark.sparkContext.statusTracker(), time.monotonic(), ""
    while not done.wait(LOOK_SECONDS):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        line = ", ".join(
            f"stage {stage.stageId}: {stage.numCompletedTasks} of {stage.numTasks} tasks"
            for stage in stages
            if stage is not None
        )
        if line and line != last and time.monotonic() - begun > QUIET_SECONDS:
            tell(f"{time.monotonic() - begun:.0f} s, {line}")
            last = line
