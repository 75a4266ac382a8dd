"""Merges small adjacent objects into one, without deleted messages.

Uploads are as small as their interval is short; readers prefer few, large objects. A merged object
is several times as large as its largest input, so that a row is rewritten only a few times until it
is in a large object, however many small ones there are. The manifest is changed in one transaction,
the inputs go to the trash, and readers in flight finish with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import objects as form
from penstock.formats.objects import ROW_GROUP_BYTES, ObjectWriter
from penstock.host.shared_memory import SharedFile, mapped_view, writable_path
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import (
    Gap,
    ObjectEntry,
    are_separated,
    joined_ranges,
    new_entry,
)
from penstock.tiers.manifest.manifest import REMOVED_MAX
from penstock.tiers.settings import TierSettings
from penstock.tiers.upkeep.merged_rows import in_order

ENDED_GROWTH_MIN: Final = 1.5
"""The least growth of a merge to which no more objects can be added."""


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """Memory limits of one merge."""

    raw_bytes_max: int = 512 << 20
    """The size of all rows of the merged object in memory."""
    loaded_bytes_max: int = 8 * ROW_GROUP_BYTES
    """The size of the row groups in memory at a time, one of each input, if rows of several
    partitions are sorted.
    """
    row_group_bytes: int = ROW_GROUP_BYTES

    def loaded_bytes(self, entry: ObjectEntry) -> int:
        """The size of the rows of an input that are in memory at a time."""
        return min(entry.raw_size, self.row_group_bytes)


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What may be merged.

    Damaged objects remain as they are, and nothing is merged across them. Nor is anything merged
    across a gap that a returning disk may still fill: an object that covers the offsets on both
    sides would leave no place for the messages between them.
    """

    settings: TierSettings
    gap_is_recorded: Callable[[PartitionRange], bool]
    damaged: Collection[str] = ()
    open_gaps: Collection[Gap] = ()
    limits: MergeLimits = MergeLimits()

    def allows(self, entry: ObjectEntry) -> bool:
        """Whether an object may be merged at all."""
        small = entry.size < self.settings.object_bytes_max // 2
        return small and not entry.linked and entry.object_id not in self.damaged

    def allows_gap(self, gap: PartitionRange) -> bool:
        """Whether two ranges with this between them are adjacent."""
        return gap.first == gap.next or (gap.first < gap.next and self.gap_is_recorded(gap))


class _Run:
    """Adjacent objects that may become one."""

    def __init__(self, rules: MergeRules, first: ObjectEntry) -> None:
        self._rules = rules
        self.entries: list[ObjectEntry] = []
        self._size = self._raw_size = self._loaded_size = self._largest = 0
        self._ends: dict[int, int] = {}
        self.add(first)

    @property
    def growth(self) -> float:
        """The size of all objects as a multiple of the largest one."""
        return self._size / self._largest

    def add(self, entry: ObjectEntry) -> None:
        self.entries.append(entry)
        self._size += entry.size
        self._raw_size += entry.raw_size
        self._loaded_size += self._rules.limits.loaded_bytes(entry)
        self._largest = max(self._largest, entry.size)
        self._ends |= {span.partition: span.next for span in entry.ranges}

    def can_add(self, entry: ObjectEntry) -> bool:
        rules, last = self._rules, self.entries[-1]
        if not self._has_room(entry) or last.schema_crc32c != entry.schema_crc32c:
            return False
        if not rules.allows(entry) or are_separated([last, entry], rules.open_gaps):
            return False
        gaps = (
            PartitionRange(span.partition, self._ends.get(span.partition, span.first), span.first)
            for span in entry.ranges
        )
        return all(map(rules.allows_gap, gaps))

    def _has_room(self, entry: ObjectEntry) -> bool:
        """Whether the run with this entry is within all limits."""
        limits = self._rules.limits
        if len(self.entries) == REMOVED_MAX:
            return False
        if self._size + entry.size > self._rules.settings.object_bytes_max:
            return False
        if self._raw_size + entry.raw_size > limits.raw_bytes_max:
            return False
        partitions = self._ends.keys() | {span.partition for span in entry.ranges}
        loaded_size = self._loaded_size + limits.loaded_bytes(entry)
        return len(partitions) == 1 or loaded_size <= limits.loaded_bytes_max


def choose_run(entries: Iterable[ObjectEntry], rules: MergeRules, now_us: int) -> list[ObjectEntry]:
    """The oldest adjacent objects worth merging; none if there are none."""
    ordered = sorted(entries, key=lambda entry: entry.sequence)
    patience_us = rules.settings.object_seconds_max * 1_000_000
    quiet = bool(ordered) and now_us - ordered[-1].created_at > patience_us
    for start, entry in enumerate(ordered):
        if rules.allows(entry):
            run = _run_from(ordered, start, rules, quiet)
            if run:
                return run
    return []


def _run_from(
    ordered: Sequence[ObjectEntry], start: int, rules: MergeRules, quiet: bool
) -> list[ObjectEntry]:
    """The longest run from `start` on that is worth merging.

    A run has ended if the next object does not fit, or if the topic is quiet. Then less growth is
    enough.
    """
    run, worth, ended = _Run(rules, ordered[start]), 0, quiet
    for entry in ordered[start + 1 :]:
        if not run.can_add(entry):
            ended = True
            break
        run.add(entry)
        if run.growth >= rules.settings.merge_objects_min:
            worth = len(run.entries)
    if ended and run.growth >= ENDED_GROWTH_MIN:
        worth = len(run.entries)
    return run.entries[:worth]


def merge_objects(
    topic: TopicName,
    run: Sequence[ObjectEntry],
    bodies: Sequence[bytes],
    deletions: Deletions,
    created_us: int,
    unique: str,
    memory: SharedFile,
) -> ObjectEntry:
    """Write one object with the rows of several to `memory` and return its entry.

    Runs in a thread; raises pyarrow's errors if an input is damaged.
    """
    files = [
        pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True) for body in bodies
    ]
    facts = [form.facts_of(file.metadata) for file in files]
    ranges = joined_ranges(span for entry in run for span in entry.ranges)
    with writable_path(memory) as path:
        sink = pa.OSFile(path, "w")
    writer = ObjectWriter(sink, files[0].schema_arrow, facts[0].typed)
    rows = raw_size = 0
    for table in in_order(files, deletions, mixed=len(ranges) > 1):
        writer.write(table)
        rows, raw_size = rows + table.num_rows, raw_size + int(table.nbytes)
    merged = msgspec.structs.replace(
        facts[0],
        ranges=ranges,
        rows=rows,
        first_timestamp=min(f.first_timestamp for f in facts),
        last_timestamp=max(f.last_timestamp for f in facts),
        epoch=max(f.epoch for f in facts),
        first_frame=run[0].first_frame,
        next_frame=run[-1].next_frame,
    )
    writer.finish(merged)
    sink.close()
    pa.default_memory_pool().release_unused()
    key = form.object_key(topic, created_us, merged.ranges, unique)
    data, first = mapped_view(memory), run[0]
    return new_entry(key, merged, data, created_us, first.backend, first.sequence, raw_size)
