"""The order of delivery, and the numbers that clients know."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.job_states import (
    OFFSET_LIMIT,
    PRIORITY_MAX,
    TRANSITIONS,
    JobState,
    key_of,
    next_priority,
    offset_of,
    priority_of,
)

JOBS = st.tuples(st.integers(0, PRIORITY_MAX), st.integers(0, OFFSET_LIMIT - 1))


@given(JOBS, JOBS)
def test_keys_sort_by_descending_priority_then_by_offset(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    before = (-one[0], one[1]) < (-other[0], other[1])
    assert (key_of(*one) < key_of(*other)) == before
    assert (priority_of(key_of(*one)), offset_of(key_of(*one))) == one
    assert 0 <= key_of(*one) < next_priority(key_of(*one)) <= 1 << 63


def test_states_have_the_numbers_that_clients_know() -> None:
    assert {state.name: int(state) for state in JobState if state} == {
        "QUEUED": 1001,
        "INFLIGHT": 1002,
        "DELIVERED": 1003,
        "DEAD": 1004,
    }
    assert all(target.name == wanted for (_, wanted), target in TRANSITIONS.items())
