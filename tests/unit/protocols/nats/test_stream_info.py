import asyncio

import pytest

from penstock.protocols.nats.jetstream.stream_info import StreamDescriber, StreamInfoLimits
from penstock.streams.stream import Stream
from tests.broker.jetstream import Streaming


def _describer(streaming: Streaming, limits: StreamInfoLimits | None = None) -> StreamDescriber:
    clock = streaming.served.broker.world.clock
    return StreamDescriber(streaming.jetstream.streams, clock, lambda stream: 7, limits)


async def _filled(streaming: Streaming) -> Stream:
    await streaming.asker.create("S", subjects=["s.>"])
    for subject in (b"s.a", b"s.b", b"s.c", b"s.a"):
        await streaming.asker.publish(subject, b"x")
    return streaming.stream("S")


async def test_subjects_are_counted_page_by_page(streaming: Streaming) -> None:
    stream = await _filled(streaming)
    describer = _describer(streaming, StreamInfoLimits(page_subjects=2))
    assert (await describer.info(stream, {})).state.num_subjects == 3
    assert await describer.subjects(stream, "s.*", 0) == (3, {"s.a": 2, "s.b": 1, "s.c": 1})
    assert await describer.subjects(stream, "s.*", 1) == (3, {"s.b": 1, "s.c": 1})
    assert await describer.subjects(stream, "s.*", 9) == (3, {})


async def test_a_page_of_subjects_has_an_end(streaming: Streaming) -> None:
    limits = StreamInfoLimits(page_subjects=2, shown_subjects_max=1)
    stream = await _filled(streaming)
    assert await _describer(streaming, limits).subjects(stream, ">", 1) == (3, {"s.b": 1})


async def test_too_many_subjects_are_not_counted(streaming: Streaming) -> None:
    limits = StreamInfoLimits(page_subjects=1, counted_subjects_max=2)
    stream = await _filled(streaming)
    state = (await _describer(streaming, limits).info(stream, {})).state
    assert not isinstance(state.num_subjects, int)


async def test_the_first_time_follows_the_first_message(streaming: Streaming) -> None:
    await streaming.asker.create("S", subjects=["s"])
    clock = streaming.served.broker.world.clock
    await streaming.asker.publish(b"s", b"x")
    clock.us += 1000
    await streaming.asker.publish(b"s", b"x")
    stream, describer = streaming.stream("S"), _describer(streaming)
    state = (await describer.info(stream, {})).state
    assert state.first_ts != state.last_ts
    await stream.delete([0])
    moved = (await describer.info(stream, {})).state
    assert moved.first_ts == moved.last_ts == state.last_ts


async def test_an_answer_does_not_wait_for_ever_until_bytes_are_counted(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await _filled(streaming)
    monkeypatch.setattr(stream, "measured", asyncio.Event().wait)
    describer = _describer(streaming, StreamInfoLimits(measure_seconds=0.0))
    assert (await describer.info(stream, {})).state.messages == 4


async def test_the_state_has_the_number_of_consumers(streaming: Streaming) -> None:
    stream, describer = await _filled(streaming), _describer(streaming)
    assert (await describer.info(stream, {})).state.consumer_count == 7
