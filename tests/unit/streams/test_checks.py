"""Messages that are checked one after another; how batches are answered is in test_batches.py."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.units import OffsetRange
from penstock.streams.appender import Appender
from penstock.streams.checks import CheckedStage, MessageChecks
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.stream import Stream
from penstock.wire.jetstream.errors import ApiError
from tests.broker.streams import Streaming, block


class Checking:
    """Adds messages of a batch to a stage, and appends it."""

    def __init__(self, made: Streaming, stream: Stream) -> None:
        window = DuplicateWindow(1_000_000, made.served.host.clock.now_us)
        self.stream, self.appender = stream, Appender(stream, window)
        self.checks = MessageChecks(stream, self.appender)
        self.attempts = 0

    async def add(self, stage: CheckedStage, subject: bytes, block: bytes, payload: bytes) -> None:
        await self.checks.add_batched(stage, self.checks.parse(subject, block, payload))

    async def store(self, *messages: tuple[bytes, bytes, bytes]) -> OffsetRange:
        async def check() -> CheckedStage:
            self.attempts += 1
            stage = self.checks.begin()
            for subject, block_, payload in messages:
                await self.add(stage, subject, block_, payload)
            return stage

        stored = await self.appender.append(check)
        assert stored is not None
        return await stored


async def checking(made: Streaming, **config: object) -> Checking:
    return Checking(made, await made.create("s", subjects=["s.>"], **config))


async def payloads(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]


async def test_checked_messages_are_stored_as_one_run(made: Streaming) -> None:
    checks = await checking(made)
    expects_new = block("Nats-Expected-Last-Subject-Sequence: 0")
    assert await checks.store((b"s.a", b"", b"1"), (b"s.b", expects_new, b"2")) == (0, 2)
    assert await payloads(checks.stream) == [b"1", b"2"]


async def test_an_append_after_the_checks_repeats_them(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = await checking(made)
    prepare = checks.stream.admission.prepare

    async def append_first(subjects: object) -> None:
        monkeypatch.setattr(checks.stream.admission, "prepare", prepare)
        await made.push(checks.stream, b"pushed", subject=b"s.x")

    monkeypatch.setattr(checks.stream.admission, "prepare", append_first)
    assert await checks.store((b"s.a", b"", b"1")) == (1, 2)
    assert checks.attempts == 2
    assert await payloads(checks.stream) == [b"pushed", b"1"]


async def test_a_deletion_that_changes_a_sum_repeats_the_checks(made: Streaming) -> None:
    checks = await checking(made, allow_msg_counter=True)
    increment = (b"s.a", block("Nats-Incr: 1"), b"")
    await checks.store(increment)
    stage = checks.checks.begin()
    await checks.add(stage, *increment)
    assert stage.is_current()
    await checks.stream.delete([0])
    assert not stage.is_current()
    await checks.store(increment)
    assert await payloads(checks.stream) == [b'{"val":"1"}']


async def test_counters_add_up_within_a_stage(made: Streaming) -> None:
    checks = await checking(made, allow_msg_counter=True)
    stage = checks.checks.begin()
    for number in (1, 10, -100):
        await checks.add(stage, b"s.a", block(f"Nats-Incr: {number}"), b"")
    assert stage.payloads == [b'{"val":"1"}', b'{"val":"11"}', b'{"val":"-89"}']
    assert stage.sums_before == {b"s.a": 0}
    with pytest.raises(ApiError, match="increment is missing"):
        await checks.add(stage, b"s.a", b"", b"")


async def test_the_last_sequence_of_a_subject_is_looked_up_once(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = await checking(made)
    await made.push(checks.stream, b"x", subject=b"s.x")
    last_sequence, subjects = checks.appender.last_sequence, list[bytes]()

    async def counting(subject: bytes) -> int:
        subjects.append(subject)
        return await last_sequence(subject)

    monkeypatch.setattr(checks.appender, "last_sequence", counting)
    stage = checks.checks.begin()
    other = "Nats-Expected-Last-Subject-Sequence-Subject: s.x"
    for subject in (b"s.a", b"s.b"):
        expects = block("Nats-Expected-Last-Subject-Sequence: 1", other)
        await checks.add(stage, subject, expects, b"1")
    wrong = block("Nats-Expected-Last-Subject-Sequence: 2", other)
    with pytest.raises(ApiError, match="wrong last sequence: 1"):
        await checks.add(stage, b"s.c", wrong, b"")
    assert subjects == [b"s.x"]


async def test_messages_without_interest_are_deleted_at_once(made: Streaming) -> None:
    checks = await checking(made, retention="interest")
    checks.stream.require_interest(lambda subject: subject == b"s.read")
    messages = [(subject, b"", subject) for subject in (b"s.a", b"s.read", b"s.b", b"s.a")]
    assert await checks.store(*messages) == (0, 4)
    await asyncio.sleep(0)
    assert await payloads(checks.stream) == [b"s.read"]
