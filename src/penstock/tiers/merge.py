"""Join small neighbouring objects into one, and leave out what was deleted.

Uploads are as small as their interval is short; readers want few, large objects. A merged object is
several times as large as the largest it was made from, so that a row is rewritten a few times until
it is in a large one, however many small ones come. The manifest is changed in one transaction, the
old objects go to the trash, and readers in flight finish with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import objects as form
from penstock.formats.extents import Extent
from penstock.formats.objects import ObjectWriter
from penstock.model.names import TopicName
from penstock.tiers.build import Built
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import ObjectEntry, entry_of, joined
from penstock.tiers.manifest import REMOVED_MAX
from penstock.tiers.settings import TierSettings

RAW_BYTES_MAX: Final = 512 << 20
"""What the merged rows may take, in memory where they must be sorted: the bound of a merge."""

ENDED_GROWTH_MIN: Final = 1.5
"""How much larger than its largest object a merged one is at least, where no more can come."""


class _Run:
    """Neighbours that may become one object."""

    def __init__(self, first: ObjectEntry) -> None:
        self.entries: list[ObjectEntry] = []
        self._size = self._raw_size = self._largest = 0
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
        self._largest = max(self._largest, entry.size)
        self._ends |= {span.partition: span.next for span in entry.ranges}

    def fits(
        self,
        entry: ObjectEntry,
        settings: TierSettings,
        gap_is_recorded: Callable[[Extent], bool],
    ) -> bool:
        small = self._size + entry.size <= settings.object_bytes_max
        light = self._raw_size + entry.raw_size <= RAW_BYTES_MAX
        few = len(self.entries) < REMOVED_MAX
        alike = self.entries[-1].schema_crc32c == entry.schema_crc32c
        if not (small and light and few and alike and _takes_part(entry, settings)):
            return False
        gaps = (
            Extent(span.partition, self._ends.get(span.partition, span.first), span.first)
            for span in entry.ranges
        )
        return all(gap.first == gap.next or gap_is_recorded(gap) for gap in gaps)


def choose(
    entries: Iterable[ObjectEntry],
    settings: TierSettings,
    now_us: int,
    gap_is_recorded: Callable[[Extent], bool],
) -> list[ObjectEntry]:
    """The oldest neighbours worth merging, no more than one transaction can take out; or none."""
    ordered = sorted(entries, key=lambda entry: entry.sequence)
    patience_us = settings.object_seconds_max * 1_000_000
    quiet = bool(ordered) and now_us - ordered[-1].created_at > patience_us
    for start, entry in enumerate(ordered):
        if _takes_part(entry, settings):
            run = _from(ordered, start, settings, gap_is_recorded, quiet)
            if run:
                return run
    return []


def _from(
    ordered: Sequence[ObjectEntry],
    start: int,
    settings: TierSettings,
    gap_is_recorded: Callable[[Extent], bool],
    quiet: bool,
) -> list[ObjectEntry]:
    """The longest run from here on that is worth merging.

    One that nothing can be added to any more, since what follows does not fit or nothing has come
    for long, need not grow as much.
    """
    run, worth, ended = _Run(ordered[start]), 0, quiet
    for place in range(start + 1, len(ordered)):
        if not run.fits(ordered[place], settings, gap_is_recorded):
            ended = True
            break
        run.add(ordered[place])
        if run.growth >= settings.merge_objects_min:
            worth = len(run.entries)
    if ended and run.growth >= ENDED_GROWTH_MIN:
        worth = len(run.entries)
    return run.entries[:worth]


def _takes_part(entry: ObjectEntry, settings: TierSettings) -> bool:
    return entry.size < settings.object_bytes_max // 2 and not entry.linked


def merge(
    topic: TopicName,
    run: Sequence[ObjectEntry],
    bodies: Sequence[bytes],
    deletions: Deletions,
    created_us: int,
    unique: str,
) -> Built:
    """One object from several, in a thread; raises pyarrow's errors when one is damaged."""
    files = [
        pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True) for body in bodies
    ]
    facts = [form.facts_of(file.metadata) for file in files]
    ranges = joined(span for entry in run for span in entry.ranges)
    writer = ObjectWriter(files[0].schema_arrow, facts[0].typed)
    rows = raw_size = 0
    for table in _tables(files, deletions, len(ranges) > 1):
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
    pieces = writer.finish(merged)
    key = form.object_key(topic, created_us, merged.ranges, unique)
    first = run[0]
    entry = entry_of(key, merged, pieces, created_us, first.backend, first.sequence, raw_size)
    return Built(entry, pieces)


def _tables(
    files: Sequence[pq.ParquetFile], deletions: Deletions, sort: bool
) -> Iterator[pa.Table]:
    """What is left of the rows, a row group at a time; all at once where they must be sorted by
    partition.
    """
    groups = ((file, number) for file in files for number in range(file.num_row_groups))
    tables = (_alive(one.read_row_group(n, use_threads=False), deletions) for one, n in groups)
    return iter([_sorted(pa.concat_tables(tables))]) if sort else tables


def _alive(table: pa.Table, deletions: Deletions) -> pa.Table:
    """The table without the rows whose offsets are deleted or purged."""
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    alive = np.ones(len(offsets), np.bool_)
    for partition in np.unique(partitions).tolist():
        mine = partitions == partition
        alive[mine] = deletions.alive(partition, offsets[mine])
    return table if alive.all() else table.filter(pa.array(alive))


def _sorted(table: pa.Table) -> pa.Table:
    partitions = table.column("partition").to_numpy()
    if not len(partitions) or (np.diff(partitions) >= 0).all():
        return table
    return table.take(pa.array(np.argsort(partitions, kind="stable")))
