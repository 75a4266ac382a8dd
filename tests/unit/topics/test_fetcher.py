import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import names
from penstock.model.batch import ENVELOPE
from penstock.model.errors import OffsetGone, Overloaded, PartitionInvalid, ResourceUnknown
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset
from penstock.topics import Fetched, Fetcher, FetchState
from tests.eventually import eventually
from tests.unit.topics.lines import Known, Lines, topic

LONG_MS = 50_000


def _fetcher(source: Lines, *names_: str, fetches_max: int = 100) -> Fetcher:
    return Fetcher(Known(*map(topic, names_)), source, fetches_max)


def _payloads(fetched: Fetched) -> list[bytes]:
    payloads: list[bytes] = fetched.table().column("payload").to_pylist()
    return payloads


async def _fetch_all(
    fetcher: Fetcher, state: FetchState, requests: Sequence[tuple[str, int]]
) -> list[Fetched]:
    tasks = [
        asyncio.create_task(fetcher.fetch(names.topic(name), None, Offset(offset), state))
        for name, offset in requests
    ]
    return await asyncio.gather(*tasks)


async def _parked(fetcher: Fetcher, count: int) -> None:
    async def there() -> bool:
        return fetcher.parked == count

    await eventually(there)


@pytest.mark.feature("F01", "F02", "F04")
async def test_messages_from_the_middle_of_a_batch_on() -> None:
    source = Lines(batch_messages=4)
    source.push("a", 10)
    fetched = await _fetcher(source, "a").fetch(names.topic("a"), None, Offset(5), FetchState())
    assert (fetched.start_offset, fetched.end_offset, fetched.messages) == (5, 9, 5)
    table = fetched.table()
    assert table.schema == fetched.schema == ENVELOPE
    assert table.column("offset").to_pylist() == [5, 6, 7, 8, 9]
    assert _payloads(fetched) == [b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.feature("F12", "F09")
async def test_the_maximum_trims_the_last_batch() -> None:
    source = Lines()
    source.push("a", 10)
    state = FetchState(LONG_MS, max_messages=6)
    fetched = await _fetcher(source, "a").fetch(names.topic("a"), None, Offset(1), state)
    assert (fetched.start_offset, fetched.end_offset) == (1, 6)


@pytest.mark.feature("F13", "F07")
async def test_at_the_deadline_nothing_is_a_success() -> None:
    source = Lines()
    fetched = await _fetcher(source, "a").fetch(names.topic("a"), None, Offset(7), FetchState(5))
    assert (fetched.start_offset, fetched.end_offset, fetched.batches) == (7, 7, [])
    assert fetched.table().num_rows == 0
    assert not source.waiting()


@pytest.mark.feature("F13")
async def test_a_read_that_takes_too_long_ends_with_the_messages_read_so_far() -> None:
    source = Lines()
    source.push("a", 4)

    async def stuck_at_the_second(_: str) -> None:
        if reads:
            await asyncio.Event().wait()
        reads.append(1)

    reads: list[int] = []
    source.before_read = stuck_at_the_second
    source.push("a", 8)
    fetched = await _fetcher(source, "a").fetch(names.topic("a"), None, Offset(0), FetchState(20))
    assert fetched.messages == 4


async def test_an_error_that_looks_like_a_deadline_is_an_error() -> None:
    source = Lines()

    async def fail(_: str) -> None:
        raise TimeoutError("the store")

    source.before_read = fail
    with pytest.raises(TimeoutError, match="the store"):
        await _fetcher(source, "a").fetch(names.topic("a"), None, Offset(0), FetchState(LONG_MS))


@pytest.mark.feature("F10")
async def test_a_push_wakes_a_fetch_that_waits_at_the_head() -> None:
    source = Lines()
    fetcher = _fetcher(source, "a")
    state = FetchState(LONG_MS)
    task = asyncio.create_task(fetcher.fetch(names.topic("a"), None, Offset(0), state))
    await _parked(fetcher, 1)
    source.push("a", 1)
    assert _payloads(await task) == [b"0"]
    assert (fetcher.parked, fetcher.running, source.waiting()) == (0, 0, 0)


@pytest.mark.feature("F10", "F08")
async def test_below_the_minimum_it_waits_on() -> None:
    source = Lines()
    fetcher = _fetcher(source, "a")
    state = FetchState(LONG_MS, min_messages=3)
    task = asyncio.create_task(fetcher.fetch(names.topic("a"), None, Offset(0), state))
    await _parked(fetcher, 1)
    source.push("a", 2)
    await asyncio.sleep(0.01)
    await _parked(fetcher, 1)
    source.push("a", 2)
    assert (await task).messages == 4


@pytest.mark.feature("F22")
async def test_an_offset_past_the_head_waits_for_it() -> None:
    source = Lines()
    source.push("a", 2)
    fetcher = _fetcher(source, "a")
    task = asyncio.create_task(
        fetcher.fetch(names.topic("a"), None, Offset(4), FetchState(LONG_MS))
    )
    for _ in range(3):
        await _parked(fetcher, 1)
        source.push("a", 1)
        await asyncio.sleep(0)
    assert _payloads(await task) == [b"4"]


@pytest.mark.feature("F22")
async def test_an_offset_before_the_start_is_an_error_that_names_the_earliest() -> None:
    source = Lines()
    source.push("a", 10)
    source.starts["a"] = 8
    with pytest.raises(OffsetGone, match="offset 3 is gone; the earliest is 8"):
        await _fetcher(source, "a").fetch(names.topic("a"), None, Offset(3), FetchState())


@pytest.mark.feature("F11", "F05")
async def test_a_sibling_that_reaches_the_minimum_ends_the_wait() -> None:
    source = Lines()
    fetcher = _fetcher(source, "a", "b")
    state = FetchState(LONG_MS, min_messages=2, fetches=2)
    fetching = asyncio.create_task(_fetch_all(fetcher, state, [("a", 0), ("b", 0)]))
    await _parked(fetcher, 2)
    source.push("b", 2)
    empty, filled = await fetching
    assert (empty.messages, filled.messages) == (0, 2)
    assert not source.waiting()


@pytest.mark.feature("F11")
async def test_both_siblings_together_reach_the_minimum() -> None:
    source = Lines()
    fetcher = _fetcher(source, "a", "b")
    state = FetchState(LONG_MS, min_messages=4, fetches=2)
    fetching = asyncio.create_task(_fetch_all(fetcher, state, [("a", 0), ("b", 0)]))
    await _parked(fetcher, 2)
    source.push("b", 2)
    await asyncio.sleep(0.01)
    await _parked(fetcher, 2)
    source.push("a", 2)
    assert [fetched.messages for fetched in await fetching] == [2, 2]


@pytest.mark.feature("F14")
async def test_every_topic_gets_its_chance_and_the_maximum_is_used() -> None:
    source = Lines()
    for name in "ab":
        source.push(name, 50)
    fetcher = _fetcher(source, "a", "b", "c")
    state = FetchState(LONG_MS, max_messages=10, fetches=2)
    assert [f.messages for f in await _fetch_all(fetcher, state, [("a", 0), ("b", 0)])] == [5, 5]
    state = FetchState(LONG_MS, max_messages=10, fetches=2)
    assert [f.messages for f in await _fetch_all(fetcher, state, [("a", 0), ("c", 0)])] == [10, 0]


@pytest.mark.feature("F09", "F14")
async def test_a_fetch_waits_for_budget_when_the_minimum_needs_it() -> None:
    source = Lines()
    source.push("a", 50)
    opened = asyncio.Event()

    async def slow(name: str) -> None:
        if name == "b":
            await opened.wait()

    source.before_read = slow
    fetcher = _fetcher(source, "a", "b")
    state = FetchState(LONG_MS, min_messages=10, max_messages=10, fetches=2)
    fetching = asyncio.create_task(_fetch_all(fetcher, state, [("a", 0), ("b", 0)]))
    await _parked(fetcher, 1)
    opened.set()
    assert [fetched.messages for fetched in await fetching] == [10, 0]


@pytest.mark.feature("F15")
async def test_a_slow_topic_does_not_delay_the_messages_of_others() -> None:
    source = Lines()
    source.push("a", 4)
    source.push("b", 4)
    reading: list[str] = []

    async def slow(name: str) -> None:
        reading.append(name)
        if name == "a":
            await asyncio.Event().wait()

    source.before_read = slow
    fetcher = _fetcher(source, "a", "b")
    state = FetchState(100, min_messages=4, fetches=2)
    stuck, quick = await _fetch_all(fetcher, state, [("a", 0), ("b", 0)])
    assert (stuck.messages, quick.messages) == (0, 4)
    assert reading[:2] == ["a", "b"]


@pytest.mark.feature("F21")
async def test_an_unknown_topic_does_not_hold_up_the_others() -> None:
    source = Lines()
    source.push("a", 50)
    fetcher = _fetcher(source, "a")
    state = FetchState(LONG_MS, min_messages=10, max_messages=10, fetches=2)
    unknown = fetcher.fetch(names.topic("x"), None, Offset(0), state)
    known = fetcher.fetch(names.topic("a"), None, Offset(0), state)
    answers = await asyncio.gather(unknown, known, return_exceptions=True)
    assert isinstance(answers[0], ResourceUnknown)
    assert isinstance(answers[1], Fetched)
    assert answers[1].messages == 10


@pytest.mark.feature("F03")
async def test_the_partition_value_is_checked() -> None:
    value = PartitionValue("Int64", 7)
    with pytest.raises(PartitionInvalid, match="does not specify a partition key"):
        await _fetcher(Lines(), "a").fetch(names.topic("a"), value, Offset(0), FetchState())


@pytest.mark.feature("F06", "F31")
async def test_cancelling_frees_every_waiter() -> None:
    source = Lines()
    fetcher = _fetcher(source, "a", "b")
    state = FetchState(LONG_MS, fetches=2)
    fetching = asyncio.create_task(_fetch_all(fetcher, state, [("a", 0), ("b", 0)]))
    await _parked(fetcher, 2)
    fetching.cancel()
    await asyncio.wait([fetching])
    assert (fetcher.parked, fetcher.running, source.waiting()) == (0, 0, 0)


@pytest.mark.feature("F17")
async def test_a_fetch_over_the_limit_is_refused_without_effect_on_others() -> None:
    source = Lines()
    fetcher = _fetcher(source, "a", fetches_max=1)
    state = FetchState(LONG_MS)
    task = asyncio.create_task(fetcher.fetch(names.topic("a"), None, Offset(0), state))
    await _parked(fetcher, 1)
    with pytest.raises(Overloaded, match=r"fetch\.max_running is 1; retry later"):
        await fetcher.fetch(names.topic("a"), None, Offset(0), FetchState(LONG_MS))
    source.push("a", 1)
    assert (await task).messages == 1
    source.push("a", 1)
    assert (await fetcher.fetch(names.topic("a"), None, Offset(0), FetchState())).messages == 2


@pytest.mark.feature("F31")
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 12))
def test_no_wake_up_is_lost_whatever_the_order_of_steps(
    seed: int, fetches: int, pushes: int
) -> None:
    """A push may land between any two steps of a fetch; it must never sleep through it."""

    async def run() -> None:
        source, chance = Lines(), random.Random(seed)
        left = pushes

        async def meddle(name: str) -> None:
            nonlocal left
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if left and chance.random() < 0.5:
                left -= 1
                source.push(chance.choice("ab"), 1)

        source.before_read = meddle
        fetcher = _fetcher(source, "a", "b")
        state = FetchState(LONG_MS, min_messages=pushes, fetches=fetches)
        requests = [(chance.choice("ab"), 0) for _ in range(fetches)]
        fetching = asyncio.create_task(_fetch_all(fetcher, state, requests))
        while not fetching.done():
            await asyncio.sleep(0)
            if chance.random() < 0.1:
                source.push(chance.choice("ab"), 1)
        results = await fetching
        assert sum(fetched.messages for fetched in results) >= pushes
        assert not source.waiting()

    asyncio.run(run())


@pytest.mark.feature("F09", "F14")
@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(0, 2**32),
)
def test_many_tasks_share_one_budget(held: list[int], most: int, seed: int) -> None:
    """Never more than the maximum, and all of it when there is that much to be had."""

    async def run() -> None:
        source, chance = Lines(batch_messages=3), random.Random(seed)

        async def meddle(_: str) -> None:
            for _turn in range(chance.randrange(3)):
                await asyncio.sleep(0)

        source.before_read = meddle
        topics = [f"t{index}" for index in range(len(held))]
        for name, count in zip(topics, held, strict=True):
            source.push(name, count)
        available = sum(held)
        enough = max(1, min(most, available))
        state = FetchState(5 if not available else LONG_MS, enough, most, fetches=len(held))
        results = await _fetch_all(_fetcher(source, *topics), state, [(n, 0) for n in topics])
        assert sum(fetched.messages for fetched in results) == min(most, available)
        for fetched, count in zip(results, held, strict=True):
            expected = [b"%d" % index for index in range(fetched.messages)]
            assert _payloads(fetched) == expected
            assert fetched.messages or not count or most < len(held)

    asyncio.run(run())
