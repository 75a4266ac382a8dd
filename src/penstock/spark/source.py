"""The Spark data source `penstock`, which creates readers and writers."""

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

from penstock.client import get_topic
from penstock.formats.api import TopicReply
from penstock.spark import columns, options
from penstock.spark.options import SourceOptions
from penstock.spark.planning import ask_once
from penstock.spark.readers import TopicReader, TopicStreamReader
from penstock.spark.writers import TopicStreamWriter, TopicWriter


class PenstockSource(DataSource):
    """A topic as a table; see docs/spark.md for the options."""

    broker: ClassVar[str | None] = None
    """The default of the option `broker`."""
    cores: ClassVar[int] = 1
    """Number of tasks that Spark runs at a time, if it is known."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return columns.spark_schema(columns.strict_schema(self._topic()))

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TopicStreamReader(self._options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return TopicWriter(self._options(), self._topic(), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return TopicStreamWriter(self._options(), self._topic(), schema, overwrite)

    def _options(self) -> SourceOptions:
        return options.read(self.options, self.broker, self.cores)

    def _topic(self) -> TopicReply:
        options_ = self._options()
        return ask_once(options_.broker, get_topic(options_.topic))


def bound_source(broker: str, cores: int) -> type[PenstockSource]:
    """The data source of a session, with its broker and its number of cores."""
    return type("BoundSource", (PenstockSource,), {"broker": broker, "cores": cores})
