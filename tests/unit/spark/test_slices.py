from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.formats.objects import ROW_GROUP_ROWS
from penstock.spark import slices
from penstock.spark.slices import FetchSlice, ObjectSlice, Slice, SliceSpan
from tests.unit.spark.plans import an_object, partition, plan


def offsets(pieces: list[Slice]) -> list[tuple[int, int]]:
    """Partition and offset of every live message in the slices."""
    found = []
    for piece in pieces:
        if isinstance(piece, FetchSlice):
            found += [(piece.partition, o) for o in range(piece.first, piece.next)]
            continue
        dead = {(p, o) for p, data in piece.deleted for o in BitMap64.deserialize(data)}
        spans = [(s.partition, o) for s in piece.spans for o in range(s.first, s.next)]
        found += [place for place in spans if place not in dead]
    return sorted(found)


def test_offsets_outside_objects_are_fetched_from_the_broker() -> None:
    made = plan(
        [partition(next_=50, hot=30)], [an_object("a", (0, 0, 20)), an_object("b", (0, 20, 30))]
    )
    pieces = slices.slice_plan(made, {0: (5, 40)})
    assert pieces == [
        ObjectSlice("a", 100, False, 7, (SliceSpan(0, 5, 20, 0),), whole=False),
        ObjectSlice("b", 100, False, 7, (SliceSpan(0, 20, 30, 20),), whole=True),
        FetchSlice(0, None, 30, 40),
    ]
    assert slices.slice_plan(made, {0: (5, 40)}, from_objects=False) == [FetchSlice(0, None, 5, 40)]
    assert slices.slice_plan(made, {}) == []


def test_a_gap_between_objects_is_fetched_unless_it_is_recorded() -> None:
    objects = [an_object("a", (0, 0, 10)), an_object("b", (0, 20, 30))]
    damaged = plan([partition(next_=30, hot=30)], objects)
    assert slices.slice_plan(damaged, {0: (0, 30)})[-1] == FetchSlice(0, None, 10, 20)
    recorded = plan([partition(next_=30, hot=30, deleted=range(10, 20))], objects)
    assert [type(piece) for piece in slices.slice_plan(recorded, {0: (0, 30)})] == [ObjectSlice] * 2


def test_slices_have_the_deleted_offsets_whose_rows_are_in_the_object() -> None:
    deleted = [3, 4, 25]
    objects = [
        an_object("has them", (0, 0, 10)),
        an_object("linked", (0, 10, 20), linked=True),
        an_object("merged since", (0, 20, 30), rows=9),
    ]
    made = plan([partition(next_=30, hot=30, deleted=deleted)], objects)
    first, second, third = slices.slice_plan(made, {0: (0, 30)})
    assert isinstance(first, ObjectSlice)
    assert isinstance(third, ObjectSlice)
    assert [list(BitMap64.deserialize(data)) for _, data in first.deleted] == [[3, 4]]
    assert (first.whole, second.whole, third.whole) == (False, True, True)  # type: ignore[union-attr]
    assert third.deleted == ()


@st.composite
def worlds(draw: st.DrawFn) -> tuple[slices.OffsetRanges, list[Slice], set[tuple[int, int]]]:
    """A plan with objects, gaps and deletions; ranges of it; and the live offsets in them."""
    partitions, objects, wanted, live = [], [], {}, set()
    for number in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 9), max_size=5))
        end = sum(lengths) + draw(st.integers(0, 9))
        dead = draw(st.sets(st.integers(0, max(end - 1, 0)), max_size=8)) if end else set()
        at = 0
        for length in lengths:
            if draw(st.booleans()):
                objects.append(an_object(f"{number}-{at}", (number, at, at + length)))
            at += length
        partitions.append(partition(number, 0, end, at, dead))
        first, next_ = sorted(draw(st.tuples(st.integers(0, end), st.integers(0, end))))
        if first < next_:
            wanted[number] = (first, next_)
            live |= {(number, o) for o in range(first, next_)} - {(number, o) for o in dead}
    pieces = slices.slice_plan(plan(partitions, objects), wanted)
    return wanted, pieces, live


@given(worlds(), st.integers(1, 7), st.integers(1, 3))
def test_every_live_offset_is_in_exactly_one_slice(
    world: tuple[slices.OffsetRanges, list[Slice], set[tuple[int, int]]], tasks: int, cores: int
) -> None:
    wanted, pieces, live = world
    divided = slices.divide_into_tasks(pieces, tasks, cores)
    assert len(divided) >= min(tasks, len(offsets(pieces)))
    for work in (pieces, [piece for task in divided for piece in task]):
        found = offsets(work)
        assert len(found) == len(set(found))
        assert live <= set(found)
        assert all(wanted[p][0] <= o < wanted[p][1] for p, o in found)


def test_small_slices_share_a_task_and_large_ones_do_not() -> None:
    small: list[Slice] = [FetchSlice(n, None, 0, 10) for n in range(1000)]
    assert len(slices.divide_into_tasks(small)) == 1
    large: list[Slice] = [FetchSlice(0, None, 0, 3 * slices.OFFSETS_PER_TASK)]
    assert [len(task) for task in slices.divide_into_tasks(large)] == [1, 1, 1]
    assert len(slices.divide_into_tasks([FetchSlice(0, None, 0, 100)], 4)) == 4
    assert slices.divide_into_tasks([]) == []


def spans_of(task: list[Slice]) -> list[tuple[int, int]]:
    return [
        (span.first, span.next)
        for piece in task
        if isinstance(piece, ObjectSlice)
        for span in piece.spans
    ]


def test_objects_are_split_at_row_groups_into_equal_work_for_all_cores() -> None:
    group = ROW_GROUP_ROWS
    few = [an_object("a", (0, 0, 100_000)), an_object("b", (0, 100_000, 1_000_000))]
    pieces = slices.slice_plan(
        plan([partition(next_=1_000_000, hot=1_000_000)], few), {0: (0, 1_000_000)}
    )
    middle = 100_000 + 3 * group
    assert [spans_of(task) for task in slices.divide_into_tasks(pieces, cores=2)] == [
        [(0, 100_000), (100_000, middle)],
        [(middle, 1_000_000)],
    ]
    assert len(slices.divide_into_tasks(pieces)) == 1
    assert len(slices.divide_into_tasks(pieces, cores=1000)) == 8
    assert [len(task) for task in slices.divide_into_tasks(pieces[:1], cores=2)] == [1]


def test_no_core_is_idle_while_another_has_two_tasks_left() -> None:
    many = 5 * slices.OFFSETS_PER_TASK
    large = plan([partition(next_=many, hot=many)], [an_object("a", (0, 0, many))])
    found = [
        spans_of(task)
        for task in slices.divide_into_tasks(slices.slice_plan(large, {0: (0, many)}), cores=2)
    ]
    sizes = [next_ - first for ((first, next_),) in found]
    assert len(sizes) == 6
    assert max(sizes) - min(sizes) <= 3 * ROW_GROUP_ROWS


def test_large_objects_do_not_share_a_task() -> None:
    heavy: list[Slice] = [
        ObjectSlice(name, slices.BYTES_PER_TASK, False, 7, (SliceSpan(0, n, n + 1, n),), whole=True)
        for n, name in enumerate("abc")
    ]
    assert [len(task) for task in slices.divide_into_tasks(heavy)] == [1, 1, 1]
