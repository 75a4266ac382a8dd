"""A Spark session that knows the broker, with the settings that reading topics wants."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.client.exchange import broker_url
from penstock.spark.errors import OptionInvalid, SparkUnavailable
from penstock.spark.source import bound

JAVA_MIN: Final = 17
BROKER: Final = "spark.penstock.broker"
_JVM: Final = (
    "-XX:+UseParallelGC "
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
SETTINGS: Final = {
    "spark.app.name": "penstock",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.extraJavaOptions": _JVM,
    # Rows go from Python workers to the JVM: a tenth less CPU than through TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}

LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Of a session whose parts are all on this machine."""


def session(broker: str | None = None, master: str | None = None, **conf: object) -> SparkSession:
    """The running session, or a new one, in which `format("penstock")` means this broker.

    `master` is Spark's, `local[*]` when left out; `conf` are further settings of Spark, whose names
    begin with `spark.`: `session(**{"spark.ui.enabled": True})`. Raises SparkUnavailable.
    """
    url = broker_url(broker)
    check_java()
    for name in conf:
        if not name.startswith("spark."):
            raise OptionInvalid(f"{name!r} is no setting of Spark: they begin with 'spark.'")
    # Workers must run this very Python: the system's has neither Arrow nor Penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    where = master or "local[*]"
    builder = SparkSession.builder.master(where)
    here = LOOPBACK if where.startswith("local") else {}
    for name, value in {**SETTINGS, **here, **conf, BROKER: url}.items():
        builder = builder.config(name, _text(value))
    made = builder.getOrCreate()
    made.dataSource.register(bound(url, made.sparkContext.defaultParallelism))
    return made


def broker_of(spark: SparkSession) -> str | None:
    """The broker that a session was made for."""
    return spark.conf.get(BROKER, None)


def check_java() -> None:
    """Raises SparkUnavailable unless Java is there and new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = "install it (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java"
        raise SparkUnavailable(f"Spark needs Java {JAVA_MIN} or later and {where}: {advice}")
    told = subprocess.run(  # noqa: S603 - what Spark is about to run itself
        [java, "-version"], capture_output=True, text=True, check=False
    ).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < JAVA_MIN:
        version = found[1] if found else "that does not run"
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_MIN} or later and {java} is Java {version}: {advice}"
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
