import asyncio

import pytest

from penstock.formats import bodies
from penstock.formats.bodies import LinkBody, LinkPart, ObjectRef, Transaction
from penstock.log.append import links
from penstock.log.append.links import Links, Ranges
from penstock.model.errors import DurabilityUnmet, RunInvalid
from penstock.model.units import Offset, OffsetRange, PartitionId
from tests.broker.storage import nothing_uncaught

Future = asyncio.Future[Ranges]


def under_way() -> Future:
    return asyncio.get_running_loop().create_future()


def ranges(first: int, next_: int) -> Ranges:
    return {0: OffsetRange(Offset(first), Offset(next_))}


def test_a_link_begins_in_every_partition_where_that_is() -> None:
    refs = [ObjectRef("a", 2, 1, 1), ObjectRef("b", 3, 1, 1)]
    objects = {PartitionId(0): refs, PartitionId(4): refs[:1]}
    body, given = links.plan("app", 7, objects, lambda partition: Offset(10 * (partition + 1)))
    assert given == {
        0: OffsetRange(Offset(10), Offset(15)),
        4: OffsetRange(Offset(50), Offset(52)),
    }
    parts = [LinkPart(0, 10, refs), LinkPart(4, 50, refs[:1])]
    assert bodies.decode(LinkBody, body) == LinkBody("app", 7, parts)


@pytest.mark.parametrize("partition", [-1, 1 << 31])
def test_a_partition_that_cannot_be_is_refused(partition: int) -> None:
    objects = {PartitionId(partition): [ObjectRef("a", 2, 1, 1)]}
    with pytest.raises(RunInvalid, match=f"partition {partition} is not within"):
        links.plan("app", 7, objects, lambda _: Offset(0))


async def test_links_before_the_start_are_known() -> None:
    known = Links({"app": Transaction(5, {0: (3, 9)})})
    for epoch in (4, 5):
        future = known.known("app", epoch)
        assert future is not None
        assert await future == ranges(3, 9)
    assert known.known("app", 6) is None
    assert known.known("other", 1) is None


async def test_a_link_under_way_is_known_and_answers_when_it_is_done() -> None:
    known, future = Links({}), under_way()
    waiting = known.note("app", 1, future)
    again = known.known("app", 1)
    assert again is not None
    future.set_result(ranges(0, 2))
    assert await waiting == await again == ranges(0, 2)


async def test_a_cancelled_caller_does_not_undo_a_link() -> None:
    known, future = Links({}), under_way()
    known.note("app", 1, future).cancel()
    await asyncio.sleep(0)
    again = known.known("app", 1)
    assert again is not None
    future.set_result(ranges(0, 2))
    assert await again == ranges(0, 2)


async def test_of_several_under_way_each_answers_for_itself() -> None:
    known, first, second = Links({}), under_way(), under_way()
    known.note("app", 3, first)
    known.note("app", 5, second)
    known_links = {epoch: known.known("app", epoch) for epoch in range(2, 7)}
    first.set_result(ranges(0, 2))
    second.set_result(ranges(2, 9))
    got = {epoch: await future for epoch, future in known_links.items() if future is not None}
    assert got == {2: ranges(0, 2), 3: ranges(0, 2), 4: ranges(2, 9), 5: ranges(2, 9)}


async def test_a_completed_link_is_known_from_the_state_of_the_log() -> None:
    remembered: dict[str, Transaction] = {}
    known, future = Links(remembered), under_way()
    known.note("app", 1, future)
    remembered["app"] = Transaction(1, {0: (0, 2)})
    assert not [one for one in [known.known("app", 1)] if one is None or one.done()]
    future.set_result(ranges(0, 2))
    await asyncio.sleep(0)
    again = known.known("app", 1)
    assert again is not None
    assert await again == ranges(0, 2)
    remembered.clear()
    assert known.known("app", 1) is None


async def test_a_failed_link_is_forgotten_and_the_one_before_it_is_not() -> None:
    known, future = Links({"app": Transaction(1, {0: (0, 2)})}), under_way()
    waiting = known.note("app", 2, future)
    future.set_exception(DurabilityUnmet("t", "broken"))
    with pytest.raises(DurabilityUnmet):
        await waiting
    before = known.known("app", 1)
    assert before is not None
    assert await before == ranges(0, 2)
    assert known.known("app", 2) is None


async def test_links_that_fail_together_are_all_forgotten() -> None:
    known, first, second = Links({}), under_way(), under_way()
    waiting = [known.note("app", 1, first), known.note("app", 2, second)]
    for future in (first, second):
        future.set_exception(DurabilityUnmet("t", "broken"))
    await asyncio.gather(*waiting, return_exceptions=True)
    assert known.known("app", 1) is None
    assert known.known("app", 2) is None


async def test_a_later_link_is_not_forgotten_with_an_earlier_one() -> None:
    known, first, second = Links({}), under_way(), under_way()
    waiting = [known.note("app", 1, first), known.note("app", 2, second)]
    first.set_exception(DurabilityUnmet("t", "broken"))
    await asyncio.gather(*waiting[:1], return_exceptions=True)
    again = known.known("app", 1)
    assert again is not None
    second.set_result(ranges(0, 2))
    assert await again == ranges(0, 2)


async def test_a_failed_link_without_a_waiting_caller_is_no_unhandled_error() -> None:
    known, future = Links({}), under_way()
    known.note("app", 1, future).cancel()
    future.set_exception(DurabilityUnmet("t", "broken"))
    async with nothing_uncaught():
        await asyncio.sleep(0)
        del future
    assert known.known("app", 1) is None
