from penstock.delivery.consumers.restored import read_settled
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.rules import Rules
from penstock.ledger.settlement import Journal, encode
from tests.unit.delivery.lab import lab
from tests.unit.tiers.core import World


async def test_each_consumer_is_restored_from_its_last_whole_settlement_on(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        log = here.stream("S").log
        ledger, other = ConsumerLedger(Rules()), ConsumerLedger(Rules())
        journal, others = Journal(ledger, "1/d", 7), Journal(other, "1/d", 8)
        ledger.delivered([1, 2, 3], 0)
        other.delivered([9], 0)
        first, second = journal.take(), others.take()
        assert first is not None
        assert second is not None
        await log.settle(encode([first, second]), 2)
        ledger.ack([2])
        change = journal.take()
        assert change is not None
        await log.settle(encode([change]), 1)
        found = await read_settled(log, "1/")
        assert {known: item.kept.pending for known, item in found.items()} == {
            ("d", 7): {1: 1, 3: 3},
            ("d", 8): {9: 1},
        }
        journal.begin()
        whole = journal.take()
        assert whole is not None
        await log.settle(encode([whole]), 1)
        again = await read_settled(log, "1/")
        assert again["d", 7].frame > found["d", 7].frame
        assert again["d", 7].kept == found["d", 7].kept


async def test_changes_without_anything_whole_before_them_count_for_nothing(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        log = here.stream("S").log
        ledger = ConsumerLedger(Rules())
        journal = Journal(ledger, "d", 7)
        journal.goes_on()
        ledger.delivered([1], 0)
        change = journal.take()
        assert change is not None
        await log.settle(encode([change]), 1)
        assert await read_settled(log, "") == {}
