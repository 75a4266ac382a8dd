"""Links rows that another engine wrote to the bucket: checks them, then gives them offsets, once.

    known epoch -> the earlier reply      new: names -> every footer -> partitions -> one link frame

An application that repeats an epoch, after a lost reply or a crash, receives the first reply again,
even if the objects were merged or deleted meanwhile; after a long time, without its offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import arrow_rows, link_subjects
from penstock.formats.bodies import LINK_APPS_MAX, ObjectRef
from penstock.formats.objects import SUFFIX, staged_prefix
from penstock.host.tasks import Tasks
from penstock.log import Ranges
from penstock.model.errors import FormatError, PartitionInvalid, RunInvalid, SignatureRequired
from penstock.model.limits import RUN_BYTES_MAX
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.units import Offset, OffsetRange, PartitionId, PartitionRange
from penstock.objects import ObjectMissing
from penstock.tiers import (
    PARQUET_MAGIC,
    ObjectRowsDamaged,
    TopicTier,
    check_object_age,
    linked_entry,
    read_staged_footer,
    subject_column_index,
)
from penstock.topics.open_topic import OpenTopic

CHECKS_AT_ONCE: Final = 8

SUBJECTS_BYTES_MAX: Final = RUN_BYTES_MAX
"""Limit of the subjects of one link, which are in its frame."""

_RAW: Final = {"subject": pa.string(), "headers": pa.binary(), "payload": pa.binary()}


class LinkItem(NamedTuple):
    """An object without offsets, and the partition that its rows belong to."""

    ref: ObjectRef
    value: PartitionValue | None


class Linked(NamedTuple):
    """Offsets by partition, and whether an earlier call had assigned them."""

    ranges: dict[int, OffsetRange]
    repeated: bool


async def link(opened: OpenTopic, app: str, epoch: int, staged: Sequence[LinkItem]) -> Linked:
    """Assign offsets to staged rows, durable on return.

    Raises RunInvalid or PartitionInvalid if an object is not as expected, SignatureRequired if the
    topic accepts no links, and then nothing has happened; also what the log and the stores raise.
    """
    known = opened.log.links.known(app, epoch)
    if known is not None:
        return Linked(await known, True)
    if opened.signed_only:
        raise SignatureRequired(opened.topic.name.full)
    _check_apps(opened, app)
    if opened.tier is None:
        raise RunInvalid(f"topic {opened.topic.name.full} lives in memory: push to it instead")
    if opened.topic.spec.schema is None and opened.topic.spec.partition_column is not None:
        raise RunInvalid(
            f"topic {opened.topic.name.full} is partitioned by subject: push to it instead"
        )
    _check_names(opened.topic, staged)
    check_object_age([item.ref.key for item in staged], opened.tier.clock.now_us())
    try:
        async with opened.tier.claimed({item.ref.key for item in staged}):
            return Linked(await _link(opened, opened.tier, app, epoch, staged), False)
    except ObjectMissing as error:
        raise RunInvalid(f"object {error.key} is missing, or about to be: write it again") from None


async def _link(
    opened: OpenTopic, tier: TopicTier, app: str, epoch: int, staged: Sequence[LinkItem]
) -> Ranges:
    has_subjects = await _check_objects(opened.topic, tier, staged)
    subjects = await _subjects(opened.topic, tier, staged) if has_subjects else b""
    partitions = await opened.partitions.ensure([item.value for item in staged])
    objects: dict[PartitionId, list[ObjectRef]] = {}
    for partition, item in zip(partitions, staged, strict=True):
        objects.setdefault(partition, []).append(item.ref)
    return await tier.link(app, epoch, objects, subjects)


def _check_apps(opened: OpenTopic, app: str) -> None:
    apps = opened.log.state.transactions
    if app not in apps and len(apps) >= LINK_APPS_MAX:
        raise RunInvalid(
            f"topic {opened.topic.name.full} remembers the links of {len(apps)} applications, the "
            f"limit LINK_APPS_MAX is {LINK_APPS_MAX}: write again as one of them, or in an hour, "
            "when those of batch writes are forgotten; fewer and larger writes need fewer"
        )


def _check_names(topic: Topic, staged: Sequence[LinkItem]) -> None:
    prefix, seen = staged_prefix(topic.name), set[str]()
    for ref, value in staged:
        topic.check_partition(value)
        if not ref.key.startswith(prefix) or not ref.key.endswith(SUFFIX):
            raise RunInvalid(f"object {ref.key[:200]!r} must be named {prefix}...{SUFFIX}")
        if ref.key in seen:
            raise RunInvalid(f"object {ref.key} is there twice")
        seen.add(ref.key)


async def _check_objects(topic: Topic, tier: TopicTier, staged: Sequence[LinkItem]) -> bool:
    """Check all objects; returns whether any has a column of subjects. Raises RunInvalid."""
    slots = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def check(item: LinkItem) -> bool:
        async with slots:
            metadata = await _metadata(tier, item.ref)
        problem = _problem(topic, item, metadata)
        if problem:
            raise RunInvalid(f"object {item.ref.key}: {problem}")
        return topic.spec.schema is None and subject_column_index(metadata) is not None

    tasks = Tasks()
    try:
        return any(await asyncio.gather(*[tasks.start(check(item)) for item in staged]))
    finally:
        await tasks.cancel()


async def _subjects(topic: Topic, tier: TopicTier, staged: Sequence[LinkItem]) -> bytes:
    """The subjects of all rows, as the link's frame stores them; raises RunInvalid."""
    columns: list[pa.BinaryArray] = []
    topic_subject, size = pa.scalar(topic.name.topic.encode()), 0
    for ref, _ in staged:
        span, row = PartitionRange(0, 0, ref.rows), 0
        entry = linked_entry(ref, span)
        while row < ref.rows:
            try:
                _, subjects, next_ = await tier.objects.subjects(entry, span, Offset(row))
                await asyncio.to_thread(arrow_rows.check_subjects, subjects.cast(pa.string()))
            except (FormatError, ObjectRowsDamaged, ObjectMissing, pa.ArrowInvalid) as error:
                raise RunInvalid(f"object {ref.key}: {error}") from None
            size += subjects.nbytes if len(subjects) else (next_ - row) * len(topic_subject.as_py())
            if size > SUBJECTS_BYTES_MAX:
                raise RunInvalid(
                    f"the subjects of a link are more than SUBJECTS_BYTES_MAX, {SUBJECTS_BYTES_MAX}"
                    " bytes: write fewer messages at a time, or without subjects"
                )
            columns.append(subjects if len(subjects) else pa.repeat(topic_subject, next_ - row))
            row = next_
    return await asyncio.to_thread(lambda: link_subjects.encode(pa.concat_arrays(columns)))


