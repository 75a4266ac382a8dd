from penstock.delivery.consumers.outlet import Outlet
from tests.unit.delivery.lab import until
from tests.unit.doors.nats.talking import Door


async def test_the_exchange_of_the_nats_door_is_an_outlet() -> None:
    async with Door() as door:
        outlet: Outlet = door.door.exchange
        calls: list[str] = []
        outlet.on_interest(b"in", lambda: calls.append("came"))
        cancel = outlet.on_interest(b"in", lambda: calls.append("cancelled"))
        cancel()
        talk = await door.connect()
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


async def test_a_run_goes_out_as_far_as_there_is_room() -> None:
    async with Door() as door:
        outlet: Outlet = door.door.exchange
        talk = await door.connect()
        await talk.answer(b"SUB in 1\r\nUNSUB 1 2\r\n")
        rows = [b"s"] * 3, [b"r"] * 3, None, [b"a", b"b", b"c"]
        assert outlet.send_rows(b"in", *rows) == 2
        await outlet.drained(b"in")
        await talk.expect(b"MSG s 1 r 1\r\na\r\nMSG s 1 r 1\r\nb\r\n")
