"""Spark sessions that know a broker, and what only Spark's JVM can tell or do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.client import broker_url
from penstock.spark.errors import OptionInvalid, SparkUnavailable
from penstock.spark.source import bound_source

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
    # Python workers send rows to the JVM; this takes a tenth less CPU than TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}

LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings of a session that runs on this machine only."""


def session(broker: str | None = None, master: str | None = None, **conf: object) -> SparkSession:
    """The running session, or a new one, in which `format("penstock")` uses this broker.

    `master` is the Spark master, by default `local[*]`. `conf` are further Spark settings, whose
    names start with `spark.`: `session(**{"spark.ui.enabled": True})`. Raises SparkUnavailable.
    """
    url = broker_url(broker)
    check_java()
    for name in conf:
        if not name.startswith("spark."):
            raise OptionInvalid(f"{name!r} is no Spark setting: their names start with 'spark.'")
    # Workers must run this Python: the system's Python has neither Arrow nor Penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    spark_master = master or "local[*]"
    builder = SparkSession.builder.master(spark_master)
    local = LOOPBACK if spark_master.startswith("local") else {}
    for name, value in {**SETTINGS, **local, **conf, BROKER: url}.items():
        builder = builder.config(name, _text(value))
    spark = builder.getOrCreate()
    spark.dataSource.register(bound_source(url, spark.sparkContext.defaultParallelism))
    return spark


def broker_of(spark: SparkSession) -> str | None:
    """The broker of a session."""
    return spark.conf.get(BROKER, None)


def check_java() -> None:
    """Raise SparkUnavailable unless a suitable version of Java is installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = "install it (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java"
        raise SparkUnavailable(f"Spark needs Java {JAVA_MIN} or later and {where}: {advice}")
    output = subprocess.run(  # noqa: S603 - Spark runs the same program
        [java, "-version"], capture_output=True, text=True, check=False
    ).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    if match is None or int(match[1]) < JAVA_MIN:
        version = match[1] if match else "that does not run"
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_MIN} or later and {java} is Java {version}: {advice}"
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark itself can read and write paths of this scheme."""
    jvm, configuration = _parts(spark)
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Py4JError:
        return False
    return True


class SmallTextFile:
    """A text file on any file system that Spark can access."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm, configuration = _parts(spark)
        self._path = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(configuration)

    def read(self) -> str | None:
        """The text; None if the file does not exist."""
        if not self._files.exists(self._path):
            return None
        stream = self._files.open(self._path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Replace the text; readers never see a partial file."""
        temporary = self._path.suffix(".new")
        stream = self._files.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._files.rename(temporary, self._path)


def _parts(spark: SparkSession) -> tuple[Any, Any]:
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no public attribute
    return jvm, spark._jsc.hadoopConfiguration()  # noqa: SLF001
