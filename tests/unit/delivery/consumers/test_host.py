from __future__ import annotations

from penstock.delivery.consumers import DeliveryLimits, Outlet
from penstock.log import Settled
from tests.broker.consumers import lab, until
from tests.broker.nats import NatsSite
from tests.broker.storage import World


async def test_the_exchange_of_the_nats_server_is_an_outlet() -> None:
    async with NatsSite() as server:
        outlet: Outlet = server.server.exchange
        calls: list[str] = []
        outlet.on_interest(b"in", lambda: calls.append("came"))
        cancel = outlet.on_interest(b"in", lambda: calls.append("cancelled"))
        cancel()
        talk = await server.connect()
        await talk.answer(b"SUB in 1\r\nUNSUB 1 2\r\n")
        outlet.on_no_interest(b"in", lambda: calls.append("went"))
        assert (calls, outlet.has_interest(b"in")) == (["came"], True)
        rows = [b"s"] * 3, [b"r"] * 3, None, [b"a", b"b", b"c"]
        assert outlet.send_rows(b"in", *rows) == 2
        assert (calls, outlet.has_interest(b"in")) == (["came", "went"], False)
        assert outlet.send(b"in", b"", b"", b"x") == 0
        await talk.answer(b"SUB other 2\r\n")
        outlet.on_departure(b"other", lambda: calls.append("departed"))
        outlet.on_departure(b"other", lambda: calls.append("not told"))()
        await talk.answer(b"UNSUB 2\r\n")
        assert "departed" not in calls
        await talk.end()
        await until(lambda: calls[-1] == "departed")


async def test_a_run_is_sent_up_to_the_limit_of_the_subscription() -> None:
    async with NatsSite() as server:
        outlet: Outlet = server.server.exchange
        talk = await server.connect()
        await talk.answer(b"SUB in 1\r\nUNSUB 1 2\r\n")
        rows = [b"s"] * 3, [b"r"] * 3, None, [b"a", b"b", b"c"]
        assert outlet.send_rows(b"in", *rows) == 2
        await outlet.drained(b"in")
        await talk.expect(b"MSG s 1 r 1\r\na\r\nMSG s 1 r 1\r\nb\r\n")


async def test_acks_without_a_waiting_client_are_written_within_the_interval(world: World) -> None:
    async with lab(world, delivery=DeliveryLimits(settle_seconds=0.01)) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"+ACK")
        found: list[Settled] = []
        settlements = here.stream("S").opened.log.settlements
        await until(lambda: here.consumer("S", "d").ledger.floor_stream_seq == 1)
        while not found or found[-1].entries[-1][7] < 1:
            found = await settlements.read("consumer")
        assert found[-1].entries[-1][0] == "d"
