"""Objects that another engine made from several of ours: looked at, then counted in their place.

The proposal names what it replaces. It is taken only while all of that still counts and lies side
by side, so that of two who compact the same objects one is refused, and nothing is lost or there
twice. The new object says of itself what it holds; that must be what the others held, without what
was deleted.
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
from penstock.tiers.abandoned_objects import check_age
from penstock.tiers.entries import ObjectEntry, joined, offsets_of, separated
from penstock.tiers.footers import MAGIC, footer
from penstock.tiers.manifest import REMOVED_MAX
from penstock.tiers.tier import TopicTier


class CompactionStale(PenstockError):
    """What was to be replaced does not count any more, or lies apart: plan again."""

    code = "compaction_stale"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; make a new plan")


async def swap(
    tier: TopicTier, keys: Sequence[str], ref: ObjectRef, threads: WorkerThreads
) -> None:
    """Count `ref` in the place of the objects with these keys; asking again is harmless.

    Call it while no upkeep runs. Raises CompactionStale, RunInvalid when the object is not what it
    should be, and what the stores raise.
    """
    await tier.refresh()
    if any(entry.object_id == ref.key for entry in tier.manifest.index):
        return
    if not ref.key.startswith(f"{topic_prefix(tier.topic)}data-"):
        raise RunInvalid(f"object {ref.key[:200]!r} must be named as data of {tier.topic}")
    check_age([ref.key], tier.clock.now_us())
    run = _run(tier, keys)
    tail = await footer(tier.store, ref)
    try:
        await tier.objects.check_footer(tail)
        metadata = await threads.run(pq.read_metadata, pa.BufferReader(MAGIC + tail))
        facts = form.facts_of(metadata)
    except (FormatError, OSError, pa.ArrowException) as error:
        raise RunInvalid(f"object {ref.key} cannot be read: {error}") from None
    problem = _problem(tier, run, facts, metadata)
    if problem:
        raise RunInvalid(f"object {ref.key}: {problem}")
    await tier.replace(run, [_entry(run, ref, facts, metadata, tail)])


def _run(tier: TopicTier, keys: Sequence[str]) -> list[ObjectEntry]:
    """The entries with these keys, which are neighbours."""
    ordered = sorted(tier.manifest.index, key=lambda entry: entry.sequence)
    places = {entry.object_id: place for place, entry in enumerate(ordered)}
    if len(keys) > REMOVED_MAX:
        raise RunInvalid(f"{len(keys)} objects are too many to be replaced at once: {REMOVED_MAX}")
    if gone := [key for key in keys if key not in places]:
        raise CompactionStale(f"object {gone[0]} does not count any more")
    chosen = sorted({places[key] for key in keys})
    if len(chosen) != len(keys) or chosen[-1] - chosen[0] != len(chosen) - 1:
        raise CompactionStale("the objects do not lie side by side")
    run = ordered[chosen[0] : chosen[-1] + 1]
    if separated(run, tier.manifest.head.gaps):
        raise CompactionStale("the messages of a returning disk may come between the objects")
    return run


def _problem(
    tier: TopicTier, run: Sequence[ObjectEntry], facts: ObjectFacts, metadata: pq.FileMetaData
) -> str | None:
    if facts.topic != str(tier.topic):
        return f"it is of topic {facts.topic}"
    if facts.ranges != joined(span for entry in run for span in entry.ranges):
        return "it does not hold the offsets of the objects it replaces"
    frames = (run[0].first_frame, max(entry.next_frame for entry in run))
    if (facts.first_frame, facts.next_frame) != frames:
        return "it does not hold the frames of the objects it replaces"
    if facts.rows != metadata.num_rows:
        return f"it has {metadata.num_rows} rows and says {facts.rows}"
    least, most = _live(tier, run), sum(entry.rows for entry in run)
    if not least <= facts.rows <= most:
        return f"it has {facts.rows} rows where {least} to {most} are due"
    kinds = {entry.schema_crc32c for entry in run if not entry.linked}
    if kinds and kinds != {_kind(facts)}:
        return "its columns are not those of the objects it replaces"
    return None


def _live(tier: TopicTier, run: Sequence[ObjectEntry]) -> int:
    """How many messages of these objects are not deleted."""
    state, count = tier.log.state, 0
    for span in (span for entry in run for span in entry.ranges):
        partition = PartitionId(span.partition)
        first = min(max(span.first, state.start(partition)), span.next)
        deleted = state.bitmap(partition)
        gone = 0 if deleted is None else deleted.range_cardinality(first, span.next)
        count += span.next - first - gone
    return count


def _kind(facts: ObjectFacts) -> int:
    return crc32c(facts.schema) if facts.typed else 0


def _entry(
    run: Sequence[ObjectEntry],
    ref: ObjectRef,
    facts: ObjectFacts,
    metadata: pq.FileMetaData,
    tail: bytes,
) -> ObjectEntry:
    start, end = offsets_of(facts.ranges)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return msgspec.structs.replace(
        run[0],
        object_id=ref.key,
        start_offset=start,
        end_offset=end,
        size=ref.size_bytes,
        etag=ref.etag,
        created_at=max(entry.created_at for entry in run),
        ranges=facts.ranges,
        rows=facts.rows,
        crc32c=ref.crc32c,
        footer_bytes=len(tail),
        footer_crc32c=crc32c(tail),
        first_timestamp=facts.first_timestamp,
        last_timestamp=facts.last_timestamp,
        epoch=max(entry.epoch for entry in run),
        first_frame=facts.first_frame,
        next_frame=facts.next_frame,
        raw_size=sum(group.total_byte_size for group in groups),
        schema_crc32c=_kind(facts),
        linked=False,
    )
