"""Topics as tables of Spark: `session`, `topic`, `stream`, and `format("penstock")`."""

from penstock.spark.sessions import session
from penstock.spark.source import PenstockSource
from penstock.spark.tables import stream, topic

__all__ = ["PenstockSource", "session", "stream", "topic"]
