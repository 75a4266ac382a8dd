import gc
from collections import deque

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.shared.tail_cache import Tail, TailCache
from penstock.model.batch import BATCH_OVERHEAD_BYTES, Batch
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Nanoseconds, Offset, PartitionId

P0, P1 = PartitionId(0), PartitionId(1)
FOREVER = Nanoseconds(1 << 60)


def batch(first: int, count: int = 1, partition: int = 0, size: int = 0) -> Batch:
    payload = pa.array([b"x" * size] * count, pa.binary())
    content = Columns(b"s", payload)
    return Batch(PartitionId(partition), Offset(first), count, Microseconds(0), content)


def ns(value: int) -> Nanoseconds:
    return Nanoseconds(value)


def got(
    tail: Tail, offset: int, partition: PartitionId = P0, bytes_max: int = 1 << 30
) -> list[int]:
    return [int(b.first_offset) for b in tail.get(partition, Offset(offset), bytes_max)]


@pytest.mark.feature("T08")
def test_a_read_begins_with_the_batch_that_has_the_offset() -> None:
    tail = TailCache(1 << 20, FOREVER).tail()
    for first in (5, 8, 11):
        tail.add(batch(first, 3), ns(0))
    tail.add(batch(0, 1, partition=1), ns(0))
    assert [got(tail, offset) for offset in (4, 5, 7, 8, 13, 14)] == [
        [],
        [5, 8, 11],
        [5, 8, 11],
        [8, 11],
        [11],
        [],
    ]
    held = [tail.holding(P0, Offset(offset)) for offset in (4, 5, 7, 8, 13, 14)]
    assert [one and one.first_offset for one in held] == [None, 5, 5, 8, 11, None]
    assert tail.holding(PartitionId(2), Offset(0)) is None
    assert got(tail, 0, P1) == [0]
    assert (tail.first(P0), tail.first(P1), tail.first(PartitionId(2))) == (5, 0, None)


def test_a_read_takes_at_least_one_batch_and_then_up_to_its_limit() -> None:
    tail = TailCache(1 << 20, FOREVER).tail()
    for first in range(4):
        tail.add(batch(first), ns(0))
    size = batch(0).nbytes
    assert got(tail, 0, bytes_max=0) == [0]
    assert got(tail, 0, bytes_max=2 * size - 1) == [0]
    assert got(tail, 1, bytes_max=2 * size) == [1, 2]


@pytest.mark.feature("T08")
def test_hits_and_misses_are_counted() -> None:
    cache = TailCache(1 << 20, FOREVER)
    tail = cache.tail()
    tail.add(batch(0), ns(0))
    for offset in (0, 0, 1):
        got(tail, offset)
    assert (cache.hits, cache.misses) == (2, 1)


@pytest.mark.feature("T08")
def test_the_oldest_batch_of_all_tails_is_evicted_first() -> None:
    size = batch(0).nbytes
    cache = TailCache(3 * size, FOREVER)
    one, two = cache.tail(), cache.tail()
    one.add(batch(0), ns(1))
    two.add(batch(0), ns(2))
    one.add(batch(1), ns(3))
    two.add(batch(1), ns(4))
    assert (got(one, 0), got(one, 1)) == ([], [1])
    assert got(two, 0) == [0, 1]
    assert cache.size_bytes == 3 * size
    assert one.first(P0) == 1


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    cache = TailCache(1000, FOREVER)
    tail = cache.tail()
    tail.add(batch(0), ns(0))
    tail.add(batch(1, size=2000), ns(0))
    assert (cache.size_bytes, tail.first(P0)) == (0, None)
    tail.add(batch(2), ns(0))
    assert got(tail, 2) == [2]


@pytest.mark.feature("T08")
def test_old_batches_are_evicted_also_when_nothing_is_appended() -> None:
    cache = TailCache(1 << 20, ns(10))
    tail = cache.tail()
    tail.add(batch(0), ns(0))
    tail.add(batch(1), ns(5))
    cache.evict(ns(10))
    assert got(tail, 0) == [0, 1]
    cache.evict(ns(11))
    assert (got(tail, 0), got(tail, 1)) == ([], [1])
    cache.evict(ns(16))
    assert (cache.size_bytes, tail.first(P0)) == (0, None)


def test_a_batch_that_does_not_continue_the_tail_replaces_it() -> None:
    cache = TailCache(1 << 20, FOREVER)
    tail = cache.tail()
    tail.add(batch(0), ns(0))
    tail.add(batch(0, partition=1), ns(0))
    tail.add(batch(7), ns(0))
    assert (got(tail, 0), got(tail, 7), got(tail, 0, P1)) == ([], [7], [0])
    assert cache.size_bytes == 2 * batch(0).nbytes


def test_clearing_a_tail_leaves_the_others() -> None:
    cache = TailCache(1 << 20, FOREVER)
    one, two = cache.tail(), cache.tail()
    one.add(batch(0), ns(0))
    one.add(batch(0, partition=1), ns(0))
    two.add(batch(0), ns(0))
    one.clear()
    assert (one.first(P0), one.first(P1), got(two, 0)) == (None, None, [0])
    assert cache.size_bytes == batch(0).nbytes
    one.add(batch(1), ns(1))
    cache.evict(ns(1 << 61))
    assert cache.size_bytes == 0


@pytest.mark.feature("T08")
def test_forgotten_batches_hold_no_memory() -> None:
    """A link or a recorded gap between batches makes the tail start again each time."""
    cache = TailCache(1 << 20, FOREVER)
    tail = cache.tail()
    for first in range(0, 20_000, 2):
        tail.add(batch(first, size=1000), ns(0))
    alive = [item for item in gc.get_objects() if isinstance(item, Batch)]
    assert cache.size_bytes <= 1 << 20
    assert sum(b.nbytes for b in alive) <= 1 << 20
    assert len(cache._order) < 1000


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 1),
            st.sampled_from([0, 0, 0, 3]),
            st.sampled_from([0, 100, 900]),
            st.integers(0, 3),
        ),
        max_size=40,
    )
)
@settings(max_examples=200)
def test_tails_are_always_the_newest_batches_without_gaps_within_the_bounds(
    steps: list[tuple[int, int, int, int, int]],
) -> None:
    cache = TailCache(4000, ns(20))
    tails = [cache.tail(), cache.tail()]
    nexts: dict[tuple[int, int], int] = {}
    model: deque[tuple[int, tuple[int, int], Batch]] = deque()
    now = 0
    for which, partition, gap, size, passed in steps:
        now += passed
        key = (which, partition)
        first = nexts.get(key, 0) + gap
        added = batch(first, 2, partition, size)
        nexts[key] = first + 2
        if gap and any(entry[1] == key for entry in model):
            model = deque(entry for entry in model if entry[1] != key)
        model.append((now, key, added))
        tails[which].add(added, ns(now))
        while model and (sum(e[2].nbytes for e in model) > 4000 or now - model[0][0] > 20):
            model.popleft()
        assert cache.size_bytes == sum(entry[2].nbytes for entry in model)
        for other, next_offset in nexts.items():
            mine = [entry[2] for entry in model if entry[1] == other]
            for offset in range(next_offset + 1):
                expected = [
                    b.first_offset
                    for n, b in enumerate(mine)
                    if any(x.first_offset <= offset < x.next_offset for x in mine[: n + 1])
                ]
                assert got(tails[other[0]], offset, PartitionId(other[1])) == expected


def test_an_empty_batch_is_charged_for_its_objects() -> None:
    assert batch(0).nbytes >= BATCH_OVERHEAD_BYTES
