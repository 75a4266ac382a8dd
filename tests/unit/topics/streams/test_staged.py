"""Messages that are checked together; what a batch is answered is in test_batches.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.topics.streams.counters import Sums
from penstock.topics.streams.staged import Stage
from penstock.topics.streams.storing import Storing
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.window import Window
from penstock.wire.jetstream.errors import ApiError
from tests.unit.tiers.core import World
from tests.unit.topics.streaming import Streaming, block, stream_all


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    streaming = await stream_all(world)
    yield streaming
    streaming.close()


async def stage_of(made: Streaming, **config: object) -> tuple[Stage, Stream]:
    stream = await made.create("s", subjects=["s.>"], **config)
    storing = Storing(stream, Window(1_000_000, made.served.host.clock.now_us))
    return Stage(stream, Sums(stream, storing), storing), stream


async def payloads(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]


async def test_what_passed_is_stored_as_one_run(made: Streaming) -> None:
    stage, stream = await stage_of(made)
    staged = stage.begin()
    await stage.add(staged, b"s.a", b"", b"1")
    await stage.add(staged, b"s.b", block("Nats-Expected-Last-Subject-Sequence: 0"), b"2")
    await stage.room(staged)
    stored = stage.store(staged)
    assert stored is not None
    assert await stored == (0, 2)
    assert await payloads(stream) == [b"1", b"2"]


async def test_a_moment_that_has_passed_is_checked_again(made: Streaming) -> None:
    stage, stream = await stage_of(made)
    staged = stage.begin()
    await stage.add(staged, b"s.a", b"", b"1")
    await made.push(stream, b"pushed", subject=b"s.x")
    assert stage.store(staged) is None
    assert await payloads(stream) == [b"pushed"]


async def test_a_sum_that_is_not_what_it_was_is_counted_again(made: Streaming) -> None:
    stage, stream = await stage_of(made, allow_msg_counter=True)

    async def one() -> object:
        staged = stage.begin()
        await stage.add(staged, b"s.a", block("Nats-Incr: 1"), b"")
        return staged, stage.store(staged)

    await one()
    staged = stage.begin()
    await stage.add(staged, b"s.a", block("Nats-Incr: 1"), b"")
    await stream.log.writer.flush()
    await stream.delete([0])
    assert stage.store(staged) is None
    await one()
    await stream.log.writer.flush()
    assert await payloads(stream) == [b'{"val":"1"}']


async def test_counters_add_up_within_a_batch(made: Streaming) -> None:
    stage, _ = await stage_of(made, allow_msg_counter=True)
    staged = stage.begin()
    for number in (1, 10, -100):
        await stage.add(staged, b"s.a", block(f"Nats-Incr: {number}"), b"")
    assert staged.payloads == [b'{"val":"1"}', b'{"val":"11"}', b'{"val":"-89"}']
    assert staged.bases == {b"s.a": 0}
    with pytest.raises(ApiError, match="increment is missing"):
        await stage.add(staged, b"s.a", b"", b"")


async def test_a_subject_is_looked_up_once(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, stream = await stage_of(made)
    await made.push(stream, b"x", subject=b"s.x")
    last, looks = stream.last, list[bool]()

    async def counted(chosen: object) -> object:
        looks.append(True)
        return await last(chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(stream, "last", counted)
    staged = stage.begin()
    other = "Nats-Expected-Last-Subject-Sequence-Subject: s.x"
    for subject in (b"s.a", b"s.b"):
        asked = block("Nats-Expected-Last-Subject-Sequence: 1", other)
        await stage.add(staged, subject, asked, b"1")
    with pytest.raises(ApiError, match="wrong last sequence: 1"):
        await stage.add(staged, b"s.c", block("Nats-Expected-Last-Subject-Sequence: 2", other), b"")
    assert looks == [True]


async def test_what_nobody_wants_goes_at_once(made: Streaming) -> None:
    stage, stream = await stage_of(made, retention="interest")
    stream.interested = lambda subject: subject == b"s.wanted"
    staged = stage.begin()
    for subject in (b"s.a", b"s.wanted"):
        await stage.add(staged, subject, b"", subject)
    stored = stage.store(staged)
    assert stored is not None
    await stored
    assert await payloads(stream) == [b"s.wanted"]
