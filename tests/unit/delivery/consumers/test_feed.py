"""The undelivered messages of a consumer, and their number."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.delivery.consumers.feed import Feed
from penstock.model.subjects import Filter
from tests.broker.consumers import NO_MESSAGES, Lab, Peer, lab
from tests.broker.storage import World


async def filled(here: Lab) -> Peer:
    """Create a stream with messages dp.a, dp.b, dp.a, dp.b."""
    peer = await here.peer()
    await peer.stream("DP", "dp.*")
    for subject in ("dp.a", "dp.b", "dp.a", "dp.b"):
        await peer.stored(subject, subject.encode())
    return peer


async def all_of(peer: Peer, name: str) -> list[int]:
    """The sequences of all messages that are delivered now."""
    sid = peer.pull("DP", name, {"batch": 100, "no_wait": True})
    found: list[int] = []
    while (message := await peer.next(sid)).headers != NO_MESSAGES:
        found.append(int(message.reply.split(".")[5]))
    return found


@pytest.mark.feature("P13")
@pytest.mark.parametrize(
    ("config", "before", "delivered"),
    [
        ({}, 0, [1, 2, 3, 4]),
        ({"deliver_policy": "last"}, 3, [4]),
        ({"deliver_policy": "last", "filter_subject": "dp.a"}, 2, [3]),
        ({"deliver_policy": "new"}, 4, []),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 2, [3, 4]),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": "1970-01-01T00:00:00Z"},
            0,
            [1, 2, 3, 4],
        ),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2199-01-01T00:00:00Z"}, 4, []),
        ({"deliver_policy": "last_per_subject", "filter_subject": "dp.*"}, 2, [3, 4]),
        ({"deliver_policy": "last_per_subject", "filter_subject": "dp.a"}, 2, [3]),
        ({"filter_subject": "dp.b"}, 0, [2, 4]),
        ({"filter_subjects": ["dp.a", "dp.b"]}, 0, [1, 2, 3, 4]),
        ({"filter_subject": "dp.c"}, 0, []),
    ],
)
async def test_a_consumer_starts_as_its_deliver_policy_says(
    world: World, config: dict[str, Any], before: int, delivered: list[int]
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        info = await peer.consumer("DP", "c", **config)
        assert info["delivered"] == {"consumer_seq": 0, "stream_seq": before}
        assert info["num_pending"] == len(delivered)
        assert await all_of(peer, "c") == delivered
        assert (await peer.info("DP", "c"))["num_pending"] == 0


@pytest.mark.feature("P13")
async def test_behind_the_last_of_each_subject_everything_is_delivered(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("DP", "c", deliver_policy="last_per_subject", filter_subject="dp.>")
        await peer.stored("dp.a", b"5", b"6")
        assert (await peer.info("DP", "c"))["num_pending"] == 4
        assert await all_of(peer, "c") == [3, 4, 5, 6]


@pytest.mark.feature("P13")
async def test_a_filter_that_covered_the_stream_still_holds_when_the_stream_takes_more(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("DP", "c", filter_subject="dp.*")
        await peer.api("STREAM.UPDATE.DP", {"name": "DP", "subjects": ["dp.*", "other"]})
        await peer.stored("other", b"5")
        await peer.stored("dp.c", b"6")
        assert await all_of(peer, "c") == [1, 2, 3, 4, 6]


@pytest.mark.feature("P13")
async def test_a_filter_that_covers_the_current_subjects_excludes_older_messages(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.api("STREAM.UPDATE.DP", {"name": "DP", "subjects": ["dp.a"]})
        await peer.consumer("DP", "c", filter_subject="dp.a")
        assert await all_of(peer, "c") == [1, 3]


async def test_a_start_before_the_first_message_is_at_the_first_message(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.api("STREAM.PURGE.DP", {"seq": 3})
        info = await peer.consumer("DP", "c", deliver_policy="by_start_sequence", opt_start_seq=1)
        assert info["delivered"]["stream_seq"] == 2
        assert await all_of(peer, "c") == [3, 4]


A = Filter.parse(b"s.a")
B = Filter.parse(b"s.b")


async def alternating(here: Lab, count: int = 10) -> None:
    """Create a stream with messages s.a, s.b, s.a..."""
    peer = await here.peer()
    await peer.stream("S", "s.>")
    for number in range(count):
        await peer.stored("s.a" if number % 2 == 0 else "s.b", b"%d" % number)


def offsets(feed: Feed, limit: int = 100) -> list[int]:
    rows = feed.peek(limit)
    assert rows is not None
    return list(rows.offsets)


async def test_messages_are_in_order_and_only_advance_moves_the_cursor(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        feed = Feed(here.stream("S"), (), 2)
        assert (feed.ahead(), offsets(feed, 3)) == (8, [2, 3, 4])
        assert offsets(feed, 3) == [2, 3, 4]
        feed.advance(4, 2)
        assert (feed.ahead(), offsets(feed, 3)) == (6, [4, 5, 6])
        feed.advance(10, 6)
        assert (feed.ahead(), offsets(feed)) == (0, [])


async def test_a_filter_selects_messages_and_counts_the_remaining_ones(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        feed = Feed(here.stream("S"), (B,), 0)
        assert (feed.ahead(), offsets(feed, 2)) == (5, [1, 3])
        feed.advance(4, 2)
        assert feed.ahead() == 3
        peer = await here.peer()
        await peer.stored("s.b", b"new")
        assert (feed.ahead(), offsets(feed)) == (4, [5, 7, 9, 10])
        both = Feed(here.stream("S"), (A, B), 8)
        assert (both.ahead(), offsets(both)) == (3, [8, 9, 10])


async def test_matches_that_lie_apart_are_found_together(world: World) -> None:
    async with lab(world) as here:
        await alternating(here, 3)
        peer = await here.peer()
        for number in range(4):
            await peer.stored("s.c", b"%d" % number)
        await peer.stored("s.b", b"last")
        feed = Feed(here.stream("S"), (B,), 0)
        assert offsets(feed, 2) == [1, 7]
        assert offsets(feed, 1) == [1]
        assert (feed.ahead(), feed.next_offset) == (2, 0)


async def test_messages_on_disk_must_be_awaited(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        stream = here.stream("S")
        feed, plain = Feed(stream, (B,), 0), Feed(stream, (), 0)
        stream.opened.log._tail.clear()
        assert (feed.ahead(), feed.peek(2), plain.peek(2)) == (None, None, None)
        assert await feed.count() == 5
        assert feed.ahead() == 5
        assert list((await feed.read(2)).offsets) == [1, 3]
        assert list((await plain.read(2)).offsets) == [0, 1]


async def test_the_subject_index_replaces_a_long_scan(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        feed = Feed(here.stream("S"), (Filter.parse(b"s.none"),), 0, scan_max=4)
        assert feed.ahead() is None
        assert await feed.count() == 0
        assert (await feed.read(5)).count == 0
        assert (feed.next_offset, feed.ahead()) == (10, 0)


async def test_a_deletion_invalidates_the_count(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        stream = here.stream("S")
        feed = Feed(stream, (B,), 0)
        assert feed.ahead() == 5
        await stream.delete([3])
        assert (feed.ahead(), offsets(feed, 2)) == (4, [1, 5])
        await stream.purge(6)
        assert (feed.ahead(), offsets(feed)) == (2, [7, 9])
        assert list((await Feed(stream, (), 0).read(2)).offsets) == [6, 7]


async def test_picked_offsets_precede_the_following_range(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        stream = here.stream("S")
        feed = Feed(stream, (B,), 1, [1, 5], 8)
        assert (feed.ahead(), feed.peek(5)) == (3, None)
        assert list((await feed.read(5)).offsets) == [1, 5]
        feed.advance(2, 1)
        assert (feed.ahead(), list((await feed.read(5)).offsets)) == (2, [5])
        feed.advance(6, 1)
        assert (feed.ahead(), offsets(feed)) == (1, [9])


async def test_deleted_picked_offsets_are_skipped(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        stream = here.stream("S")
        feed = Feed(stream, (), 1, [1, 5], 8)
        await stream.delete([1, 5])
        assert list((await feed.read(5)).offsets) == [8, 9]


async def test_filters_can_be_replaced(world: World) -> None:
    async with lab(world) as here:
        await alternating(here)
        feed = Feed(here.stream("S"), (), 0)
        assert feed.wants(b"anything")
        feed.restrict((A,))
        assert (feed.wants(b"s.a"), feed.wants(b"s.b"), feed.ahead()) == (True, False, 5)


def test_the_cache_of_subjects_has_a_limit() -> None:
    feed = Feed(None, (A,), 0, cached_subjects_max=3)  # type: ignore[arg-type]
    for number in range(10):
        assert not feed.wants(b"s.%d" % number)
    assert feed.wants(b"s.a")
    assert len(feed._matches_by_subject) <= 3
