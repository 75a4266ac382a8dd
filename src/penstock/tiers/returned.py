"""Fill the gaps that takeovers left, with objects that returning brokers propose.

A proposal is a set of records in the metadata (see overtaken.py): objects made from the WAL of a
former owner, each with the offsets it has messages for, and a last record that completes it. The
owner fills a gap while it opens the topic, before anybody reads or writes:

    verify objects -> enter them into the manifest -> record the returned offsets in the log
                   -> close the gap in the manifest -> remove the proposal

Offsets of a gap were never given out again, so the messages come back where they were. A crash at
any step is redone at the next opening: until the gap is closed, the proposal stays. What was purged
since the takeover does not come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog
from pyroaring import BitMap64

from penstock.metadata import Compare, DeleteKeys, Metadata, MetadataKeys
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.units import PartitionId, PartitionRange
from penstock.objects import ObjectMissing
from penstock.tiers import entries as forms
from penstock.tiers.entries import GAP_SEQUENCES, GAP_STARTS_MAX, Gap, ObjectEntry, ReturnedObject
from penstock.tiers.manifest import REMOVED_MAX, Deposed
from penstock.tiers.object_reader import ObjectDamaged
from penstock.tiers.sessions import is_whole
from penstock.tiers.stored import everything
from penstock.tiers.tier import TopicTier

RANGES_MAX: Final = 5000
"""Ranges of the entries that one change of the manifest adds, unless one entry has more."""

_events = structlog.get_logger(__name__)


class ProposalInvalid(PenstockError):
    """What a returning broker proposed for a gap is not what the gap misses."""

    code = "proposal_invalid"


async def fill_gaps(
    tier: TopicTier, metadata: Metadata, keys: MetadataKeys, guard: Compare
) -> None:
    """Fill every gap of the topic for which there is a complete proposal.

    A proposal whose objects cannot be read is refused: its records are removed, and the returning
    broker makes it again. Raises what the stores raise; the topic must not be served then, since
    objects may have been entered whose offsets are not readable yet.
    """
    gaps = tier.manifest.head.gaps
    proposals = await read_proposals(metadata, keys, tier.topic) if gaps else {}
    for gap in [gap for gap in gaps if gap.lineage in proposals]:
        try:
            parts = await _verified(tier, gap, proposals[gap.lineage])
        except (ProposalInvalid, ObjectMissing, ObjectDamaged) as error:
            _events.error("returned_log_refused", topic=str(tier.topic), reason=str(error))
        else:
            await _fill(tier, gap, parts)
        records = DeleteKeys(keys.returned_log(tier.topic, gap.lineage), prefix=True)
        if not (await metadata.transaction([guard], [records])).succeeded:
            raise Deposed(tier.topic)


async def read_proposals(
    metadata: Metadata, keys: MetadataKeys, topic: TopicName
) -> dict[str, list[ReturnedObject]]:
    """Complete proposals by the lineage of the WAL they were made from, objects in order."""
    found: dict[str, list[ReturnedObject]] = {}
    counts: dict[str, int] = {}
    prefix = keys.returned(topic)
    for record in await everything(metadata, prefix):
        lineage = record.key.removeprefix(prefix).partition("/")[0]
        if record.key == keys.returned_complete(topic, lineage):
            counts[lineage] = forms.decode_returned_log(record.value).objects
        else:
            found.setdefault(lineage, []).append(forms.decode_returned_object(record.value))
    complete = {lineage: found.get(lineage, []) for lineage in counts}
    return {name: parts for name, parts in complete.items() if len(parts) == counts[name]}


async def _verified(
    tier: TopicTier, gap: Gap, proposal: Sequence[ReturnedObject]
) -> list[ReturnedObject]:
    """The objects as the manifest will name them, without those whose rows count elsewhere.

    Raises ProposalInvalid, ObjectMissing and ObjectDamaged.
    """
    if len(proposal) > GAP_SEQUENCES:
        raise ProposalInvalid(f"{len(proposal)} objects exceed GAP_SEQUENCES, {GAP_SEQUENCES}")
    sequences = {entry.object_id: entry.sequence for entry in tier.manifest.index}
    ends = _ends(tier, gap)
    parts: list[ReturnedObject] = []
    for number, part in enumerate(proposal):
        entry = msgspec.structs.replace(
            part.entry,
            sequence=gap.sequence + number,
            epoch=tier.epoch,
            first_frame=gap.frame,
            next_frame=gap.frame,
        )
        for span in entry.ranges:
            if not ends.get(span.partition, 0) <= span.first < span.next <= gap.next:
                raise ProposalInvalid(f"object {entry.object_id} is not in the gap: {span}")
        if sequences.get(entry.object_id, entry.sequence) != entry.sequence:
            continue  # An application linked it once more after the takeover.
        if entry.linked:
            entry = await tier.objects.look(entry)
        elif not await is_whole(tier.store, entry):
            raise ObjectDamaged(
                entry.object_id, 0, entry.start_offset, entry.end_offset + 1, "it reads back wrong"
            )
        parts.append(ReturnedObject(entry, part.deleted))
    return parts


def _ends(tier: TopicTier, gap: Gap) -> dict[int, int]:
    """Where the gap begins in each partition that had objects when the topic was taken over."""
    ends: dict[int, int] = {}
    for entry in tier.manifest.index:
        if entry.sequence < gap.sequence:
            for span in entry.ranges:
                ends[span.partition] = max(span.next, ends.get(span.partition, 0))
    return ends


async def _fill(tier: TopicTier, gap: Gap, parts: Sequence[ReturnedObject]) -> None:
    found = _offsets(parts)
    offsets = _without_purged(tier, gap, found)
    known = {entry.sequence for entry in tier.manifest.index}
    for some in _batches([part.entry for part in parts if part.entry.sequence not in known]):
        await tier.commit(some)
    for partition, returned in offsets.items():
        await tier.log.restore(PartitionId(partition), returned)
    await tier.commit(gaps=_gaps_without(tier, gap, found))
    _events.info(
        "gap_filled",
        topic=str(tier.topic),
        lineage=gap.lineage,
        objects=len(parts),
        messages=sum(map(len, offsets.values())),
    )


def _batches(entries: Sequence[ObjectEntry]) -> list[list[ObjectEntry]]:
    """Entries that go into one change of the manifest together."""
    batches: list[list[ObjectEntry]] = []
    ranges = RANGES_MAX
    for entry in entries:
        ranges += len(entry.ranges)
        if ranges > RANGES_MAX or len(batches[-1]) == REMOVED_MAX:
            batches.append([])
            ranges = len(entry.ranges)
        batches[-1].append(entry)
    return batches


def _offsets(parts: Sequence[ReturnedObject]) -> dict[int, BitMap64]:
    """Offsets by partition that have messages in the objects."""
    found: dict[int, BitMap64] = {}
    for entry, deleted in ((part.entry, part.deleted) for part in parts):
        for span in entry.ranges:
            live = _live(span, deleted.get(span.partition))
            found[span.partition] = found.get(span.partition, BitMap64()) | live
    return {partition: offsets for partition, offsets in found.items() if offsets}


def _without_purged(
    tier: TopicTier, gap: Gap, found: Mapping[int, BitMap64]
) -> dict[int, BitMap64]:
    """The offsets without those that were purged since the takeover.

    A partition that a successor did not know starts where the successor took over: at the end of
    this gap, or of a later one if there were several takeovers. That is no purge.
    """
    ends, left = _ends(tier, gap), dict[int, BitMap64]()
    later = [other for other in tier.manifest.head.gaps if other.sequence >= gap.sequence]
    for partition, offsets in found.items():
        start = tier.log.start_offset(PartitionId(partition))
        returned = BitMap64(offsets)
        skipped = start in gap.starts or any(
            start == other.next and not _knew(other, partition) for other in later
        )
        if partition in ends or not skipped:
            returned.remove_range(0, start)
        if returned:
            left[partition] = returned
    return left


def _knew(gap: Gap, partition: int) -> bool:
    """Whether the manifest knew the partition when the gap was made."""
    return bool(gap.known) and partition in BitMap64.deserialize(gap.known)


def _gaps_without(tier: TopicTier, gap: Gap, found: Mapping[int, BitMap64]) -> list[Gap]:
    """The open gaps once this one is closed.

    Earlier ones remember where this takeover, and what returned of it, let partitions start.
    """
    ends = _ends(tier, gap)
    firsts = {offsets.min() for partition, offsets in found.items() if partition not in ends}
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
