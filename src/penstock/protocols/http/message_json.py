"""Partition values and messages as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.formats import json_messages, json_text
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic


def partition_json(value: PartitionValue | None) -> dict[str, object] | None:
    """A partition value in its tagged form, such as {"Int64": 7}."""
    return None if value is None else value.to_json()


def messages_json(topic: Topic, batch: Batch) -> Iterator[bytes]:
    """The messages of a batch as JSON objects in pieces, each object followed by a comma.

    Rows of a typed topic omit the partition column: the reply states its value once.
    """
    content = batch.content
    if isinstance(content, Columns):
        return json_messages.text(batch)
    column = topic.spec.partition_column
    return json_text.text(content if column is None else content.drop_columns([column]))
