"""The newest message of every subject, or of every value of a column.

A first pass finds the largest offset of each key, and only these rows are read in full, which is
several times cheaper than sorting messages. Deleted messages are ignored, and so is a key whose
newest message is a tombstone of a key-value bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names them

from penstock.spark.errors import ColumnsInvalid

TOMBSTONE: Final = r"(?i)\nKV-Operation:\s*(DEL|PURGE)\s*\r?\n"
"""Matches the header block of a deletion in a key-value bucket."""


def latest_messages(messages: DataFrame, key: str | None = None) -> DataFrame:
    """The newest message of each partition and key; the default key is `subject`.

    The columns are those of `messages`. Raises ColumnsInvalid for an unknown key.
    """
    key = key or "subject"
    if key not in messages.columns:
        known = ", ".join(messages.columns)
        raise ColumnsInvalid(f"there is no key column {key!r}; known: {known}")
    newest = messages.groupBy("partition", key).agg(F.max("offset").alias("offset"))
    places = newest.select("partition", "offset")
    rows = messages.join(places, ["partition", "offset"], "left_semi").select(*messages.columns)
    if "headers" not in messages.columns:
        return rows
    headers = F.decode(F.coalesce("headers", F.lit(b"")), "ISO-8859-1")
    return rows.where(~headers.rlike(TOMBSTONE))


def json_lines(frame: DataFrame) -> Iterator[str]:
    """Each row as JSON."""
    for row in frame.select(F.to_json(F.struct("*")).alias("line")).toLocalIterator():
        yield row["line"]
