"""The rows of several objects in the order of one object: by partition, then by offset.

The rows of each object are already ordered by partition, so only one row group of each object is in
memory at a time. Rows are complete below the lowest last partition of these row groups; they are
sorted one window at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.tiers.deletions import Deletions

WINDOW_BYTES: Final = 16 << 20
"""About how many bytes are sorted at a time."""


def in_order(
    files: Sequence[pq.ParquetFile],
    deletions: Deletions,
    mixed: bool,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[pa.Table]:
    """Tables of the rows that are not deleted; `mixed` if they belong to several partitions."""
    groups = [_row_groups(file, deletions) for file in files]
    if mixed:
        return _by_partition(groups, window_bytes)
    return (table for tables in groups for table in tables)


def _row_groups(file: pq.ParquetFile, deletions: Deletions) -> Iterator[pa.Table]:
    for number in range(file.num_row_groups):
        yield _without_deleted(file.read_row_group(number, use_threads=False), deletions)


def _without_deleted(table: pa.Table, deletions: Deletions) -> pa.Table:
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    live = np.ones(len(offsets), np.bool_)
    for partition in np.intersect1d(partitions, deletions.partitions).tolist():
        rows = slice(*np.searchsorted(partitions, [partition, partition + 1]))
        live[rows] = deletions.live_mask(partition, offsets[rows])
    return table if live.all() else table.filter(pa.array(live))


def _by_partition(groups: Sequence[Iterator[pa.Table]], window_bytes: int) -> Iterator[pa.Table]:
    sources = [_Source(tables) for tables in groups]
    while active := [source for source in sources if source.table is not None]:
        bound = _bound(active, window_bytes)
        yield _sorted([source.take_below(bound) for source in active])
        for source in active:
            yield from source.take_all_of(bound)


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows, sorted by partition and copied: a slice would keep its row group in memory."""
    table = pa.concat_tables(tables)
    return table.take(np.argsort(table.column("partition").to_numpy(), kind="stable"))


def _bound(active: Sequence[_Source], window_bytes: int) -> int:
    """A partition that has rows, with all rows below it loaded, about `window_bytes` of them."""
    bound = min(int(source.partitions[-1]) for source in active)
    below = np.sort(np.concatenate([s.partitions[: s.count_below(bound)] for s in active]))
    size_bytes = sum(int(s.table.nbytes) for s in active if s.table is not None)
    rows = window_bytes * sum(len(s.partitions) for s in active) // size_bytes + 1
    return int(below[rows]) if rows < len(below) else bound


class _Source:
    """The loaded rows of one object that are not taken yet."""

    def __init__(self, groups: Iterator[pa.Table]) -> None:
        self._groups = groups
        self._load(None)

    def _load(self, table: pa.Table | None) -> None:
        """Keep these rows; if there are none, load the next row group."""
        if table is None or not table.num_rows:
            table = next((group for group in self._groups if group.num_rows), None)
        self.table = table
        self.partitions = np.empty(0) if table is None else table.column("partition").to_numpy()

    def count_below(self, partition: int) -> int:
        return int(np.searchsorted(self.partitions, partition))

    def take_below(self, partition: int) -> pa.Table:
        """Take the loaded rows of lower partitions."""
        return self._take(self.count_below(partition))

    def take_all_of(self, partition: int) -> Iterator[pa.Table]:
        """Take all rows of this partition, the lowest one that has rows."""
        while len(self.partitions) and self.partitions[0] == partition:
            yield _sorted([self._take(self.count_below(partition + 1))])

    def _take(self, count: int) -> pa.Table:
        table = self.table
        assert table is not None
        self._load(table.slice(count))
        return table.slice(0, count)
