"""The newest message of every subject, or of every value of a column, as a table.

The largest offset of each key is found first and only those rows are read in full, which is several
times cheaper than sorting whole messages. What was deleted does not count; a key whose newest
message is a tombstone of a key-value bucket is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them

from penstock.spark.errors import ColumnsInvalid

TOMBSTONE: Final = r"(?i)\nKV-Operation:\s*(DEL|PURGE)\s*\r?\n"
"""How the header block of a deletion in a key-value bucket looks."""


def latest(messages: DataFrame, key: str | None = None) -> DataFrame:
    """From a topic's messages, the newest of each partition and key; `subject` unless told.

    Columns in and out: those of the topic.
    """
    key = key or "subject"
    if key not in messages.columns:
        known = ", ".join(messages.columns)
        raise ColumnsInvalid(f"there is no column {key!r} to take the newest of; known: {known}")
    newest = messages.groupBy("partition", key).agg(F.max("offset").alias("offset"))
    places = newest.select("partition", "offset")
    found = messages.join(places, ["partition", "offset"], "left_semi").select(*messages.columns)
    if "headers" not in messages.columns:
        return found
    headers = F.decode(F.coalesce("headers", F.lit(b"")), "ISO-8859-1")
    return found.where(~headers.rlike(TOMBSTONE))


def as_lines(frame: DataFrame) -> Iterator[str]:
    """The rows as JSON."""
    for row in frame.select(F.to_json(F.struct("*")).alias("line")).toLocalIterator():
        yield row["line"]
