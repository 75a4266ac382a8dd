"""Join small neighbouring objects into one, and leave out what was deleted.

Uploads are as small as their interval is short; readers want few, large objects. The manifest is
changed in one transaction, the old objects go to the trash, and readers in flight finish with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import objects as form
from penstock.formats.extents import Extent
from penstock.formats.objects import Range
from penstock.model.names import TopicName
from penstock.tiers.build import Built
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import ObjectEntry, entry_of
from penstock.tiers.manifest import REMOVED_MAX
from penstock.tiers.settings import TierSettings

RAW_BYTES_MAX: Final = 512 << 20
"""What the merged rows may take in memory: the bound of a merge."""


def choose(
    entries: Iterable[ObjectEntry],
    settings: TierSettings,
    now_us: int,
    gap_is_recorded: Callable[[Extent], bool],
) -> list[ObjectEntry]:
    """The oldest neighbours worth merging, no more than one transaction can take out; or none."""
    run: list[ObjectEntry] = []
    for entry in sorted(entries, key=lambda entry: entry.sequence):
        if run and not _fits(run, entry, settings, gap_is_recorded):
            if _worth(run, settings, now_us):
                return run
            run = []
        if entry.size < settings.object_bytes_max // 2:
            run.append(entry)
        else:
            run = run if _worth(run, settings, now_us) else []
            if run:
                return run
    return run if _worth(run, settings, now_us) else []


def _fits(
    run: list[ObjectEntry],
    entry: ObjectEntry,
    settings: TierSettings,
    gap_is_recorded: Callable[[Extent], bool],
) -> bool:
    small = sum(e.size for e in run) + entry.size <= settings.object_bytes_max
    light = sum(e.raw_size for e in run) + entry.raw_size <= RAW_BYTES_MAX
    few = len(run) < REMOVED_MAX
    if not (small and light and few and run[-1].schema_crc32c == entry.schema_crc32c):
        return False
    ends = {span.partition: span.next for e in run for span in e.ranges}
    gaps = (Extent(s.partition, ends.get(s.partition, s.first), s.first) for s in entry.ranges)
    return all(gap.first == gap.next or gap_is_recorded(gap) for gap in gaps)


def _worth(run: list[ObjectEntry], settings: TierSettings, now_us: int) -> bool:
    if len(run) < 2:
        return False
    old = now_us - run[0].created_at > settings.object_seconds_max * 1_000_000
    return len(run) >= settings.merge_objects_min or old


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
    table = pa.concat_tables([file.read(use_threads=False) for file in files])
    table = _sorted(_alive(table, deletions))
    merged = msgspec.structs.replace(
        facts[0],
        ranges=_joined(run),
        rows=table.num_rows,
        first_timestamp=min(f.first_timestamp for f in facts),
        last_timestamp=max(f.last_timestamp for f in facts),
        epoch=max(f.epoch for f in facts),
        first_frame=run[0].first_frame,
        next_frame=run[-1].next_frame,
    )
    data = form.encode_table(table, merged)
    key = form.object_key(topic, created_us, merged.ranges, unique)
    entry = entry_of(
        key, merged, data, created_us, run[0].backend, run[0].sequence, int(table.nbytes)
    )
    return Built(entry, data)


def _joined(run: Sequence[ObjectEntry]) -> list[Range]:
    spans: dict[int, Range] = {}
    for span in (span for entry in run for span in entry.ranges):
        first = spans[span.partition].first if span.partition in spans else span.first
        spans[span.partition] = Range(span.partition, first, span.next)
    return [spans[partition] for partition in sorted(spans)]


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
