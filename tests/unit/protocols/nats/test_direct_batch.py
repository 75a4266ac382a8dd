from __future__ import annotations

import pytest

from penstock.model.errors import PenstockError
from penstock.model.times import time_text_us
from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.jetstream import direct_batch
from penstock.protocols.nats.jetstream.direct_batch import DirectReplies, blocks_of
from penstock.streams.rows import Rows
from tests.broker.jetstream import Asker, ReceivedMessage, Streaming
from tests.broker.nats import NatsSite
from tests.broker.storage import World

ROWS = Rows([4, 6], [b"s", b"t"], None, [b"a", b"b"], [0, 0])


def test_every_message_has_its_block() -> None:
    first, second = blocks_of("S", ROWS)
    assert b"Nats-Subject: s\r\nNats-Sequence: 5\r\n" in first
    assert b"Nats-Subject: t\r\nNats-Sequence: 7\r\n" in second


async def test_a_run_is_delivered_to_all_subscribers() -> None:
    async with NatsSite() as server:
        one, other = (
            await server.connect(),
            await server.connect(headers=False, no_responders=False),
        )
        for talk in (one, other):
            await talk.answer(b"SUB in 7\r\n")
        replies = DirectReplies(server.server.exchange)
        clients = replies.send(b"in", [b"NATS/1.0\r\n\r\n"], [b"x"])
        assert len(clients) == 2
        await one.expect(b"HMSG in 7 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
        await other.expect(b"MSG in 7 1\r\nx\r\n")
        assert replies.send(b"nobody", None, [b"x"]) == []


async def test_answers_go_to_their_own_replies() -> None:
    async with NatsSite() as server:
        talk = await server.connect()
        await talk.answer(b"SUB r.* 7\r\n")
        replies = DirectReplies(server.server.exchange)
        replies.send_run([b"r.1", b"q"], [b"NATS/1.0\r\n\r\n"] * 2, [b"x", b"y"])
        replies.send_run([b"r.3", b"r.3"], [b"NATS/1.0\r\n\r\n"] * 2, [b"x", b"y"])
        replies.send_status(b"r.4", 404, b"No")
        replies.send_error(b"r.4", PenstockError("no\r\nluck"))
        replies.send_end(b"r.5", 1, 2)
        replies.send_no_responders(b"s", b"r.6")
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
    async with NatsSite() as server:
        talk = await server.connect()
        await talk.answer(b"SUB r 7\r\n")
        replies = DirectReplies(server.server.exchange)
        replies.send_message(b"r", "S", ROWS, bare=True)
        await talk.expect(b"MSG r 7 1\r\na\r\n")
        replies.send_message(b"r", "S", ROWS, bare=False)
        assert (await talk.line()).startswith(b"HMSG r 7 ")


async def test_answers_to_one_inbox_go_together() -> None:
    async with NatsSite() as server:
        talk, plain = (
            await server.connect(),
            await server.connect(headers=False, no_responders=False),
        )
        for one in (talk, plain):
            await one.answer(b"SUB r.* 7\r\n")
        block = b"NATS/1.0\r\n\r\n"
        DirectReplies(server.server.exchange).send_run(
            [b"r.1", b"r.2"], [block, block], [b"x", b"y"]
        )
        await talk.expect(
            b"HMSG r.1 7 12 13\r\n%bx\r\nHMSG r.2 7 12 13\r\n%by\r\n" % (block, block)
        )
        await plain.expect(b"MSG r.1 7 1\r\nx\r\nMSG r.2 7 1\r\ny\r\n")


GET = b"$JS.API.DIRECT.GET.D"
SUBJECTS = (b"d.a", b"d.b", b"d.a", b"d.c", b"d.a", b"d.b")


async def _filled(asker: Asker) -> None:
    await asker.create("D", subjects=["d.>"], allow_direct=True)
    for number, subject in enumerate(SUBJECTS, 1):
        await asker.publish(subject, b"m%d" % number)


async def _batch(asker: Asker, body: bytes) -> tuple[list[ReceivedMessage], ReceivedMessage]:
    """Send a batch request; returns the messages and the end of the batch."""
    asker.send(GET, body)
    told = [await asker.receive()]
    while not told[-1].headers.startswith(b"NATS/1.0 "):
        told.append(await asker.receive())
    return told[:-1], told[-1]


def _seqs(told: list[ReceivedMessage]) -> list[int]:
    return [int(one.field(b"Nats-Sequence") or 0) for one in told]


def _counts(told: ReceivedMessage) -> tuple[bytes | None, bytes | None]:
    return told.field(b"Nats-Num-Pending"), told.field(b"Nats-Last-Sequence")


def _end(pending: int, last: int, up_to: int | None = None) -> bytes:
    more = b"" if up_to is None else b"Nats-UpTo-Sequence: %d\r\n" % up_to
    return (
        b"NATS/1.0 204 EOB\r\nNats-Pending-Messages: %d\r\nNats-Num-Pending: %d\r\n"
        b"Nats-Last-Sequence: %d\r\n%b\r\n" % (pending, pending, last, more)
    )


@pytest.mark.parametrize(
    ("body", "seqs", "pending"),
    [
        (b'{"seq":1,"batch":3}', [1, 2, 3], 3),
        (b'{"seq":1,"batch":100}', [1, 2, 3, 4, 5, 6], 0),
        (b'{"seq":5,"batch":100}', [5, 6], 0),
        (b'{"seq":1,"batch":2,"next_by_subj":"d.a"}', [1, 3], 1),
        (b'{"seq":2,"batch":9,"next_by_subj":"d.a"}', [3, 5], 0),
        (b'{"batch":2,"next_by_subj":"d.b"}', [2, 6], 0),
        (b'{"batch":2,"next_by_subj":">"}', [1, 2], 4),
        (b'{"start_time":"1970-01-01T00:00:00Z","batch":2}', [1, 2], 4),
        (b'{"seq":1,"batch":9,"max_bytes":1}', [1], 5),
        (b'{"seq":1,"batch":9,"max_bytes":10}', [1, 2], 4),
        (b'{"seq":1,"batch":9,"max_bytes":11}', [1, 2, 3], 3),
        (b'{"seq":1,"batch":9,"max_bytes":1000}', [1, 2, 3, 4, 5, 6], 0),
    ],
)
@pytest.mark.parametrize("part", [1, 2, 2000])
@pytest.mark.feature("G03", "G04")
async def test_a_batch_and_its_end(
    asker: Asker,
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    seqs: list[int],
    pending: int,
    part: int,
) -> None:
    monkeypatch.setattr(direct_batch, "PART_MESSAGES", part)
    await _filled(asker)
    told, end = await _batch(asker, body)
    assert _seqs(told) == seqs
    assert [one.payload for one in told] == [b"m%d" % seq for seq in seqs]
    left = range(pending + len(seqs) - 1, pending - 1, -1)
    before = [0, *seqs[:-1]]
    assert [_counts(one) for one in told] == [
        (b"%d" % count, b"%d" % seq) for count, seq in zip(left, before, strict=True)
    ]
    assert end == (b"_I", _end(pending, seqs[-1]), b"")


@pytest.mark.parametrize(
    "body",
    [
        b'{"seq":99,"batch":2}',
        b'{"seq":1,"batch":2,"next_by_subj":"d.zz"}',
        b'{"seq":1,"batch":2,"next_by_subj":"a..b"}',
        b'{"start_time":"2100-01-01T00:00:00Z","batch":2}',
    ],
)
async def test_a_batch_of_nothing_is_not_found(asker: Asker, body: bytes) -> None:
    await _filled(asker)
    told, end = await _batch(asker, body)
    assert (told, end.headers) == ([], b"NATS/1.0 404 Message Not Found\r\n\r\n")


async def test_a_batch_below_one_is_only_its_end(asker: Asker) -> None:
    await _filled(asker)
    told, end = await _batch(asker, b'{"seq":1,"batch":-1}')
    assert (told, end.headers) == ([], _end(6, 0))


async def test_a_batch_skips_deleted_messages(asker: Asker) -> None:
    await _filled(asker)
    for seq in (1, 3, 6):
        await asker.api("STREAM.MSG.DELETE.D", {"seq": seq})
    told, end = await _batch(asker, b'{"seq":1,"batch":9}')
    assert (_seqs(told), end.headers) == ([2, 4, 5], _end(0, 5))
    told, end = await _batch(asker, b'{"seq":1,"batch":9,"next_by_subj":"d.a"}')
    assert (_seqs(told), end.headers) == ([5], _end(0, 5))
    await asker.api("STREAM.PURGE.D", {"seq": 5})
    told, end = await _batch(asker, b'{"seq":1,"batch":9}')
    assert (_seqs(told), end.headers) == ([5], _end(0, 5))


async def test_a_batch_may_want_no_headers(asker: Asker) -> None:
    await _filled(asker)
    asker.send(GET, b'{"seq":5,"batch":9,"no_hdr":true}')
    assert [(await asker.receive()) for _ in range(3)] == [
        (b"_I", b"", b"m5"),
        (b"_I", b"", b"m6"),
        (b"_I", _end(0, 6), b""),
    ]


@pytest.mark.feature("G03")
async def test_without_a_limit_of_its_own_a_batch_has_that_of_the_connection(
    world: World,
) -> None:
    async with Streaming(world, NatsLimits(pending_bytes=4_000_000)) as streaming:
        await streaming.asker.create("D", subjects=["d"], allow_direct=True)
        await streaming.asker.publish(b"d", *(b"x" * 999_999 for _ in range(6)))
        for body in (b'{"seq":1,"batch":9}', b'{"seq":1,"batch":9,"max_bytes":9000000}'):
            told, end = await _batch(streaming.asker, body)
            assert (_seqs(told), end.headers) == ([1, 2, 3, 4], _end(2, 4))


async def test_a_slow_client_gets_a_batch_far_larger_than_its_buffer(world: World) -> None:
    limits = NatsLimits(pending_bytes=8 << 20)
    async with Streaming(world, limits) as streaming:
        await streaming.asker.create("D", subjects=["d"], allow_direct=True)
        await streaming.asker.publish(b"d", *(b"x" * 500_000 for _ in range(40)))
        seqs: list[int] = []
        while len(seqs) < 40:
            body = b'{"seq":%d,"batch":99}' % (len(seqs) + 1)
            told, _ = await _batch(streaming.asker, body)
            seqs += _seqs(told)
        assert seqs == list(range(1, 41))
        assert streaming.server.server.clients.gate.slow_consumers == 0


@pytest.mark.feature("G10")
async def test_a_batch_is_read_from_the_bucket(streaming: Streaming) -> None:
    await _filled(streaming.asker)
    await streaming.only_in_bucket("D")
    told, _ = await _batch(streaming.asker, b'{"seq":1,"batch":9}')
    assert _seqs(told) == [1, 2, 3, 4, 5, 6]
    told, _ = await _batch(streaming.asker, b'{"multi_last":["d.*"]}')
    assert _seqs(told) == [4, 5, 6]


@pytest.mark.parametrize(
    ("body", "seqs", "pending", "up_to"),
    [
        (b'{"multi_last":["d.a","d.b"]}', [5, 6], 0, 6),
        (b'{"multi_last":["d.>"]}', [4, 5, 6], 0, 6),
        (b'{"multi_last":["d.a","d.zz"]}', [5], 0, 6),
        (b'{"multi_last":["d.*","d.a"]}', [4, 5, 6], 0, 6),
        (b'{"multi_last":["d.>"],"batch":2}', [4, 5], 1, 6),
        (b'{"multi_last":["d.>"],"batch":2,"seq":5}', [5, 6], 0, 6),
        (b'{"multi_last":["d.>"],"max_bytes":10}', [4, 5], 1, 6),
        (b'{"multi_last":["d.>"],"up_to_seq":4}', [2, 3, 4], 0, 4),
        (b'{"multi_last":["d.>"],"up_to_seq":2}', [1, 2], 0, 2),
        (b'{"multi_last":["d.>"],"up_to_seq":99}', [4, 5, 6], 0, 6),
        (b'{"multi_last":["d.>"],"up_to_time":"2100-01-01T00:00:00Z"}', [4, 5, 6], 0, 6),
    ],
)
@pytest.mark.parametrize("window", [1, 1024])
@pytest.mark.feature("G09")
async def test_the_last_messages_of_many_subjects(
    asker: Asker,
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    seqs: list[int],
    pending: int,
    up_to: int,
    window: int,
) -> None:
    monkeypatch.setattr(direct_batch, "FIRST_WINDOW", window)
    await _filled(asker)
    told, end = await _batch(asker, body)
    assert _seqs(told) == seqs
    left = range(pending + len(seqs) - 1, pending - 1, -1)
    assert [one.field(b"Nats-Num-Pending") for one in told] == [b"%d" % count for count in left]
    assert end == (b"_I", _end(pending, seqs[-1], up_to), b"")


@pytest.mark.feature("G09")
async def test_the_last_messages_up_to_a_time(streaming: Streaming) -> None:
    asker, clock = streaming.asker, streaming.served.broker.world.clock
    await asker.create("D", subjects=["d.>"], allow_direct=True)
    times = []
    for subject in (b"d.a", b"d.b", b"d.a"):
        clock.us += 1000
        await asker.publish(subject, b"x")
        times.append(clock.us)
    for time, seqs in ((times[1], [1, 2]), (times[0], [1]), (times[2], [2, 3])):
        text = time_text_us(time).encode()
        told, _ = await _batch(asker, b'{"multi_last":["d.*"],"up_to_time":"%b"}' % text)
        assert _seqs(told) == seqs


@pytest.mark.parametrize(
    "body",
    [
        b'{"multi_last":["d.zz"]}',
        b'{"multi_last":["a..b"]}',
        b'{"multi_last":["d.*"],"seq":99}',
        b'{"multi_last":["d.*"],"up_to_time":"1960-01-01T00:00:00Z"}',
    ],
)
async def test_no_last_messages_are_no_results(asker: Asker, body: bytes) -> None:
    await _filled(asker)
    told, end = await _batch(asker, body)
    assert (told, end.headers) == ([], b"NATS/1.0 404 No Results\r\n\r\n")


async def test_too_many_subjects_are_refused(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "SUBJECTS_MAX", 2)
    await _filled(asker)
    _, end = await _batch(asker, b'{"multi_last":["d.>"]}')
    assert end.headers == b"NATS/1.0 413 Too Many Results\r\n\r\n"
    told, _ = await _batch(asker, b'{"multi_last":["d.a","d.b"]}')
    assert _seqs(told) == [5, 6]


async def test_a_batch_ends_when_its_inbox_loses_its_subscriber(streaming: Streaming) -> None:
    await _filled(streaming.asker)
    asker = await streaming.connect()
    asker.talk.send(b"UNSUB 1\r\n")
    asker.send(GET, b'{"seq":1,"batch":9}')
    asker.send(GET, b'{"multi_last":["d.>"]}')
    await asker.talk.answer()
    await streaming.jetstream._direct.drained()
    assert await asker.talk.answer() == b""
