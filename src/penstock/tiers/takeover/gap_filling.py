"""Fills the gaps of takeovers with objects that returning brokers propose.

A proposal is a set of records in the metadata (overtaken_logs.py): objects made from the WAL of a
former owner, each with its deleted offsets, and a last record that completes the proposal. The
owner fills a gap while it opens the topic, before anybody reads or writes:

    verify objects -> enter them into the manifest -> record the returned offsets in the log
                   -> close the gap in the manifest -> delete the proposal

Offsets of a gap are never assigned again, so the messages return to their offsets. After a crash,
the next opening repeats all steps: the proposal remains until the gap is closed. Messages that were
purged since the takeover do not return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog
from pyroaring import BitMap64

from penstock.metadata import Compare, DeleteKeys, Metadata, MetadataKeys, read_all
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.units import PartitionId, PartitionRange
from penstock.objects import ObjectMissing
from penstock.tiers.manifest.entries import (
    GAP_SEQUENCES,
    GAP_STARTS_MAX,
    Gap,
    ObjectEntry,
    ReturnedObject,
    decode_returned_log,
    decode_returned_object,
)
from penstock.tiers.manifest.manifest import REMOVED_MAX, Deposed
from penstock.tiers.reading.object_reader import ObjectRowsDamaged
from penstock.tiers.topic_tier import TopicTier
from penstock.tiers.upload.upload_sessions import is_intact

RANGES_MAX: Final = 5000
"""Ranges in the entries that one change of the manifest adds, unless one entry has more."""

_events = structlog.get_logger(__name__)


class ProposalInvalid(PenstockError):
    """The objects that a returning broker proposed do not fit into the gap."""

    code = "proposal_invalid"


async def fill_gaps(
    tier: TopicTier, metadata: Metadata, keys: MetadataKeys, guard: Compare
) -> None:
    """Fill every gap of the topic that has a complete proposal.

    A proposal with unreadable objects is refused: its records are deleted, and the returning broker
    makes it again. Raises what the stores raise; then the topic must not be served, since its
    manifest may contain objects whose offsets are not readable yet.
    """
    gaps = tier.manifest.head.gaps
    proposals = await read_proposals(metadata, keys, tier.topic) if gaps else {}
    for gap in [gap for gap in gaps if gap.lineage in proposals]:
        try:
            returned = await _verify(tier, gap, proposals[gap.lineage])
        except (ProposalInvalid, ObjectMissing, ObjectRowsDamaged) as error:
            _events.error("returned_log_refused", topic=str(tier.topic), reason=str(error))
        else:
            await _fill(tier, gap, returned)
        records = DeleteKeys(keys.returned_log(tier.topic, gap.lineage), prefix=True)
        if not (await metadata.transaction([guard], [records])).succeeded:
            raise Deposed(tier.topic)


async def read_proposals(
    metadata: Metadata, keys: MetadataKeys, topic: TopicName
) -> dict[str, list[ReturnedObject]]:
    """The objects of complete proposals, in order, by the lineage of their WAL."""
    objects: dict[str, list[ReturnedObject]] = {}
    counts: dict[str, int] = {}
    prefix = keys.returned(topic)
    for record in await read_all(metadata, prefix):
        lineage = record.key.removeprefix(prefix).partition("/")[0]
        if record.key == keys.returned_complete(topic, lineage):
            counts[lineage] = decode_returned_log(record.value).objects
        else:
            objects.setdefault(lineage, []).append(decode_returned_object(record.value))
    completed = {lineage: objects.get(lineage, []) for lineage in counts}
    return {lineage: items for lineage, items in completed.items() if len(items) == counts[lineage]}


async def _verify(
    tier: TopicTier, gap: Gap, proposal: Sequence[ReturnedObject]
) -> list[ReturnedObject]:
    """The objects with their manifest entries, without objects that other entries name.

    Raises ProposalInvalid, ObjectMissing and ObjectRowsDamaged.
    """
    if len(proposal) > GAP_SEQUENCES:
        raise ProposalInvalid(f"{len(proposal)} objects exceed GAP_SEQUENCES, {GAP_SEQUENCES}")
    sequences = {entry.object_id: entry.sequence for entry in tier.manifest.index}
    ends = _ends_before(tier, gap)
    verified: list[ReturnedObject] = []
    for number, returned in enumerate(proposal):
        entry = msgspec.structs.replace(
            returned.entry,
            sequence=gap.sequence + number,
            epoch=tier.epoch,
            first_frame=gap.frame,
            next_frame=gap.frame,
        )
        for span in entry.ranges:
            if not ends.get(span.partition, 0) <= span.first < span.next <= gap.next:
                raise ProposalInvalid(f"object {entry.object_id} is not in the gap: {span}")
        if sequences.get(entry.object_id, entry.sequence) != entry.sequence:
            continue  # An application linked it again after the takeover.
        if entry.linked:
            entry = await tier.objects.inspect_linked(entry)
        elif not await is_intact(tier.store, entry):
            raise ObjectRowsDamaged.of_entry(entry, "it reads back wrong")
        verified.append(ReturnedObject(entry, returned.deleted))
    return verified


def _ends_before(tier: TopicTier, gap: Gap) -> dict[int, int]:
    """The first offset of the gap in each partition that had objects at the takeover."""
    ends: dict[int, int] = {}
    for entry in tier.manifest.index:
        if entry.sequence < gap.sequence:
            for span in entry.ranges:
                ends[span.partition] = max(span.next, ends.get(span.partition, 0))
    return ends


async def _fill(tier: TopicTier, gap: Gap, returned: Sequence[ReturnedObject]) -> None:
    live = _live_offsets(returned)
    unpurged = _without_purged(tier, gap, live)
    known = {entry.sequence for entry in tier.manifest.index}
    for batch in _batches([item.entry for item in returned if item.entry.sequence not in known]):
        await tier.commit(batch)
    for partition, offsets in unpurged.items():
        await tier.log.restore(PartitionId(partition), offsets)
    await tier.commit(gaps=_remaining_gaps(tier, gap, live))
    _events.info(
        "gap_filled",
        topic=str(tier.topic),
        lineage=gap.lineage,
        objects=len(returned),
        messages=sum(map(len, unpurged.values())),
    )


def _batches(entries: Sequence[ObjectEntry]) -> list[list[ObjectEntry]]:
    """Divide entries into lists that one change of the manifest can add."""
    batches: list[list[ObjectEntry]] = []
    ranges = RANGES_MAX
    for entry in entries:
        ranges += len(entry.ranges)
        if ranges > RANGES_MAX or len(batches[-1]) == REMOVED_MAX:
            batches.append([])
            ranges = len(entry.ranges)
        batches[-1].append(entry)
    return batches


def _live_offsets(returned: Sequence[ReturnedObject]) -> dict[int, BitMap64]:
    """The offsets, by partition, that have messages in the objects."""
    live: dict[int, BitMap64] = {}
    for item in returned:
        for span in item.entry.ranges:
            offsets = _live(span, item.deleted.get(span.partition))
            live[span.partition] = live.get(span.partition, BitMap64()) | offsets
    return {partition: offsets for partition, offsets in live.items() if offsets}


def _without_purged(tier: TopicTier, gap: Gap, live: Mapping[int, BitMap64]) -> dict[int, BitMap64]:
    """The offsets without those that were purged since the takeover.

    A partition that a successor did not know starts where the successor took over: at the end of
    this gap, or of a later gap after several takeovers. That is not a purge.
    """
    ends, unpurged = _ends_before(tier, gap), dict[int, BitMap64]()
    later = [other for other in tier.manifest.head.gaps if other.sequence >= gap.sequence]
    for partition, offsets in live.items():
        start = tier.log.start_offset(PartitionId(partition))
        remaining = BitMap64(offsets)
        skipped = start in gap.starts or any(
            start == other.next and not _had_partition(other, partition) for other in later
        )
        if partition in ends or not skipped:
            remaining.remove_range(0, start)
        if remaining:
            unpurged[partition] = remaining
    return unpurged


def _had_partition(gap: Gap, partition: int) -> bool:
    """Whether the partition was in the manifest when the gap was recorded."""
    return bool(gap.known) and partition in BitMap64.deserialize(gap.known)


def _remaining_gaps(tier: TopicTier, gap: Gap, live: Mapping[int, BitMap64]) -> list[Gap]:
    """The open gaps once this one is closed.

    Earlier gaps record where this takeover, and the messages returned to it, let partitions start.
    """
    ends = _ends_before(tier, gap)
    firsts = {offsets.min() for partition, offsets in live.items() if partition not in ends}
    starts = {gap.next, *gap.starts, *firsts}
    return [
        msgspec.structs.replace(other, starts=sorted({*other.starts, *starts})[:GAP_STARTS_MAX])
        if other.sequence < gap.sequence
        else other
        for other in tier.manifest.head.gaps
        if other.lineage != gap.lineage
    ]


def _live(span: PartitionRange, deleted: bytes | None) -> BitMap64:
    offsets = BitMap64()
    offsets.add_range(span.first, span.next)
    return offsets if deleted is None else offsets - BitMap64.deserialize(deleted)
