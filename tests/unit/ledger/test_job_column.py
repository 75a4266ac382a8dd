"""Numbers by offset."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.job_column import Column

OFFSETS = st.integers(0, 5000)


@given(st.lists(st.tuples(OFFSETS, st.integers(0, 255))))
def test_a_column_is_a_dictionary_with_zeros(pairs: list[tuple[int, int]]) -> None:
    column, model = Column("u1"), dict(pairs)
    for offset, value in pairs:
        column[offset] = value
    assert {offset: column[offset] for offset in range(5001)} == {
        offset: model.get(offset, 0) for offset in range(5001)
    }
    again = Column("u1", column.state())
    assert [again[offset] for offset in model] == list(model.values())


@given(st.sets(OFFSETS, min_size=1))
def test_many_numbers_are_set_at_once(offsets: set[int]) -> None:
    column, places = Column("i8"), np.array(sorted(offsets))
    column.set_many(places, 7)
    assert {offset for offset in range(5001) if column[offset] == 7} == offsets
    column.set_many(places, places * 2)
    assert [column[offset] for offset in sorted(offsets)] == [2 * o for o in sorted(offsets)]


def test_old_chunks_are_removed_unless_they_are_needed() -> None:
    column = Column("u4")
    for offset in (5, 1030, 2050, 9000):
        column[offset] = 1
    column[2050] = 0
    assert column.chunks() == {0, 1, 8}
    column.trim(9000, needed={1})
    assert [column[offset] for offset in (5, 1030, 9000)] == [0, 1, 1]
