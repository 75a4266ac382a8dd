import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.log.subjects import bitmaps
from penstock.log.subjects.bitmaps import MatchCache
from penstock.model.subjects import Filter

OFFSETS = st.sets(st.integers(0, 300))
LIMIT = st.integers(1, 20)


def _bitmap(offsets: set[int]) -> BitMap64 | None:
    return BitMap64(offsets) if offsets else None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99)), max_size=30))
def test_bits_are_the_offsets_of_all_entries(drawn: list[tuple[int, int]]) -> None:
    firsts, lengths, offset = [], [], 0
    for gap, length in drawn:
        firsts.append(offset + gap)
        lengths.append(length)
        offset += gap + length
    expected = {o for f, n in zip(firsts, lengths, strict=True) for o in range(f, f + n)}
    found = bitmaps.bits_of(np.array(firsts[::-1], np.int64), np.array(lengths[::-1], np.int64))
    assert set(found) == expected


@given(OFFSETS.filter(bool))
def test_ranges_are_the_way_back_and_never_touch(offsets: set[int]) -> None:
    firsts, lengths = bitmaps.ranges_of(BitMap64(offsets))
    assert set(bitmaps.bits_of(firsts, lengths)) == offsets
    assert not set((firsts + lengths).tolist()) & set(firsts.tolist())


@given(OFFSETS, OFFSETS, st.integers(0, 300), LIMIT)
def test_the_first_live_offsets_are_found_with_any_deletions(
    offsets: set[int], deleted: set[int], start: int, limit: int
) -> None:
    found = bitmaps.live_from(BitMap64(offsets), _bitmap(deleted), start, limit)
    assert found == sorted(o for o in offsets - deleted if o >= start)[:limit]


def test_a_long_dead_stretch_is_not_walked() -> None:
    deleted = BitMap64()
    deleted.add_range(0, 10_000_000)
    assert bitmaps.live_from(BitMap64(range(0, 10_000_100, 50)), deleted, 0, 1) == [10_000_000]


@given(OFFSETS, OFFSETS, st.integers(0, 300))
def test_the_last_live_offset_is_found_with_any_deletions(
    offsets: set[int], deleted: set[int], start: int
) -> None:
    left = [offset for offset in offsets - deleted if offset >= start]
    found = bitmaps.live_last(BitMap64(offsets), _bitmap(deleted), start)
    assert found == max(left, default=None)


@given(OFFSETS, OFFSETS, st.integers(0, 300), st.integers(0, 300))
def test_live_offsets_are_counted_with_any_deletions(
    offsets: set[int], deleted: set[int], start: int, stop: int
) -> None:
    found = bitmaps.live_count(BitMap64(offsets), _bitmap(deleted), start, stop)
    assert found == len([offset for offset in offsets - deleted if start <= offset < stop])


@given(OFFSETS, st.integers(0, 300), st.integers(0, 300), LIMIT)
def test_all_offsets_of_a_partition_need_no_bitmap(
    deleted: set[int], start: int, stop: int, limit: int
) -> None:
    left = [offset for offset in range(start, stop) if offset not in deleted]
    bitmap = _bitmap(deleted)
    assert bitmaps.range_from(start, stop, bitmap, limit) == left[:limit]
    assert bitmaps.range_last(start, stop, bitmap) == max(left, default=None)
    assert bitmaps.range_count(start, stop, bitmap) == len(left)


def test_a_query_over_billions_of_deleted_offsets_is_fast() -> None:
    deleted = BitMap64()
    deleted.add_range(0, 1_000_000_000)
    assert bitmaps.range_from(0, 2_000_000_000, deleted, 2) == [1_000_000_000, 1_000_000_001]
    assert bitmaps.range_last(0, 1_000_000_000, deleted) is None


@pytest.mark.parametrize("text", [b"a.b", b"a.*", b"a.>", b"\xff.*"])
def test_columns_match_as_single_subjects_do(text: bytes) -> None:
    subjects = [b"a.b", b"a.b.c", b"a", b"a.bb", b"\xff.\xfe", b"b.a"]
    chosen = Filter.parse(text)
    found = bitmaps.match_subjects(pa.array(subjects, pa.binary()), chosen)
    assert found.tolist() == [chosen.matches(subject) for subject in subjects]
    assert list(bitmaps.bits_where(found, 7)) == [
        7 + n for n, subject in enumerate(subjects) if chosen.matches(subject)
    ]


def test_entries_have_subjects_with_their_offsets() -> None:
    found = bitmaps.entries_of([(b"b", BitMap64([1, 2, 5])), (b"a", BitMap64([3]))])
    assert found.subjects.to_pylist() == [b"b", b"b", b"a"]
    assert (found.firsts.tolist(), found.lengths.tolist()) == ([1, 5, 3], [2, 1, 1])
    assert len(bitmaps.entries_of([])) == 0


def test_the_cache_evicts_the_least_recently_used_result_and_stays_within_its_limit() -> None:
    cache = MatchCache(bytes_max=3000)
    for number in range(5):
        cache.put(number, BitMap64([number]))
        assert cache.get(0) == BitMap64([0])
    for number in range(5, 20):
        cache.put(number, BitMap64([number]))
        assert cache.nbytes <= 3000
        cache.get(0)
    assert cache.get(0) == BitMap64([0])
    assert cache.get(1) is None
    cache.put("large", BitMap64(range(0, 100_000, 2)))
    assert (cache.get("large"), cache.get(0), cache.nbytes) == (None, None, 0)


def test_the_cache_counts_a_replaced_value_once() -> None:
    cache = MatchCache(bytes_max=3000)
    cache.put("a", BitMap64([1]))
    size = cache.nbytes
    cache.put("a", BitMap64([2]))
    assert (cache.get("a"), cache.nbytes) == (BitMap64([2]), size)
    cache.forget("a")
    cache.forget("a")
    assert cache.nbytes == 0
