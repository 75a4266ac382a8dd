"""Replaces several objects in the manifest by one that another engine has made from them.

The request names the objects to replace. It is accepted only while all of them are in the manifest
and adjacent: of two engines that compact the same objects one is refused, and no message is lost or
duplicated. The new object states what it contains; that must be the content of the replaced
objects, without deleted messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.formats import objects as form
from penstock.formats.bodies import ObjectRef
from penstock.formats.objects import ObjectFacts, topic_prefix
from penstock.host.threads import WorkerThreads
from penstock.model.errors import FormatError, PenstockError, RunInvalid
from penstock.model.units import PartitionId
from penstock.tiers.external.abandoned_objects import check_object_age
from penstock.tiers.manifest.entries import (
    ObjectEntry,
    are_separated,
    joined_ranges,
    offset_bounds,
)
from penstock.tiers.manifest.manifest import REMOVED_MAX
from penstock.tiers.reading.footers import PARQUET_MAGIC, read_staged_footer
from penstock.tiers.topic_tier import TopicTier


class CompactionStale(PenstockError):
    """An object to replace is no longer in the manifest, or they are not adjacent: plan again."""

    code = "compaction_stale"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; make a new plan")


async def replace_by_compacted(
    tier: TopicTier, keys: Sequence[str], ref: ObjectRef, threads: WorkerThreads
) -> None:
    """Replace the objects with these keys by `ref`; a repeated call changes nothing.

    No upkeep may run. Raises CompactionStale, RunInvalid if the object is not as expected, and what
    the stores raise.
    """
    await tier.refresh()
    if any(entry.object_id == ref.key for entry in tier.manifest.index):
        return
    if not ref.key.startswith(f"{topic_prefix(tier.topic)}data-"):
        raise RunInvalid(f"object {ref.key[:200]!r} must be named as data of {tier.topic}")
    check_object_age([ref.key], tier.clock.now_us())
    replaced = _adjacent_entries(tier, keys)
    footer = await read_staged_footer(tier.store, ref)
    try:
        await tier.objects.check_footer(footer)
        metadata = await threads.run(pq.read_metadata, pa.BufferReader(PARQUET_MAGIC + footer))
        facts = form.facts_of(metadata)
    except (FormatError, OSError, pa.ArrowException) as error:
        raise RunInvalid(f"object {ref.key} cannot be read: {error}") from None
    problem = _problem(tier, replaced, facts, metadata)
    if problem:
        raise RunInvalid(f"object {ref.key}: {problem}")
    await tier.replace(replaced, [_compacted_entry(replaced, ref, facts, metadata, footer)])


def _adjacent_entries(tier: TopicTier, keys: Sequence[str]) -> list[ObjectEntry]:
    """The entries with these keys, in order; raises CompactionStale unless they are adjacent."""
    ordered = tier.manifest.index.ordered()
    positions = {entry.object_id: position for position, entry in enumerate(ordered)}
    if len(keys) > REMOVED_MAX:
        raise RunInvalid(f"{len(keys)} objects are too many to be replaced at once: {REMOVED_MAX}")
    if missing := [key for key in keys if key not in positions]:
        raise CompactionStale(f"object {missing[0]} does not count any more")
    chosen = sorted({positions[key] for key in keys})
    if len(chosen) != len(keys) or chosen[-1] - chosen[0] != len(chosen) - 1:
        raise CompactionStale("the objects do not lie side by side")
    entries = ordered[chosen[0] : chosen[-1] + 1]
    if are_separated(entries, tier.manifest.head.gaps):
        raise CompactionStale("the messages of a returning disk may come between the objects")
    return entries


def _problem(
    tier: TopicTier,
    replaced: Sequence[ObjectEntry],
    facts: ObjectFacts,
    metadata: pq.FileMetaData,
) -> str | None:
    """Describes how an object differs from the objects that it replaces; None if it does not."""
    if facts.topic != str(tier.topic):
        return f"it is of topic {facts.topic}"
    if facts.ranges != joined_ranges(span for entry in replaced for span in entry.ranges):
        return "it does not hold the offsets of the objects it replaces"
    frames = (replaced[0].first_frame, max(entry.next_frame for entry in replaced))
    if (facts.first_frame, facts.next_frame) != frames:
        return "it does not hold the frames of the objects it replaces"
    if facts.rows != metadata.num_rows:
        return f"it has {metadata.num_rows} rows and says {facts.rows}"
    least, most = _live_count(tier, replaced), sum(entry.rows for entry in replaced)
    if not least <= facts.rows <= most:
        return f"it has {facts.rows} rows where {least} to {most} are due"
    schemas = {entry.schema_crc32c for entry in replaced if not entry.linked}
    if schemas and schemas != {_schema_crc32c(facts)}:
        return "its columns are not those of the objects it replaces"
    return None


def _live_count(tier: TopicTier, entries: Sequence[ObjectEntry]) -> int:
    """The number of messages in these objects that are not deleted."""
    state, count = tier.log.state, 0
    for span in (span for entry in entries for span in entry.ranges):
        partition = PartitionId(span.partition)
        first = min(max(span.first, state.start(partition)), span.next)
        bitmap = state.bitmap(partition)
        deleted = 0 if bitmap is None else bitmap.range_cardinality(first, span.next)
        count += span.next - first - deleted
    return count


def _schema_crc32c(facts: ObjectFacts) -> int:
    return crc32c(facts.schema) if facts.typed else 0


def _compacted_entry(
    replaced: Sequence[ObjectEntry],
    ref: ObjectRef,
    facts: ObjectFacts,
    metadata: pq.FileMetaData,
    footer: bytes,
) -> ObjectEntry:
    start, end = offset_bounds(facts.ranges)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return msgspec.structs.replace(
        replaced[0],
        object_id=ref.key,
        start_offset=start,
        end_offset=end,
        size=ref.size_bytes,
        etag=ref.etag,
        created_at=max(entry.created_at for entry in replaced),
        ranges=facts.ranges,
        rows=facts.rows,
        crc32c=ref.crc32c,
        footer_bytes=len(footer),
        footer_crc32c=crc32c(footer),
        first_timestamp=facts.first_timestamp,
        last_timestamp=facts.last_timestamp,
        epoch=max(entry.epoch for entry in replaced),
        first_frame=facts.first_frame,
        next_frame=facts.next_frame,
        raw_size=sum(group.total_byte_size for group in groups),
        schema_crc32c=_schema_crc32c(facts),
        linked=False,
    )
