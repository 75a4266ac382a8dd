"""Pushes rows into topics: checks them, finds their partition, appends, waits until they are
durable.

A push to one partition gets one range of offsets without a gap: a large one is appended as several
frames in one turn of the event loop. Large JSON is parsed in a child process, so that the event
loop is not blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.formats import arrow_rows, arrow_stream, batches, json_messages, json_rows
from penstock.formats.json_rows import Fixed
from penstock.host.child import Child
from penstock.host.threads import WorkerThreads
from penstock.log import LogSettings
from penstock.model.columns import Columns
from penstock.model.errors import PartitionInvalid, PenstockError
from penstock.model.limits import RUN_MESSAGES_MAX
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue, of_plain
from penstock.model.resources import Topic
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.subjects import valid_subject
from penstock.model.units import OffsetRange
from penstock.topics.open_topic import OpenTopic
from penstock.topics.topics import Topics

CHILD_BYTES_MIN: Final = 64 << 10
"""JSON from this size on is parsed in the child process: it would block the loop for
milliseconds.
"""

THREADS: Final = 2
THREAD_BYTES_MIN: Final = 2 << 20
DIVIDING_BYTES_MIN: Final = 64 << 10
"""An Arrow stream from this size on is checked, or divided, in a thread: nearly all of that
releases the GIL. Checking a mebibyte takes 0.2 ms, less than handing it over costs.
"""


@dataclass(slots=True)
class PushItem:
    """Checked rows of one partition of one topic, ready to be appended."""

    opened: OpenTopic
    value: PartitionValue | None
    run: Run | ColumnRun
    origin: Origin = Origin.CLIENT


class Pusher:
    """Pushes into the topics that this broker owns."""

    def __init__(self, topics: Topics, settings: LogSettings) -> None:
        self._topics, self._settings = topics, settings
        self._child = Child()
        self._threads = WorkerThreads(THREADS, "push")

    async def close(self) -> None:
        """End the child process and the threads."""
        await self._child.close()
        await self._threads.close()

    async def from_json(
        self, name: TopicName, value: PartitionValue | None, data: bytes
    ) -> PushItem:
        """Parse a JSON list of rows, or of messages for a raw topic.

        Raises what `Topics.find` raises, PartitionInvalid, and FormatError if the rows do not fit.
        """
        opened = await self._topics.find(name)
        topic, schema = opened.topic, opened.topic.spec.schema
        topic.check_partition(value)
        large = len(data) >= CHILD_BYTES_MIN
        if schema is not None:
            arguments = schema, data, _fixed(topic, value)
            call = self._child.call(json_rows.rows, *arguments) if large else None
            content = json_rows.rows(*arguments) if call is None else await call
            return PushItem(opened, value, ColumnRun(content))
        messages = data, _subject(topic, value), value is not None
        if large:
            columns = Columns(*await self._child.call(json_messages.columns, *messages))
            return PushItem(opened, value, ColumnRun(columns))
        subjects, payloads, headers = json_messages.messages(*messages)
        return PushItem(opened, value, Run(subjects, payloads, headers))

    async def from_arrow(
        self, name: TopicName, value: PartitionValue | None, data: bytes | memoryview
    ) -> list[PushItem]:
        """Check an Arrow stream; returns no items if it has no rows.

        Without a value, the rows of a partitioned topic are divided by its column. Raises what
        `from_json` raises.
        """
        opened = await self._topics.find(name)
        topic = opened.topic
        divides = topic.spec.partition_column is not None and value is None
        if not divides:
            topic.check_partition(value)
        if len(data) < (DIVIDING_BYTES_MIN if divides else THREAD_BYTES_MIN):
            divided = _divided(topic, value, data)
        else:
            divided = await self._threads.run(_divided, topic, value, data)
        return [PushItem(opened, row_value, run) for row_value, run in divided]

    async def push(self, items: Sequence[PushItem]) -> list[OffsetRange | PenstockError]:
        """Append each item to its partition; returns the offsets of each, or why it has none.

        An item's offsets are contiguous, and as durable as the topic promises.
        """
        topics = {item.opened.topic.name: item.opened for item in items}
        if len(topics) == 1:
            return await self._push(items)
        groups = [[item for item in items if item.opened.topic.name == name] for name in topics]
        answers = await asyncio.gather(*map(self._push, groups))
        by_topic = dict(zip(topics, map(iter, answers), strict=True))
        return [next(by_topic[item.opened.topic.name]) for item in items]

    async def _push(self, items: Sequence[PushItem]) -> list[OffsetRange | PenstockError]:
        """Append the items of one topic; returns the offsets of each, or why it has none."""
        opened = items[0].opened
        try:
            partitions = await opened.partitions.ensure([item.value for item in items])
        except PenstockError as error:
            return [error] * len(items)
        for item, partition in zip(items, partitions, strict=True):
            item.run.partition = partition
        if len(items) == 1:
            return [await self._appended(items[0])]
        return await asyncio.gather(*map(self._appended, items))

    async def _appended(self, item: PushItem) -> OffsetRange | PenstockError:
        partition = item.opened.partition(item.run.partition)
        try:
            return await partition.publish(*self._pieces(item.run), origin=item.origin)
        except PenstockError as error:
            return error

    def _pieces(self, run: Run | ColumnRun) -> Iterator[Run | ColumnRun]:
        """Split a run into one per frame, unless the queue could not take all of them at once."""
        settings = self._settings
        size = 0 if isinstance(run, Run) else run.size_bytes
        whole = size <= settings.frame_bytes_max and run.count <= RUN_MESSAGES_MAX
        if isinstance(run, Run) or whole or size > settings.pending_bytes_max:
            yield run
            return
        count = run.count
        most = max(1, min(RUN_MESSAGES_MAX, count * settings.frame_bytes_max // max(size, 1)))
        for start in range(0, count, most):
            yield ColumnRun(run.content.slice(start, min(most, count - start)), run.partition)


def _divided(
    topic: Topic, value: PartitionValue | None, data: bytes | memoryview
) -> list[tuple[PartitionValue | None, ColumnRun]]:
    """The rows of a stream, by partition."""
    table = arrow_stream.read(data)
    if not table.num_rows:
        return []
    content, column = _fitted(topic, value, table), topic.spec.partition_column
    if column is None or value is not None:
        return [(value, _with_encoded_body(content, table, data))]
    type_ = topic.spec.partition_type
    keys = content.subjects() if isinstance(content, Columns) else content.column(column)
    parts = arrow_rows.divided(content, keys.cast(type_))
    return [(of_plain(type_, plain), ColumnRun(part)) for plain, part in parts]


def _with_encoded_body(
    content: Columns | pa.RecordBatch, table: pa.Table, data: bytes | memoryview
) -> ColumnRun:
    """The rows of a stream, with the bytes of the stream if they can be stored unchanged."""
    run = ColumnRun(content)
    if isinstance(content, pa.RecordBatch) and table.column(0).num_chunks == 1:
        run.encoded = batches.body_over_stream(data, table.schema, content)
    return run


def _fitted(
    topic: Topic, value: PartitionValue | None, table: pa.Table
) -> Columns | pa.RecordBatch:
    schema = topic.spec.schema
    if schema is None:
        return arrow_rows.raw(table, _subject(topic, value), value is not None)
    return arrow_rows.typed(table, schema, _fixed(topic, value))


def _fixed(topic: Topic, value: PartitionValue | None) -> Fixed | None:
    column = topic.spec.partition_column
    return None if value is None or column is None else Fixed(column, value.value)


def _subject(topic: Topic, value: PartitionValue | None) -> str:
    """The subject of messages that have none: the partition value, else the topic's id."""
    if value is None:
        return topic.name.topic
    subject = str(value.value)
    if not valid_subject(subject.encode()):
        raise PartitionInvalid(f"partition value {subject[:200]!r} is not a subject")
    return subject
