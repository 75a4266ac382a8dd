"""The rows of several objects as one object has them: by partition, and within it as they came.

An object's rows are sorted by partition already, so that no more than a row group of each need be
in memory: what is at hand of all of them below the partition where one of these ends is complete,
and is put in order a window at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.tiers.deletions import Deletions

WINDOW_BYTES: Final = 16 << 20
"""About so many are put in order at a time."""


def in_order(
    files: Sequence[pq.ParquetFile], deletions: Deletions, mixed: bool
) -> Iterator[pa.Table]:
    """What is left of the rows, some at a time; `mixed` if they are of several partitions."""
    groups = [_groups(file, deletions) for file in files]
    return _by_partition(groups) if mixed else (table for some in groups for table in some)


def _groups(file: pq.ParquetFile, deletions: Deletions) -> Iterator[pa.Table]:
    for number in range(file.num_row_groups):
        yield _alive(file.read_row_group(number, use_threads=False), deletions)


def _alive(table: pa.Table, deletions: Deletions) -> pa.Table:
    """The table without the rows whose offsets are deleted or purged."""
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    alive = np.ones(len(offsets), np.bool_)
    for partition in np.intersect1d(partitions, deletions.partitions).tolist():
        mine = slice(*np.searchsorted(partitions, [partition, partition + 1]))
        alive[mine] = deletions.alive(partition, offsets[mine])
    return table if alive.all() else table.filter(pa.array(alive))


def _by_partition(groups: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    sources = [_Source(some) for some in groups]
    while live := [source for source in sources if source.table is not None]:
        bound = _bound(live)
        yield _sorted([source.take_below(bound) for source in live])
        for source in live:
            yield from source.take_all_of(bound)


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows, copied: a part that is held would hold its whole row group."""
    table = pa.concat_tables(tables)
    return table.take(np.argsort(table.column("partition").to_numpy(), kind="stable"))


def _bound(live: Sequence[_Source]) -> int:
    """A partition that there are rows of, and below which all rows are at hand, and not many."""
    bound = min(int(source.partitions[-1]) for source in live)
    below = np.sort(np.concatenate([s.partitions[: s.count_below(bound)] for s in live]))
    size_bytes = sum(int(s.table.nbytes) for s in live if s.table is not None)
    rows = WINDOW_BYTES * sum(len(s.partitions) for s in live) // size_bytes + 1
    return int(below[rows]) if rows < len(below) else bound


class _Source:
    """The rows of one object that are not taken yet, as far as they are at hand."""

    def __init__(self, groups: Iterator[pa.Table]) -> None:
        self._groups = groups
        self._hold(None)

    def _hold(self, table: pa.Table | None) -> None:
        """These rows; if there are none, the next ones."""
        if table is None or not table.num_rows:
            table = next((some for some in self._groups if some.num_rows), None)
        self.table = table
        self.partitions = np.empty(0) if table is None else table.column("partition").to_numpy()

    def count_below(self, partition: int) -> int:
        return int(np.searchsorted(self.partitions, partition))

    def take_below(self, partition: int) -> pa.Table:
        """Those at hand of lower partitions."""
        return self._take(self.count_below(partition))

    def take_all_of(self, partition: int) -> Iterator[pa.Table]:
        """Those of the lowest partition that is left."""
        while len(self.partitions) and self.partitions[0] == partition:
            yield _sorted([self._take(self.count_below(partition + 1))])

    def _take(self, count: int) -> pa.Table:
        table = self.table
        assert table is not None
        self._hold(table.slice(count))
        return table.slice(0, count)
