import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import FetchInvalid
from penstock.topics import FetchState


@pytest.mark.feature("F07", "F08", "F09")
@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ((1, 1, 1), "timeout_ms must be greater than 1"),
        ((0, 1, 1), "timeout_ms must be greater than 1"),
        ((-5, 1, 1), "timeout_ms must be greater than 1"),
        ((2, 0, 1), "min_messages must be at least 1"),
        ((2, 1, 0), "max_messages must be at least 1"),
        ((2, 1, 100_001), "max_messages must be at most 100_000"),
        ((2, 3, 2), "min_messages must be less than or equal to max_messages"),
        ((2, 100_001, 100_001), "max_messages must be at most 100_000"),
    ],
)
async def test_limits_out_of_range_are_refused(
    limits: tuple[int, int, int], complaint: str
) -> None:
    with pytest.raises(FetchInvalid, match=complaint):
        FetchState(*limits)


@pytest.mark.feature("F07", "F08", "F09")
@pytest.mark.parametrize("limits", [(2, 1, 1), (2, 100_000, 100_000), (60_000, 1, 100_000)])
async def test_limits_at_their_bounds_are_taken(limits: tuple[int, int, int]) -> None:
    state = FetchState(*limits)
    assert (state.min_messages, state.max_messages) == limits[1:]


@pytest.mark.feature("F07")
async def test_the_deadline_is_half_a_second_by_default_and_a_minute_at_most() -> None:
    now = asyncio.get_running_loop().time()
    assert now + 0.5 <= FetchState().deadline <= asyncio.get_running_loop().time() + 0.5
    now = asyncio.get_running_loop().time()
    assert now + 60 <= FetchState(10**9).deadline <= asyncio.get_running_loop().time() + 60


@pytest.mark.feature("F14")
async def test_the_maximum_is_divided_in_request_order() -> None:
    state = FetchState(max_messages=5, fetches=3)
    assert [state.join().left for _ in range(3)] == [2, 2, 1]
    state = FetchState(max_messages=2, fetches=3)
    assert [state.join().left for _ in range(3)] == [1, 1, 0]


@pytest.mark.feature("F09")
async def test_a_returned_share_can_be_taken_once() -> None:
    state = FetchState(max_messages=4, fetches=2)
    one, other = state.join(), state.join()
    one.give_back()
    one.give_back()
    assert (one.left, other.left) == (2, 4)
    other.take(3, 0)
    assert (one.left, other.left) == (1, 1)
    one.take(1, 0)
    assert state.full
    assert (one.left, other.left) == (0, 0)


@pytest.mark.feature("F05")
async def test_parked_fetches_wake_when_enough_is_collected_or_given_back() -> None:
    state = FetchState(min_messages=2, max_messages=4, fetches=2)
    one, other = state.join(), state.join()
    park = state.park()
    one.take(1, 0)
    assert not park.done()
    other.give_back()
    assert park.done()
    park = state.park()
    one.take(1, 0)
    assert park.done()


async def test_bytes_are_a_budget_too() -> None:
    state = FetchState(bytes_max=100, fetches=2)
    one, other = state.join(), state.join()
    one.take(1, 99)
    assert other.left
    one.take(1, 1)
    assert state.full
    assert state.enough
    assert not other.left


@pytest.mark.feature("F09")
@given(
    st.integers(1, 50),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.booleans())),
)
def test_shares_never_add_up_to_more_than_the_maximum(
    most: int, fetches: int, steps: list[tuple[int, int, bool]]
) -> None:
    async def run() -> None:
        state = FetchState(max_messages=most, fetches=fetches)
        shares = [state.join() for _ in range(fetches)]
        for index, messages, gives_back in steps:
            share = shares[index % fetches]
            share.take(min(messages, share.left), 0)
            if gives_back:
                share.give_back()
            assert 0 <= state.collected <= most
        for share in shares:
            share.give_back()
        assert shares[0].left == most - state.collected

    asyncio.run(run())
