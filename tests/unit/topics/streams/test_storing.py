"""How messages get into a log; what is answered then is in test_publisher.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.model.batch import OffsetRange
from penstock.model.run import Run
from penstock.model.units import Offset
from penstock.topics.streams.storing import Storing
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.window import Window
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.parser import Publishes
from tests.unit.tiers.core import World
from tests.unit.topics.streaming import Streaming, stream_all

SECOND_US = 1_000_000


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    streaming = await stream_all(world)
    yield streaming
    streaming.close()


async def storing_of(made: Streaming) -> tuple[Storing, Stream, Window]:
    stream = await made.create("s", subjects=["s.>"])
    window = Window(SECOND_US, made.served.host.clock.now_us)
    return Storing(stream, window), stream, window


async def test_a_run_of_one_subject_has_it_once(made: Streaming) -> None:
    storing, _, _ = await storing_of(made)
    same = Publishes([b"s.a", b"s.a"], [b"", b""], None, [b"1", b"2"])
    assert storing.log_run(same) == Run(b"s.a", [b"1", b"2"])
    other = Publishes([b"s.a", b"s.b"], [b"", b""], [b"h", b""], [b"1", b"2"])
    assert storing.log_run(other) == Run([b"s.a", b"s.b"], [b"1", b"2"], [b"h", b""])


async def test_what_was_taken_can_be_found_once_it_is_settled(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    stream.log.append(Run(b"s.a", [b"1", b"2"]))
    assert (storing.taken, stream.next_offset) == (2, 0)
    assert await storing.last_sequence(b"s.a") == 2
    assert stream.next_offset == 2
    assert await storing.last_sequence(b"s.b") == 0
    with pytest.raises(ApiError, match="missing sequence"):
        await storing.last_sequence(b"s..a")


async def test_ids_are_known_unless_their_messages_are_not_stored(made: Streaming) -> None:
    storing, stream, window = await storing_of(made)
    stored = stream.log.append(Run(b"s.a", [b"1"]))
    storing.remember({b"i": 1}, stored)
    assert await storing.stored_as(b"i") == 1
    assert stored.done()
    assert await storing.stored_as(b"j") is None
    lost: asyncio.Future[OffsetRange] = asyncio.get_running_loop().create_future()
    storing.remember({b"j": 2, b"k": 3}, lost)
    lost.cancel()
    await asyncio.sleep(0)
    assert (window.find(b"j"), window.find(b"k"), window.find(b"i")) == (None, None, 1)


async def test_what_a_message_replaces(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    for subject in (b"s.a", b"s.b", b"s.a"):
        stream.log.append(Run(subject, [b"x"]))
    assert await storing.replaced(b"s.a", None) == []
    assert await storing.replaced(b"s.a", b"all") == [(3, [], b"s.a")]
    assert await storing.replaced(b"s.a", b"sub") == [(0, [0, 2], b"s.a")]
    ended = await storing.replaced(b"s.a", b"sub", b"s.b")
    assert ended == [(0, [0, 2], b"s.a"), (0, [1], b"s.b")]


async def test_a_message_expires_only_if_it_was_stored(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    noted: list[tuple[int, int]] = []
    stream.expires = lambda offset, ttl_ns: noted.append((offset, ttl_ns))
    stored = stream.log.append(Run(b"s.a", [b"x"]))
    storing.expire(0, 5, stored)
    lost: asyncio.Future[OffsetRange] = asyncio.get_running_loop().create_future()
    storing.expire(1, 5, lost)
    lost.cancel()
    await stored
    await asyncio.sleep(0)
    assert noted == [(0, 5)]


async def test_what_is_dropped_goes_with_what_was_appended_last(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    await made.push(stream, b"1", b"2", subject=b"s.a")
    await storing.make_room(1, 10)
    stored = stream.log.append(Run(b"s.a", [b"3"]))
    storing.drop(Offset(0), [0], b"s.a")
    await stored
    assert stream.messages == 2
