"""Topics as tables of Spark: `session`, `topic`, `stream`, and `format("penstock")`."""

from penstock.spark.sessions import session as session
from penstock.spark.start import stream as stream
from penstock.spark.tables import topic as topic

__all__ = ["session", "stream", "topic"]
