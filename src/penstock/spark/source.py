"""`format("penstock")`: what Spark asks of a data source, answered by readers and writers."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from penstock.client import calls
from penstock.formats.api import TopicReply
from penstock.spark import columns, options
from penstock.spark.options import Options
from penstock.spark.reader import TopicReader
from penstock.spark.reading import promptly
from penstock.spark.streaming import TopicStreamReader
from penstock.spark.writer import TopicStreamWriter, TopicWriter


class PenstockSource(DataSource):
    """A topic as a table; see docs/spark.md for the options."""

    broker: ClassVar[str | None] = None
    """Which broker, unless an option says so."""
    cores: ClassVar[int] = 1
    """How many tasks Spark runs at a time, where it is known."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return columns.spark_schema(columns.strict_schema(self._topic()))

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(self._read(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TopicStreamReader(self._read(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return TopicWriter(self._read(), self._topic(), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return TopicStreamWriter(self._read(), self._topic(), schema, overwrite)

    def _read(self) -> Options:
        return options.read(self.options, self.broker, self.cores)

    def _topic(self) -> TopicReply:
        told = self._read()
        return promptly(told.broker, calls.get_topic(told.topic))


def bound(broker: str, cores: int) -> type[PenstockSource]:
    """The data source of a session: with a broker of its own, and work for all its cores."""
    return type("BoundSource", (PenstockSource,), {"broker": broker, "cores": cores})
