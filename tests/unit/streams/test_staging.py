"""What batches share; what becomes of single ones is in test_batches.py.

Messages that are checked together; what a batch is answered is in test_batches.py.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from penstock.streams.counters import Sums
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.staging import BATCH_BYTES_MAX, STAGED_BYTES_MAX, Patience, Stage, Staging
from penstock.streams.storing import Storing
from penstock.streams.stream import Stream
from penstock.wire.jetstream.errors import ApiError
from tests.eventually import eventually
from tests.unit.log.disks import Hand
from tests.unit.topics.streaming import Streaming, block


def test_a_connection_that_ends_gives_up_what_it_began_and_nothing_else() -> None:
    staging, given_up = Staging(Hand(), lambda *message: None), list[str]()
    for owner, name in ((1, "a"), (1, "b"), (1, "c"), (2, "d")):
        staging.own(owner, name, lambda name=name: given_up.append(name))  # type: ignore[misc]
    staging.disown(1, "b")
    staging.disown(3, "x")
    staging.left(1)
    staging.left(1)
    assert given_up == ["a", "c"]
    staging.disown(2, "d")
    staging.left(2)
    assert given_up == ["a", "c"]


def test_what_is_given_up_is_told() -> None:
    told = list[tuple[bytes, ...]]()
    staging = Staging(Hand(), lambda *message: told.append(message))
    staging.tell("s", b"b\xff", "timeout")
    ((subject, reply, block, text),) = told
    assert (subject, reply, block) == (b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.s", b"", b"")
    document = msgspec.json.decode(text)
    assert len(document.pop("id")) == 22
    assert document.pop("timestamp").endswith("Z")
    assert document == {
        "type": "io.nats.jetstream.advisory.v1.stream_batch_abandoned",
        "stream": "s",
        "batch": "b\ufffd",
        "reason": "timeout",
    }


async def test_patience_ends_once_and_not_while_it_is_touched() -> None:
    ends: list[float] = []
    loop = asyncio.get_running_loop()
    patience = Patience(0.02, lambda: ends.append(loop.time()))
    # The loop does not turn here: by its first look the time is over, but for the touches.
    for _ in range(3):
        time.sleep(0.01)
        patience.touch()
        touched = loop.time()

    async def ended() -> bool:
        return bool(ends)

    await eventually(ended)
    assert len(ends) == 1
    assert ends[0] >= touched + 0.02


async def test_patience_that_is_stopped_never_ends() -> None:
    ends: list[bool] = []
    Patience(0.001, lambda: ends.append(True)).stop()
    await asyncio.sleep(0.02)
    assert ends == []


def test_one_batch_cannot_take_all_the_room() -> None:
    assert BATCH_BYTES_MAX * 2 <= STAGED_BYTES_MAX


async def stage_of(made: Streaming, **config: object) -> tuple[Stage, Stream]:
    stream = await made.create("s", subjects=["s.>"], **config)
    storing = Storing(stream, DuplicateWindow(1_000_000, made.served.host.clock.now_us))
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
    await stream.opened.log.writer.flush()
    await stream.delete([0])
    assert stage.store(staged) is None
    await one()
    await stream.opened.log.writer.flush()
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
    stream.require_interest(lambda subject: subject == b"s.wanted")
    staged = stage.begin()
    for subject in (b"s.a", b"s.wanted"):
        await stage.add(staged, subject, b"", subject)
    stored = stage.store(staged)
    assert stored is not None
    await stored
    assert await payloads(stream) == [b"s.wanted"]
