"""Settlements are written in order, one frame for each turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from penstock.delivery.settlement_writer import SettlementFrame, SettlementWriter
from penstock.model.errors import AppendQueueFull, LogReadOnly
from penstock.topics import OpenTopic
from tests.broker.storage import World
from tests.broker.topics import serve


class Owner:
    """Settles numbers, and records which frames were finished."""

    def __init__(self, opened: OpenTopic) -> None:
        self.opened = opened
        self.pending: list[int] = []
        self.finished: list[tuple[list[int], BaseException | None]] = []
        self.writer = SettlementWriter(opened, self._collect)

    def settle(self, number: int) -> asyncio.Future[None]:
        self.pending.append(number)
        return self.writer.write()

    def _collect(self) -> SettlementFrame:
        numbers, self.pending = self.pending, []

        def finished(error: BaseException | None) -> None:
            self.finished.append((numbers, error))

        # An entry of another kind, so that no other reader of settlements looks at it.
        return SettlementFrame(b"\x93\xa4test\x01" + bytes(numbers[:1]), len(numbers), finished)


class Settles:
    """Replaces the way to the log: records frames, which become durable when a test says so."""

    def __init__(self, opened: OpenTopic, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[asyncio.Future[None]] = []
        self.counts: list[int] = []
        self.error: Exception | None = None
        monkeypatch.setattr(opened.log, "settle", self._settle)
        monkeypatch.setattr(opened.log, "room", self._room)

    def _settle(self, body: bytes, count: int) -> asyncio.Future[None]:
        if self.error is not None:
            raise self.error
        self.counts.append(count)
        self.frames.append(asyncio.get_running_loop().create_future())
        return self.frames[-1]

    async def _room(self, size_bytes: int) -> None:
        self.error = None


async def turns() -> None:
    """Let everything run that can run without the log."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_settlements_of_one_turn_are_one_frame(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await (await serve(world)).create()
    owner, log = Owner(opened), Settles(opened, monkeypatch)
    writes = {owner.settle(1), owner.settle(2)}
    assert len(writes) == 1
    await turns()
    owner.settle(3)
    await turns()
    assert log.counts == [2, 1]
    assert owner.finished == []
    for frame in log.frames:
        frame.set_result(None)
    await owner.writer.close()
    assert owner.finished == [([1, 2], None), ([3], None)]
    assert all(write.done() for write in writes)


async def test_a_write_without_settlements_completes_with_the_frame_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await (await serve(world)).create()
    owner, log = Owner(opened), Settles(opened, monkeypatch)
    await owner.writer.write()
    owner.settle(1)
    await turns()
    empty = owner.writer.write()
    await turns()
    assert not empty.done()
    log.frames[0].set_result(None)
    await empty
    assert log.counts == [1]
    assert owner.finished == [([], None), ([1], None), ([], None)]


async def test_a_frame_waits_for_room_and_those_after_it_wait_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await (await serve(world)).create()
    owner, log = Owner(opened), Settles(opened, monkeypatch)
    log.error = AppendQueueFull(opened.topic.name.full, 1, 1)
    first = owner.settle(1)
    await turns()
    second = owner.settle(2)
    await turns()
    assert log.counts == [1]
    log.frames[0].set_result(None)
    await first
    await turns()
    assert log.counts == [1, 1]
    log.frames[1].set_result(None)
    await second
    assert owner.finished == [([1], None), ([2], None)]


async def test_an_error_of_the_log_reaches_the_owner_and_those_who_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await (await serve(world)).create()
    owner, log = Owner(opened), Settles(opened, monkeypatch)
    log.error = error = LogReadOnly(opened.topic.name.full, "the disk is full")
    with pytest.raises(LogReadOnly):
        await owner.settle(1)
    assert owner.finished == [([1], error)]
    rejected = owner.settle(2)
    owner.pending.clear()
    owner.writer.reject(error)
    with pytest.raises(LogReadOnly):
        await rejected
    await owner.writer.close()
    assert log.counts == []