async def _metadata(tier: TopicTier, ref: ObjectRef) -> pq.FileMetaData:
    tail = await read_staged_footer(tier.store, ref)
    try:
        await tier.objects.check_footer(tail)
        return await asyncio.to_thread(pq.read_metadata, pa.BufferReader(PARQUET_MAGIC + tail))
    except (OSError, FormatError, pa.ArrowException) as error:
        raise RunInvalid(f"object {ref.key} cannot be read: {error}") from None


def _problem(topic: Topic, item: LinkItem, metadata: pq.FileMetaData) -> str | None:
    """Describes why an object cannot be linked; None if it can."""
    if metadata.num_rows != item.ref.rows:
        return f"it has {metadata.num_rows} rows, not {item.ref.rows}"
    columns = metadata.schema.to_arrow_schema()
    schema = topic.spec.schema
    if schema is None:
        return _raw_problem(columns)
    for name in columns.names:
        if name not in schema.names:
            return f"the topic has no column {name!r}"
    for field in schema:
        if columns.names.count(field.name) != 1:
            return f"column {field.name!r} is missing or there twice"
        column = columns.field(field.name)
        if column.type != field.type:
            return f"column {field.name!r} has type {column.type}, not {field.type}"
        if column.nullable and not field.nullable:
            return f"column {field.name!r} may be null, which the topic does not allow"
    if columns.names != schema.names:
        return "its columns are in another order than the topic's"
    return _value_problem(topic, item.value, metadata)


def _raw_problem(columns: pa.Schema) -> str | None:
    if "payload" not in columns.names:
        return "it has no column payload"
    for field in columns:
        if _RAW.get(field.name) != field.type:
            return f"column {field.name!r} of type {field.type} is none of a raw topic"
    return None


def _value_problem(
    topic: Topic, value: PartitionValue | None, metadata: pq.FileMetaData
) -> str | None:
    """Describes rows of another partition than declared, as column statistics show; else None."""
    if value is None or topic.spec.schema is None or topic.spec.partition_column is None:
        return None
    column = topic.spec.schema.get_field_index(topic.spec.partition_column)
    for index in range(metadata.num_row_groups):
        statistics = metadata.row_group(index).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return f"column {topic.spec.partition_column!r} has no statistics"
        if not _same(statistics.min, value) or not _same(statistics.max, value):
            raise PartitionInvalid(
                f"partition column {topic.spec.partition_column!r} holds other values than {value}"
            )
    return None


def _same(statistic: object, value: PartitionValue) -> bool:
    """Whether two values are equal; statistics may have an unsigned number as a signed one."""
    expected = value.value
    if isinstance(statistic, bool) or not isinstance(statistic, int):
        return statistic == expected
    if not isinstance(expected, int):
        return False
    return (statistic - expected) % (1 << (64 if value.kind.endswith("64") else 32)) == 0
