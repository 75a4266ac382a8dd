"""The few things that only Spark's JVM can tell or do."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark itself can read and write paths of this scheme."""
    jvm, configuration = _parts(spark)
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Py4JError:
        return False
    return True


class SmallFile:
    """A text in a file, wherever Spark can have one."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm, configuration = _parts(spark)
        self._path = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(configuration)

    def read(self) -> str | None:
        """None when there is no file."""
        if not self._files.exists(self._path):
            return None
        stream = self._files.open(self._path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Under another name first: whoever finds the file finds it whole."""
        aside = self._path.suffix(".new")
        stream = self._files.create(aside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._files.rename(aside, self._path)


def _parts(spark: SparkSession) -> tuple[Any, Any]:
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way
    return jvm, spark._jsc.hadoopConfiguration()  # noqa: SLF001
