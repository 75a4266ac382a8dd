"""What schedules produce; when they do is in test_schedules.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from penstock.topics.streams.schedule_table import Due
from penstock.topics.streams.storing import Storing
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.ticks import LATER_MAX, Tick, Ticks
from penstock.topics.streams.window import Window
from tests.unit.tiers.core import World
from tests.unit.topics.streaming import Streaming, block, stream_all

FAR = "@at 2100-01-01T00:00:00Z"


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    streaming = await stream_all(world)
    yield streaming
    streaming.close()


async def begun(made: Streaming, **config: object) -> tuple[Stream, Ticks]:
    stream = await made.create("s", subjects=["s.>"], allow_msg_schedules=True, **config)
    return stream, Ticks(stream, Storing(stream, Window(0, lambda: 0)))


async def schedule(made: Streaming, subject: str, *fields: str, pattern: str = FAR) -> Due:
    told = block(f"Nats-Schedule: {pattern}", "Nats-Schedule-Target: s.t", *fields)
    answer = await made.publish(subject, subject.encode(), told)
    assert isinstance(answer, dict)
    return Due(0, answer["seq"] - 1, subject.encode())


async def fire(ticks: Ticks, *due: Due) -> list[Tick]:
    return [tick async for some in ticks.fire(list(due), 0) for tick in some]


async def texts(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 1000) for text in rows.payloads]


async def test_those_that_are_due_together_are_stored_in_their_order(made: Streaming) -> None:
    stream, ticks = await begun(made)
    one, two = await schedule(made, "s.1"), await schedule(made, "s.2")
    fired = await fire(ticks, two, one)
    assert [(tick.due, tick.next) for tick in fired] == [(one, None), (two, None)]
    assert await texts(stream) == [b"s.1", b"s.2"]
    assert (stream.first_seq, stream.last_seq) == (3, 4)


async def test_one_that_is_gone_produces_nothing(made: Streaming) -> None:
    stream, ticks = await begun(made)
    one, two = await schedule(made, "s.1"), await schedule(made, "s.2")
    await stream.delete([one.offset])
    assert [tick.due for tick in await fire(ticks, one, two)] == [two]
    assert await fire(ticks, one, two) == []


async def test_one_that_is_being_ended_produces_nothing(made: Streaming) -> None:
    """Between the look at the schedule and the append of what it produces."""
    stream, ticks = await begun(made)
    due = await schedule(made, "s.1")
    made_of = await ticks._made([due], 0)
    stream.keeper.drop_soon(stream.first_offset, [due.offset], b"s.1")
    assert await ticks._store(made_of) == []
    await stream.log.writer.flush()
    assert await texts(stream) == []


async def test_those_that_roll_up_replace_each_other(made: Streaming) -> None:
    stream, ticks = await begun(made)
    await made.publish("s.t", b"before")
    rolls = "Nats-Schedule-Rollup: sub"
    one, two = await schedule(made, "s.1", rolls), await schedule(made, "s.2", rolls)
    assert [tick.due for tick in await fire(ticks, one, two)] == [one, two]
    assert await texts(stream) == [b"s.2"]


async def test_what_nobody_wants_is_not_kept(made: Streaming) -> None:
    stream, ticks = await begun(made)
    due = await schedule(made, "s.1", pattern="@every 5s")
    stream.interested = lambda subject: subject != b"s.t"
    (tick,) = await fire(ticks, due)
    assert tick.next is not None
    assert await texts(stream) == [b"s.1"]
    assert stream.last_seq == 2


async def test_behind_too_many_messages_a_schedule_counts_no_more(made: Streaming) -> None:
    _, ticks = await begun(made)
    target = await schedule(made, "s.1")
    for _ in range(LATER_MAX - 1):
        (tick,) = await ticks._made([await schedule(made, "s.2")], 0)
        await ticks._store([tick._replace(subject=b"s.1")])
    assert len(await ticks._made([target], 0)) == 1
    (tick,) = await ticks._made([await schedule(made, "s.2")], 0)
    await ticks._store([tick._replace(subject=b"s.1")])
    assert await ticks._made([target], 0) == []


async def test_what_is_too_large_is_left_out(made: Streaming) -> None:
    stream, ticks = await begun(made, max_msg_size=150)
    one, two = await schedule(made, "s.1"), await schedule(made, "s.2")
    first, second = await ticks._made([one, two], 0)
    fired = await ticks._store([first._replace(payload=b"x" * 150), second])
    assert [tick.due for tick in fired] == [one, two]
    assert await texts(stream) == [b"s.1", b"s.2"]
    assert stream.last_seq == 3
