"""Where consumers begin, by deliver policy and filter."""

from typing import Any

import pytest

from tests.unit.delivery.lab import NO_MESSAGES, Lab, Peer, lab
from tests.unit.tiers.core import World


async def filled(here: Lab) -> Peer:
    """A stream with dp.a, dp.b, dp.a, dp.b."""
    peer = await here.peer()
    await peer.stream("DP", "dp.*")
    for subject in ("dp.a", "dp.b", "dp.a", "dp.b"):
        await peer.stored(subject, subject.encode())
    return peer


async def all_of(peer: Peer, name: str) -> list[int]:
    """Sequences of everything that is delivered now."""
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
async def test_a_consumer_begins_as_its_policy_says(
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
async def test_a_filter_that_covers_what_the_stream_takes_now_leaves_out_what_it_took_before(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.api("STREAM.UPDATE.DP", {"name": "DP", "subjects": ["dp.a"]})
        await peer.consumer("DP", "c", filter_subject="dp.a")
        assert await all_of(peer, "c") == [1, 3]


async def test_a_start_before_what_is_kept_is_at_the_first_message(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.api("STREAM.PURGE.DP", {"seq": 3})
        info = await peer.consumer("DP", "c", deliver_policy="by_start_sequence", opt_start_seq=1)
        assert info["delivered"]["stream_seq"] == 2
        assert await all_of(peer, "c") == [3, 4]
