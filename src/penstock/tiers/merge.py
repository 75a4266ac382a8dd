"""Join small neighbouring objects into one, and leave out what was deleted.

Uploads are as small as their interval is short; readers want few, large objects. A merged object is
several times as large as the largest it was made from, so that a row is rewritten a few times until
it is in a large one, however many small ones come. The manifest is changed in one transaction, the
old objects go to the trash, and readers in flight finish with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import objects as form
from penstock.formats.objects import ROW_GROUP_BYTES, ObjectWriter
from penstock.host.shared_memory import SharedFile, mapped_view, writable_path
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import Gap, ObjectEntry, entry_of, joined, separated
from penstock.tiers.manifest import REMOVED_MAX
from penstock.tiers.merged_rows import in_order
from penstock.tiers.settings import TierSettings

RAW_BYTES_MAX: Final = 512 << 20
"""What the merged rows may take."""

HELD_BYTES_MAX: Final = 8 * ROW_GROUP_BYTES
"""What the row groups may take that are in memory at a time, one of each object, where rows of
several partitions are put in order: the bound of a merge.
"""

ENDED_GROWTH_MIN: Final = 1.5
"""How much larger than its largest object a merged one is at least, where no more can come."""


class _Rules(NamedTuple):
    """What may be merged."""

    settings: TierSettings
    gap_is_recorded: Callable[[PartitionRange], bool]
    damaged: Collection[str]
    open_gaps: Collection[Gap]

    def take(self, entry: ObjectEntry) -> bool:
        """Whether an object may be part of any run."""
        small = entry.size < self.settings.object_bytes_max // 2
        return small and not entry.linked and entry.object_id not in self.damaged

    def join(self, gap: PartitionRange) -> bool:
        """Whether two ranges with this between them are neighbours."""
        return gap.first == gap.next or (gap.first < gap.next and self.gap_is_recorded(gap))

    def same_side(self, one: ObjectEntry, other: ObjectEntry) -> bool:
        """Whether no gap that a returning disk may still fill lies between two entries."""
        return not separated([one, other], self.open_gaps)


class _Run:
    """Neighbours that may become one object."""

    def __init__(self, first: ObjectEntry) -> None:
        self.entries: list[ObjectEntry] = []
        self._size = self._raw_size = self._held_size = self._largest = 0
        self._ends: dict[int, int] = {}
        self.add(first)

    @property
    def growth(self) -> float:
        """How many times as large as the largest of them they are together."""
        return self._size / self._largest

    def add(self, entry: ObjectEntry) -> None:
        self.entries.append(entry)
        self._size += entry.size
        self._raw_size += entry.raw_size
        self._held_size += _held(entry)
        self._largest = max(self._largest, entry.size)
        self._ends |= {span.partition: span.next for span in entry.ranges}

    def _mixes(self, entry: ObjectEntry) -> bool:
        """Whether with it there are several partitions."""
        return len(self._ends.keys() | {span.partition for span in entry.ranges}) > 1

    def fits(self, entry: ObjectEntry, rules: _Rules) -> bool:
        small = self._size + entry.size <= rules.settings.object_bytes_max
        light = self._raw_size + entry.raw_size <= RAW_BYTES_MAX and (
            self._held_size + _held(entry) <= HELD_BYTES_MAX or not self._mixes(entry)
        )
        few = len(self.entries) < REMOVED_MAX
        alike = self.entries[-1].schema_crc32c == entry.schema_crc32c
        if not (small and light and few and alike and rules.take(entry)):
            return False
        if not rules.same_side(self.entries[-1], entry):
            return False
        gaps = (
            PartitionRange(span.partition, self._ends.get(span.partition, span.first), span.first)
            for span in entry.ranges
        )
        return all(map(rules.join, gaps))


def _held(entry: ObjectEntry) -> int:
    return min(entry.raw_size, ROW_GROUP_BYTES)


def choose(
    entries: Iterable[ObjectEntry],
    settings: TierSettings,
    now_us: int,
    gap_is_recorded: Callable[[PartitionRange], bool],
    damaged: Collection[str] = (),
    open_gaps: Collection[Gap] = (),
) -> list[ObjectEntry]:
    """The oldest neighbours worth merging, no more than one transaction can take out; or none.

    Those that are damaged are left where they are, and nothing is merged across them. Nor is
    anything merged across a gap that a returning disk may still fill: an object that answered for
    the offsets on both sides would leave no place for the messages between them.
    """
    rules = _Rules(settings, gap_is_recorded, damaged, open_gaps)
    ordered = sorted(entries, key=lambda entry: entry.sequence)
    patience_us = settings.object_seconds_max * 1_000_000
    quiet = bool(ordered) and now_us - ordered[-1].created_at > patience_us
    for start, entry in enumerate(ordered):
        if rules.take(entry):
            run = _from(ordered, start, rules, quiet)
            if run:
                return run
    return []


def _from(
    ordered: Sequence[ObjectEntry], start: int, rules: _Rules, quiet: bool
) -> list[ObjectEntry]:
    """The longest run from here on that is worth merging.

    One that nothing can be added to any more, since what follows does not fit or nothing has come
    for long, need not grow as much.
    """
    run, worth, ended = _Run(ordered[start]), 0, quiet
    for place in range(start + 1, len(ordered)):
        if not run.fits(ordered[place], rules):
            ended = True
            break
        run.add(ordered[place])
        if run.growth >= rules.settings.merge_objects_min:
            worth = len(run.entries)
    if ended and run.growth >= ENDED_GROWTH_MIN:
        worth = len(run.entries)
    return run.entries[:worth]


def merge(
    topic: TopicName,
    run: Sequence[ObjectEntry],
    bodies: Sequence[bytes],
    deletions: Deletions,
    created_us: int,
    unique: str,
    memory: SharedFile,
) -> ObjectEntry:
    """One object from several, in a thread; raises pyarrow's errors when one is damaged.

    Its bytes go to `memory`; the entry it will have is returned.
    """
    files = [
        pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True) for body in bodies
    ]
    facts = [form.facts_of(file.metadata) for file in files]
    ranges = joined(span for entry in run for span in entry.ranges)
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
    return entry_of(key, merged, data, created_us, first.backend, first.sequence, raw_size)
