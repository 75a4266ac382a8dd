"""Settlements in the log, and the files that are retained for them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.delivery.consumers import settling
from penstock.delivery.consumers.settling import JournalWriter, UnreadFiles, read_settled
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.rules import Rules
from penstock.ledger.settlement import KIND, Journal, SettledState, decode, encode
from penstock.log import Log
from penstock.model.errors import LogReadOnly
from penstock.topics import OpenTopic
from tests.broker.consumers import Lab, Peer, lab
from tests.broker.storage import World


async def next_file(here: Lab, peer: Peer) -> None:
    """Make the log begin a new file, with a message in it."""
    log = here.stream("S").opened.log
    before = log.writer.active
    log.rotate()
    while log.writer.active is before:
        await peer.stored("s", b"more")


async def test_a_file_is_needed_until_every_consumer_has_passed_it(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        stream = here.stream("S")
        await stream.opened.log.settlements.read("consumer")
        unread = UnreadFiles(stream)
        await peer.stored("s", b"m0", b"m1")
        unread.release([0, 2])
        first = stream.opened.log.state.settle_floor
        await next_file(here, peer)
        unread.record_commit()
        end = stream.next_offset
        assert not unread.releases(end - 1)
        unread.release([end - 1, end])
        assert stream.opened.log.state.settle_floor == first
        assert unread.releases(end)
        unread.release([end, end + 5])
        active = stream.opened.log.writer.active
        assert active is not None
        assert stream.opened.log.state.settle_floor == active.file.header.first_frame
        unread.release([])
        assert stream.opened.log.state.settle_floor is None


@pytest.mark.feature("T20")
async def test_a_lagging_consumer_retains_files_until_it_is_deleted(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.consumer("S", "slow")
        await peer.consumer("S", "fast")
        await peer.stored("s", b"m0", b"m1")
        log = here.stream("S").opened.log
        await next_file(here, peer)
        for message in await peer.several(3, peer.pull("S", "fast", b"3")):
            await peer.request(message.reply, b"+ACK")
        held = log.state.settle_floor
        assert held is not None
        await next_file(here, peer)
        assert log.state.settle_floor == held
        await peer.api("CONSUMER.DELETE.S.slow")
        while (log.state.settle_floor or 0) <= held:
            await asyncio.sleep(0.01)
            await here.settled("S")


async def test_each_consumer_is_restored_from_its_last_complete_settlement(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        opened = here.stream("S").opened
        ledger, other = ConsumerLedger(Rules()), ConsumerLedger(Rules())
        journal, others = Journal(ledger, "1/d", 7), Journal(other, "1/d", 8)
        ledger.record_delivery([1, 2, 3], 0)
        other.record_delivery([9], 0)
        first, second = journal.take(), others.take()
        assert first is not None
        assert second is not None
        await opened.settle(encode([first, second]), 2)
        ledger.ack([2])
        change = journal.take()
        assert change is not None
        await opened.settle(encode([change]), 1)
        found = await read_settled(opened, "1/")
        assert {known: item.settled.pending for known, item in found.items()} == {
            ("d", 7): {1: 1, 3: 3},
            ("d", 8): {9: 1},
        }
        journal.require_whole()
        whole = journal.take()
        assert whole is not None
        await opened.settle(encode([whole]), 1)
        again = await read_settled(opened, "1/")
        assert again["d", 7].frame > found["d", 7].frame
        assert again["d", 7].settled == found["d", 7].settled


async def test_changes_without_a_complete_settlement_before_them_are_ignored(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        opened = here.stream("S").opened
        ledger = ConsumerLedger(Rules())
        journal = Journal(ledger, "d", 7)
        journal.resume()
        ledger.record_delivery([1], 0)
        change = journal.take()
        assert change is not None
        await opened.settle(encode([change]), 1)
        assert await read_settled(opened, "") == {}


class Book:
    """A ledger, its journal and the writer of the journal."""

    def __init__(self, opened: OpenTopic, name: str = "d") -> None:
        self.opened, self.ledger = opened, ConsumerLedger(Rules())
        self.journal = Journal(self.ledger, name, 1)
        self.settling = JournalWriter(opened, 60.0)
        self.told: list[bool] = []

    async def settle(self) -> None:
        """Write the changes and wait until they are durable."""
        self.settling.write_now(self.journal, self.told.append)
        await asyncio.sleep(0)
        await self.settling.close()

    async def kept(self) -> SettledState:
        kept = SettledState()
        for _, version, entries in await self.opened.settlements.read(KIND):
            for change in decode(version, entries):
                kept.apply(change)
        return kept


async def book(here: Lab) -> Book:
    peer = await here.peer()
    await peer.stream("S", "s")
    return Book(here.stream("S").opened)


@pytest.mark.feature("P18")
async def test_waiting_clients_are_notified_when_the_settlement_is_durable(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.record_delivery([1, 2, 3], 0)
        kept.ledger.ack([2])
        kept.settling.write_now(kept.journal, kept.told.append)
        kept.settling.write_now(kept.journal, kept.told.append)
        assert kept.told == []
        await kept.settle()
        assert kept.told == [True, True, True]
        assert (await kept.kept()).pending == {1: 1, 3: 3}


async def test_the_settlements_of_one_turn_are_one_frame(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        for seq in range(1, 6):
            kept.ledger.record_delivery([seq], 0)
            kept.settling.write_now(kept.journal, kept.told.append)
        await kept.settle()
        assert len(await kept.opened.log.settlements.read(KIND)) == 1


async def test_without_changes_waiting_clients_are_notified_after_the_last_write(
    world: World,
) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.record_delivery([1], 0)
        kept.settling.flush()
        kept.settling.write_now(kept.journal, kept.told.append)
        kept.settling.flush()
        assert kept.told == []
        await kept.settle()
        assert kept.told == [True, True]


async def test_a_complete_settlement_replaces_many_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "CHANGES_MAX", 3)
    async with lab(world) as here:
        kept = await book(here)
        floors = []
        for seq in range(1, 10):
            kept.ledger.record_delivery([seq], 0)
            await kept.settle()
            floors.append(kept.opened.log.state.settle_floor)
        assert len(set(floors)) == 3
        assert sorted(floors, key=lambda frame: frame or 0) == floors
        assert (await kept.kept()).pending == {seq: seq for seq in range(1, 10)}


async def test_an_idle_consumer_does_not_retain_an_old_file(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.record_delivery([1], 0)
        await kept.settle()
        before = kept.opened.log.state.settle_floor
        assert before is not None
        assert not kept.settling.rotated()
        kept.opened.log.rotate()
        peer = await here.peer()
        await peer.stored("s", b"m0")
        while not kept.settling.rotated():
            await asyncio.sleep(0)
        await kept.settle()
        assert not kept.settling.rotated()
        assert (kept.opened.log.state.settle_floor or 0) > before
        assert (await kept.kept()).pending == {1: 1}


async def test_a_deleted_consumer_retains_no_files(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.record_delivery([1], 0)
        await kept.settle()
        kept.settling.forget(kept.journal)
        assert kept.opened.log.state.settle_floor is None


async def test_after_a_failed_write_a_complete_settlement_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.ledger.record_delivery([1, 2], 0)
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
        last = (await kept.opened.log.settlements.read(KIND))[-1]
        assert decode(last.version, last.entries)[0].whole
        assert (await kept.kept()).pending == {}


async def test_settlements_of_a_topic_in_memory_are_not_written(world: World) -> None:
    async with lab(world) as here:
        kept = await book(here)
        kept.settling.durable = False
        kept.ledger.record_delivery([1], 0)
        kept.settling.write_soon(kept.journal)
        kept.settling.write_now(kept.journal, kept.told.append)
        assert kept.told == [True]
        assert kept.opened.log.state.settle_floor is None
