"""Writes in two phases: tasks stage objects, the driver has the owner link them, once a batch.

A link is keyed by an application and a number: the query and its batch, `txnAppId` and
`txnVersion`, or, for a batch write without those, a name of its own, which is remembered for as
long as it may be asked for again. Asking again is harmless, so a commit whose answer was lost is
tried again, here and after a restart. `abort` removes nothing:
Spark calls it also after a commit that came through.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.client import plans
from penstock.formats.api import TopicReply
from penstock.formats.bodies import ONCE
from penstock.formats.plan_api import LinkReply, StagedObject
from penstock.spark import planning, staging
from penstock.spark.errors import WriteRefused
from penstock.spark.options import Options
from penstock.spark.reader import bucket_of
from penstock.spark.reading import patiently
from penstock.spark.staging import Stage

QUERY: Final = "sql.streaming.queryId"
"""Spark's name of a streaming query, kept in its checkpoint."""


@dataclass
class Staged(WriterCommitMessage):
    """What one task laid down."""

    objects: list[StagedObject] = field(default_factory=list)
    query: str | None = None


class _Writing:
    """What both kinds of writes share."""

    def __init__(
        self, options: Options, topic: TopicReply, schema: StructType, overwrite: bool
    ) -> None:
        staging.refuse_unwritable(topic, overwrite)
        staging.check_columns(topic, schema.names)
        self.options = options
        bucket = bucket_of(options, planning.make_plan(options, with_objects=False))
        if bucket is None:
            raise WriteRefused(
                f"topic {topic.name}: Spark cannot reach its bucket, where rows are staged"
            )
        self.stage = Stage(topic, bucket)

    def link(self, app: str, epoch: int, messages: Sequence[Staged | None]) -> LinkReply:
        objects = [item for message in messages if message for item in message.objects]
        topic = self.options.topic
        return patiently(self.options.broker, lambda: plans.link(topic, app, epoch, objects))


class TopicWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(
        self, options: Options, topic: TopicReply, schema: StructType, overwrite: bool
    ) -> None:
        self._writing = _Writing(options, topic, schema, overwrite)
        self._transaction = options.transaction or (f"{ONCE}{uuid.uuid4().hex}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Staged(self._writing.stage.rows(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._writing.link(*self._transaction, _ours(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what was staged and never linked is nobody's."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query."""

    def __init__(
        self, options: Options, topic: TopicReply, schema: StructType, overwrite: bool
    ) -> None:
        if options.transaction is not None:
            raise WriteRefused("a stream is its own transaction; leave out txnAppId, txnVersion")
        self._writing = _Writing(options, topic, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY)
        return Staged(self._writing.stage.rows(iterator), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _ours(messages)
        queries = {message.query for message in staged if message is not None}
        if not any(message and message.objects for message in staged):
            return
        query = next(iter(queries - {None}), None)
        if query is None or len(queries) != 1:
            raise WriteRefused(f"Spark does not tell which query batch {batchId} is of")
        self._writing.link(f"query-{query}", batchId, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what was staged and never linked is nobody's."""


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[Staged | None]:
    return [message if isinstance(message, Staged) else None for message in messages]
