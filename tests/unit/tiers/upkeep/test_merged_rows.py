from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.tiers.deletions import Deletions
from penstock.tiers.upkeep.merged_rows import in_order

NOTHING = Deletions({}, {})
Row = tuple[int, int]


class Watched:
    """Parquet files of these rows, partition and offset, in row groups of a few."""

    def __init__(self, objects: Sequence[Sequence[Row]], group_rows: int) -> None:
        self.reads = [0] * len(objects)
        self._files = [_file(rows, group_rows) for rows in objects]

    def __call__(self) -> list[pq.ParquetFile]:
        return [_Counted(self, place) for place in range(len(self._files))]

    def file(self, place: int) -> pq.ParquetFile:
        return self._files[place]


class _Counted:
    def __init__(self, watched: Watched, place: int) -> None:
        self._watched, self._place = watched, place
        self.num_row_groups = watched.file(place).num_row_groups

    def read_row_group(self, number: int, use_threads: bool) -> pa.Table:
        self._watched.reads[self._place] += 1
        return self._watched.file(self._place).read_row_group(number, use_threads=use_threads)


def _file(rows: Sequence[Row], group_rows: int) -> pq.ParquetFile:
    sink = pa.BufferOutputStream()
    partitions, offsets = [p for p, _ in rows], [n for _, n in rows]
    table = pa.table(
        {"partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())}
    )
    pq.write_table(table, sink, row_group_size=group_rows)
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


def rows_of(tables: Sequence[pa.Table]) -> list[Row]:
    return [(row["partition"], row["offset"]) for table in tables for row in table.to_pylist()]


def spread(partitions: Sequence[int], first: int, count: int) -> list[Row]:
    """`count` rows of each partition."""
    return [(p, n) for p in partitions for n in range(first, first + count)]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=6), max_size=5),
    st.integers(1, 9),
    st.integers(1, 200),
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 30))),
)
def test_rows_are_ordered_by_partition_and_offset_for_any_row_groups(
    objects: list[list[Row]], group_rows: int, window_bytes: int, dead: set[Row]
) -> None:
    nexts = dict.fromkeys(range(6), 0)
    files: list[list[Row]] = []
    for runs in objects:
        rows = []
        for partition, count in runs:
            rows += spread([partition], nexts[partition], count)
            nexts[partition] += count
        files.append(sorted(rows))
    bitmaps = {p: BitMap64([n for q, n in dead if q == p]) for p in range(0, 6, 2)}
    starts = {p: max([n for q, n in dead if q == p], default=-1) + 1 for p in range(1, 6, 2)}
    live = [
        (p, n)
        for p, n in sorted(row for rows in files for row in rows)
        if ((p, n) not in dead if p % 2 == 0 else n >= starts[p])
    ]
    opened = [_file(rows, group_rows) for rows in files]
    tables = in_order(opened, Deletions(starts, bitmaps), mixed=True, window_bytes=window_bytes)
    assert rows_of(list(tables)) == live


def test_rows_of_one_partition_need_no_order() -> None:
    files = Watched([spread([4], 0, 5), spread([4], 5, 3)], group_rows=2)
    tables = list(in_order(files(), NOTHING, mixed=False))
    assert [len(table) for table in tables] == [2, 2, 1, 2, 1]
    assert rows_of(tables) == spread([4], 0, 8)


@pytest.mark.feature("T12")
def test_at_most_one_row_group_of_each_object_is_loaded() -> None:
    objects = [spread(range(10), first, 4) for first in (0, 4, 8)]
    files = Watched(objects, group_rows=8)
    taken: list[Row] = []
    for table in in_order(files(), NOTHING, mixed=True):
        taken += rows_of([table])
        ahead = [
            reads * 8 - sum(1 for _, n in taken if place * 4 <= n < place * 4 + 4)
            for place, reads in enumerate(files.reads)
        ]
        assert all(rows <= 8 for rows in ahead)
    assert taken == [(p, n) for p in range(10) for n in range(12)]
    assert files.reads == [5, 5, 5]


@pytest.mark.feature("T12")
def test_at_most_one_window_is_sorted_at_a_time() -> None:
    row_bytes = 12
    files = [_file(spread(range(50), first, 2), 1000) for first in (0, 2)]
    tables = list(in_order(files, NOTHING, mixed=True, window_bytes=20 * row_bytes))
    assert max(map(len, tables)) <= 20
    assert rows_of(tables) == [(p, n) for p in range(50) for n in range(4)]


def test_objects_without_rows_are_skipped() -> None:
    files = [_file([], 5), _file([(1, 3), (2, 0)], 5), _file([], 5)]
    assert rows_of(list(in_order(files, NOTHING, mixed=True))) == [(1, 3), (2, 0)]
    gone = Deletions({1: 4, 2: 9}, {})
    assert rows_of(list(in_order(files, gone, mixed=True))) == []
