"""Rows that another engine laid into the bucket get offsets: looked at first, then linked, once.

    known epoch -> its answer      new: names -> every footer -> partitions -> one link frame

The same epoch of an application, asked again after a lost answer or a crash, gets what it got
before, whatever has become of the objects meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.bodies import ObjectRef
from penstock.formats.objects import SUFFIX, staged_prefix
from penstock.model.batch import OffsetRange
from penstock.model.errors import PartitionInvalid, RunInvalid
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.units import Offset, PartitionId
from penstock.objects.interface import ObjectStore
from penstock.tiers.footers import MAGIC, footer
from penstock.tiers.tier import TopicTier
from penstock.topics.topics import OpenTopic

LOOKS_AT_ONCE: Final = 8

_RAW: Final = {"payload": pa.binary(), "headers": pa.binary()}


class Staged(NamedTuple):
    """An object without offsets, and the partition its rows are for."""

    ref: ObjectRef
    value: PartitionValue | None


class Linked(NamedTuple):
    """Offsets by partition, and whether they had been given before."""

    ranges: dict[int, OffsetRange]
    repeated: bool


async def link(opened: OpenTopic, app: str, epoch: int, staged: Sequence[Staged]) -> Linked:
    """Give offsets to staged rows, durable on return.

    Raises RunInvalid or PartitionInvalid when an object is not what it should be, and then nothing
    has happened; and what the log and the stores raise.
    """
    done = opened.log.state.transactions.get(app)
    if done is not None and epoch <= done.epoch:
        ranges = {p: OffsetRange(Offset(a), Offset(b)) for p, (a, b) in done.ranges.items()}
        return Linked(ranges, True)
    if opened.tier is None:
        raise RunInvalid(f"topic {opened.topic.name.full} lives in memory: push to it instead")
    if opened.topic.spec.schema is None and opened.topic.spec.partition_column is not None:
        raise RunInvalid(
            f"topic {opened.topic.name.full} is partitioned by subject, which linked messages do "
            "not have: push to it instead"
        )
    _check_names(opened.topic, staged)
    await _look_at(opened.topic, opened.tier, staged)
    partitions = await opened.partitions.ensure([item.value for item in staged])
    objects: dict[PartitionId, list[ObjectRef]] = {}
    for partition, item in zip(partitions, staged, strict=True):
        objects.setdefault(partition, []).append(item.ref)
    return Linked(await opened.tier.link(app, epoch, objects), False)


def _check_names(topic: Topic, staged: Sequence[Staged]) -> None:
    prefix, seen = staged_prefix(topic.name), set[str]()
    for ref, value in staged:
        topic.check_partition(value)
        if not ref.key.startswith(prefix) or not ref.key.endswith(SUFFIX):
            raise RunInvalid(f"object {ref.key[:200]!r} must be named {prefix}...{SUFFIX}")
        if ref.key in seen:
            raise RunInvalid(f"object {ref.key} is there twice")
        seen.add(ref.key)


async def _look_at(topic: Topic, tier: TopicTier, staged: Sequence[Staged]) -> None:
    slots = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def look(item: Staged) -> None:
        async with slots:
            metadata = await _metadata(tier.store, item.ref)
        problem = _problem(topic, item, metadata)
        if problem:
            raise RunInvalid(f"object {item.ref.key}: {problem}")

    tasks = [asyncio.create_task(look(item)) for item in staged]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _metadata(store: ObjectStore, ref: ObjectRef) -> pq.FileMetaData:
    tail = await footer(store, ref)
    try:
        return await asyncio.to_thread(pq.read_metadata, pa.BufferReader(MAGIC + tail))
    except (OSError, pa.ArrowException) as error:
        raise RunInvalid(f"object {ref.key} cannot be read: {error}") from None


def _problem(topic: Topic, item: Staged, metadata: pq.FileMetaData) -> str | None:
    """What is wrong with an object, None when nothing is."""
    if metadata.num_rows != item.ref.rows:
        return f"it has {metadata.num_rows} rows, not {item.ref.rows}"
    found = metadata.schema.to_arrow_schema()
    own = topic.spec.schema
    if own is None:
        return _raw_problem(found)
    for name in found.names:
        if name not in own.names:
            return f"the topic has no column {name!r}"
    for field in own:
        if found.names.count(field.name) != 1:
            return f"column {field.name!r} is missing or there twice"
        column = found.field(field.name)
        if column.type != field.type:
            return f"column {field.name!r} has type {column.type}, not {field.type}"
        if column.nullable and not field.nullable:
            return f"column {field.name!r} may be null, which the topic does not allow"
    if found.names != own.names:
        return "its columns are in another order than the topic's"
    return _value_problem(topic, item.value, metadata)


def _raw_problem(found: pa.Schema) -> str | None:
    if "payload" not in found.names:
        return "it has no column payload"
    for field in found:
        if _RAW.get(field.name) != field.type:
            return f"column {field.name!r} of type {field.type} is none of a raw topic"
    return None


def _value_problem(
    topic: Topic, value: PartitionValue | None, metadata: pq.FileMetaData
) -> str | None:
    """Whether the rows are of the partition they are said to be of, as their statistics tell."""
    if value is None or topic.spec.schema is None or topic.spec.partition_column is None:
        return None
    column = topic.spec.schema.get_field_index(topic.spec.partition_column)
    for index in range(metadata.num_row_groups):
        told = metadata.row_group(index).column(column).statistics
        if told is None or not told.has_min_max:
            return f"column {topic.spec.partition_column!r} has no statistics"
        if not _same(told.min, value) or not _same(told.max, value):
            raise PartitionInvalid(
                f"partition column {topic.spec.partition_column!r} holds other values than {value}"
            )
    return None


def _same(found: object, value: PartitionValue) -> bool:
    """Unsigned numbers may be told as signed ones of the same bits."""
    if isinstance(found, int) and isinstance(value.value, int) and not isinstance(found, bool):
        return (found - value.value) % (1 << (64 if value.kind.endswith("64") else 32)) == 0
    return found == value.value
