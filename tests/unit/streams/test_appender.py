"""How stages are appended, and what publishes look up before."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.run import Run
from penstock.model.units import Offset
from penstock.streams.appender import Appender
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.stage import Stage
from penstock.streams.stream import Stream
from penstock.wire.jetstream.errors import ApiError
from tests.broker.streams import Streaming, fail_once

SECOND_US = 1_000_000


async def appending(made: Streaming) -> tuple[Appender, Stream, DuplicateWindow]:
    stream = await made.create("s", subjects=["s.>"])
    window = DuplicateWindow(SECOND_US, made.served.host.clock.now_us)
    return Appender(stream, window), stream, window


async def append(appender: Appender, stage: Stage) -> asyncio.Future[object] | None:
    async def check() -> Stage:
        return stage

    return await appender.append(check)  # type: ignore[return-value]


async def test_a_run_of_one_subject_has_it_once_and_no_empty_headers(made: Streaming) -> None:
    appender, _, _ = await appending(made)
    run = appender.log_run([b"s.a", b"s.a"], [b"", b""], [b"1", b"2"])
    assert run == Run(b"s.a", [b"1", b"2"])
    run = appender.log_run([b"s.a", b"s.b"], [b"h", b""], [b"1", b"2"])
    assert run == Run([b"s.a", b"s.b"], [b"1", b"2"], [b"h", b""])


async def test_an_empty_stage_is_not_appended(made: Streaming) -> None:
    appender, stream, _ = await appending(made)
    assert await append(appender, Stage(None, [], [], [])) is None
    assert stream.partition.appended_offset == 0


async def test_appended_messages_are_found_by_subject_once_they_are_settled(
    made: Streaming,
) -> None:
    appender, stream, _ = await appending(made)
    stream.opened.log.append(Run(b"s.a", [b"1", b"2"]))
    assert (appender.appended_offset, stream.next_offset) == (2, 0)
    assert await appender.last_sequence(b"s.a") == 2
    assert stream.next_offset == 2
    assert await appender.last_sequence(b"s.b") == 0
    assert await appender.last_sequence(b"s.*") == 2
    with pytest.raises(ApiError, match="missing sequence"):
        await appender.last_sequence(b"s..a")


async def test_ids_are_remembered_unless_the_append_fails(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender, _, window = await appending(made)
    stored = await append(appender, Stage(None, [b"s.a"], [b""], [b"1"], {b"i": 0}))
    assert stored is not None
    assert await appender.stored_as(b"i") == 1
    assert stored.done()
    assert await appender.stored_as(b"j") is None
    fail_once(made, monkeypatch)
    stage = Stage(None, [b"s.a"] * 2, [b""] * 2, [b"2", b"3"], {b"j": 0, b"k": 1})
    lost = await append(appender, stage)
    assert lost is not None
    await asyncio.wait([lost])
    assert lost.exception() is not None
    assert (window.find(b"j"), window.find(b"k"), window.find(b"i")) == (None, None, 1)


async def test_messages_that_a_message_replaces(made: Streaming) -> None:
    appender, stream, _ = await appending(made)
    for subject in (b"s.a", b"s.b", b"s.a"):
        stream.opened.log.append(Run(subject, [b"x"]))
    assert await appender.replaced(b"s.a", None) == []
    assert await appender.replaced(b"s.a", b"all") == [(3, [], b"s.a")]
    assert await appender.replaced(b"s.a", b"sub") == [(0, [0, 2], b"s.a")]
    ended = await appender.replaced(b"s.a", b"sub", b"s.b")
    assert ended == [(0, [0, 2], b"s.a"), (0, [1], b"s.b")]


async def test_replaced_messages_are_deleted_in_the_commit_of_the_append(made: Streaming) -> None:
    appender, stream, _ = await appending(made)
    await made.push(stream, b"1", b"2", subject=b"s.a")
    stage = Stage(Offset(2), [b"s.a"], [b""], [b"3"], replaced=[(Offset(0), [Offset(0)], b"s.a")])
    stored = await append(appender, stage)
    assert stored is not None
    await stored
    assert stream.messages == 2
