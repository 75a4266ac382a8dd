from penstock.doors.nats.direct_replies import DirectReplies, blocks_of
from penstock.model.errors import PenstockError
from penstock.topics.streams.rows import Rows
from tests.unit.doors.nats.talking import Door

ROWS = Rows([4, 6], [b"s", b"t"], None, [b"a", b"b"], [0, 0])


def test_every_message_has_its_block() -> None:
    first, second = blocks_of("S", ROWS)
    assert b"Nats-Subject: s\r\nNats-Sequence: 5\r\n" in first
    assert b"Nats-Subject: t\r\nNats-Sequence: 7\r\n" in second


async def test_a_run_goes_to_everyone_who_listens() -> None:
    async with Door() as door:
        one, other = await door.connect(), await door.connect(headers=False, no_responders=False)
        for talk in (one, other):
            await talk.answer(b"SUB in 7\r\n")
        replies = DirectReplies(door.door.exchange)
        clients = replies.send(b"in", [b"NATS/1.0\r\n\r\n"], [b"x"])
        assert len(clients) == 2
        await one.expect(b"HMSG in 7 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
        await other.expect(b"MSG in 7 1\r\nx\r\n")
        assert replies.send(b"nobody", None, [b"x"]) == []


async def test_answers_go_to_their_own_replies() -> None:
    async with Door() as door:
        talk = await door.connect()
        await talk.answer(b"SUB r.* 7\r\n")
        replies = DirectReplies(door.door.exchange)
        replies.run([b"r.1", b"q"], [b"NATS/1.0\r\n\r\n"] * 2, [b"x", b"y"])
        replies.run([b"r.3", b"r.3"], [b"NATS/1.0\r\n\r\n"] * 2, [b"x", b"y"])
        replies.status(b"r.4", 404, b"No")
        replies.failed(b"r.4", PenstockError("no\r\nluck"))
        replies.end(b"r.5", 1, 2)
        replies.nobody(b"s", b"r.6")
        await talk.expect(
            b"HMSG r.1 7 12 13\r\nNATS/1.0\r\n\r\nx\r\n"
            b"HMSG r.3 7 12 13\r\nNATS/1.0\r\n\r\nx\r\nHMSG r.3 7 12 13\r\nNATS/1.0\r\n\r\ny\r\n"
            b"HMSG r.4 7 19 19\r\nNATS/1.0 404 No\r\n\r\n\r\n"
            b"HMSG r.4 7 24 24\r\nNATS/1.0 500 no luck\r\n\r\n\r\n"
        )
        end = await talk.answer()
        assert end.startswith(b"HMSG r.5 7 ")
        assert end.endswith(b"NATS/1.0 503\r\nNats-Subject: s\r\n\r\n\r\n")


async def test_one_message_may_go_bare() -> None:
    async with Door() as door:
        talk = await door.connect()
        await talk.answer(b"SUB r 7\r\n")
        replies = DirectReplies(door.door.exchange)
        replies.found(b"r", "S", ROWS, bare=True)
        await talk.expect(b"MSG r 7 1\r\na\r\n")
        replies.found(b"r", "S", ROWS, bare=False)
        assert (await talk.line()).startswith(b"HMSG r 7 ")


async def test_answers_to_one_inbox_go_together() -> None:
    async with Door() as door:
        talk, plain = await door.connect(), await door.connect(headers=False, no_responders=False)
        for one in (talk, plain):
            await one.answer(b"SUB r.* 7\r\n")
        block = b"NATS/1.0\r\n\r\n"
        DirectReplies(door.door.exchange).run([b"r.1", b"r.2"], [block, block], [b"x", b"y"])
        await talk.expect(
            b"HMSG r.1 7 12 13\r\n%bx\r\nHMSG r.2 7 12 13\r\n%by\r\n" % (block, block)
        )
        await plain.expect(b"MSG r.1 7 1\r\nx\r\nMSG r.2 7 1\r\ny\r\n")
