"""Settlements on their way into the log, and which of them are still needed."""

import asyncio

import pytest

from penstock.delivery.consumers import settling
from penstock.delivery.consumers.settling import Settling
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.rules import Rules
from penstock.ledger.settlement import KIND, Journal, Kept, decode
from penstock.log.log import Log
from penstock.model.errors import LogReadOnly
from tests.unit.delivery.lab import Lab, lab
from tests.unit.tiers.core import World


class Book:
    """A ledger, its journal and where it is written."""

    def __init__(self, log: Log, name: str = "d") -> None:
        self.log, self.ledger = log, ConsumerLedger(Rules())
        self.journal = Journal(self.ledger, name, 1)
        self.settling = Settling(log, 60.0)
        self.told: list[bool] = []

    async def settle(self) -> None:
        """Written and durable."""
        self.settling.now(self.journal, self.told.append)
        await asyncio.sleep(0)
        await self.settling.close()

    async def kept(self) -> Kept:
        kept = Kept()
        for _, version, entries in await self.log.settlements.read(KIND):
            for change in decode(version, entries):
                kept.apply(change)
        return kept


async def book(here: Lab) -> Book:
    peer = await here.peer()
    await peer.stream("S", "s")
    return Book(here.stream("S").log)


@pytest.mark.feature("P18")
async def test_whoever_waits_is_told_when_it_is_durable(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.delivered([1, 2, 3], 0)
        kept.ledger.ack([2])
        kept.settling.now(kept.journal, kept.told.append)
        kept.settling.now(kept.journal, kept.told.append)
        assert kept.told == []
        await kept.settle()
        assert kept.told == [True, True, True]
        assert (await kept.kept()).pending == {1: 1, 3: 3}


async def test_all_of_one_turn_is_one_frame(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        for seq in range(1, 6):
            kept.ledger.delivered([seq], 0)
            kept.settling.now(kept.journal, kept.told.append)
        await kept.settle()
        assert len(await kept.log.settlements.read(KIND)) == 1


async def test_with_nothing_new_whoever_waits_is_told_when_the_last_is_durable(
    world: World,
) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.delivered([1], 0)
        kept.settling.flush()
        kept.settling.now(kept.journal, kept.told.append)
        kept.settling.flush()
        assert kept.told == []
        await kept.settle()
        assert kept.told == [True, True]


async def test_after_many_changes_a_whole_one_replaces_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "CHANGES_MAX", 3)
    async with lab(world) as here:
        kept = await book(here)
        floors = []
        for seq in range(1, 10):
            kept.ledger.delivered([seq], 0)
            await kept.settle()
            floors.append(kept.log.settle_floor)
        assert len(set(floors)) == 3
        assert sorted(floors, key=lambda frame: frame or 0) == floors
        assert (await kept.kept()).pending == {seq: seq for seq in range(1, 10)}


async def test_an_old_file_is_not_kept_for_an_idle_consumer(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.delivered([1], 0)
        await kept.settle()
        before = kept.log.settle_floor
        assert before is not None
        assert not kept.settling.rotated()
        kept.log.rotate()
        peer = await here.peer()
        await peer.stored("s", b"m0")
        while not kept.settling.rotated():
            await asyncio.sleep(0)
        await kept.settle()
        assert not kept.settling.rotated()
        assert (kept.log.settle_floor or 0) > before
        assert (await kept.kept()).pending == {1: 1}


async def test_a_consumer_that_is_gone_holds_nothing(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.delivered([1], 0)
        await kept.settle()
        kept.settling.forget(kept.journal)
        assert kept.log.settle_floor is None


async def test_what_could_not_be_written_is_written_whole_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.delivered([1, 2], 0)
        await kept.settle()
        with monkeypatch.context() as patched:

            def refuse(self: Log, body: bytes, count: int) -> None:
                raise LogReadOnly(self.topic, "the disk is full")

            patched.setattr(Log, "settle", refuse)
            kept.ledger.ack([1])
            await kept.settle()
        assert kept.told == [True, False]
        kept.ledger.ack([2])
        await kept.settle()
        assert kept.told == [True, False, True]
        last = (await kept.log.settlements.read(KIND))[-1]
        assert decode(last.version, last.entries)[0].whole
        assert (await kept.kept()).pending == {}


async def test_a_stream_in_memory_keeps_nothing_and_says_so_at_once(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.settling.kept = False
        kept.ledger.delivered([1], 0)
        kept.settling.changed(kept.journal)
        kept.settling.now(kept.journal, kept.told.append)
        assert kept.told == [True]
        assert kept.log.settle_floor is None
