"""The life cycle of a connection; bytes and errors are those of nats-server."""

from __future__ import annotations

import asyncio
import re
import socket
import tracemalloc
from collections.abc import Iterable
from contextlib import closing

import pytest
import uvloop
from structlog.testing import capture_logs

from penstock.protocols.nats.client import SHARED_BYTES, ConnectedClient
from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.turn import EVENTS_PER_TURN
from penstock.wire.parser import CONTROL_LINE_MAX, Publishes
from tests.broker.nats import BLOCK, WAIT_SECONDS, NatsSite, connection_of
from tests.eventually import eventually

TOKEN = Credentials("secret")
USERS = Credentials(users={"derek": "p4ss"})
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.feature("P01")
async def test_the_greeting_describes_the_server() -> None:
    async with NatsSite(NatsLimits(payload_bytes=1000)) as opened:
        talk = await opened.open()
        told = talk.greeting
        assert told["server_name"] == "lab"
        assert told["headers"] is True
        assert told["max_payload"] == 1000
        assert told["client_id"] == 1
        assert told["client_ip"] == "127.0.0.1"
        assert told["port"] == opened.server.addresses[0].port
        assert not told.keys() & {"auth_required", "jetstream", "connect_info", "ldm"}
        assert (await opened.open()).greeting["client_id"] == 2


@pytest.mark.feature("P01")
async def test_a_second_info_follows_the_first_pong_if_the_client_supports_it() -> None:
    async with NatsSite() as opened:
        talk = await opened.open()
        talk.send(b"PING\r\n", b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\nPING\r\n')
        await talk.expect(b"PONG\r\nPONG\r\n")
        told = await talk.info()
        assert {**talk.greeting, "connect_info": True, "remote_account": "$G"} == told
        await talk.expect(b"PONG\r\n")
        old = await opened.connect(protocol=0)
        assert await old.answer(b"PING\r\n") == b""


@pytest.mark.feature("P01")
@pytest.mark.parametrize(
    ("options", "sent", "got"),
    [
        ({"verbose": True}, b"PING\r\n", b"+OK\r\n"),
        (
            {"verbose": True},
            b"SUB a 1\r\nPUB a 2\r\nhi\r\nUNSUB 1\r\n",
            b"+OK\r\n+OK\r\n+OK\r\nMSG a 1 2\r\nhi\r\n+OK\r\n",
        ),
        ({}, b"PUB foo.* 1\r\nx\r\nPUB a..b 1\r\nx\r\n", b""),
        ({"pedantic": True}, b"PUB foo.* 1\r\nx\r\n", b"-ERR 'Invalid Publish Subject'\r\n"),
        (
            {"pedantic": True, "verbose": True},
            b"PUB a..b 1\r\nx\r\n",
            b"+OK\r\n-ERR 'Invalid Publish Subject'\r\n+OK\r\n",
        ),
        (
            {"pedantic": True},
            b"SUB a 1\r\nPUB a.* 0\r\n\r\nPUB a 1\r\nx\r\nPUB a. 0\r\n\r\n",
            b"-ERR 'Invalid Publish Subject'\r\n" * 2 + b"MSG a 1 1\r\nx\r\n",
        ),
        ({}, b"SUB foo..bar 1\r\n", b"-ERR 'Invalid Subject'\r\n"),
        ({}, b"SUB foo.>.bar 1\r\n", b"-ERR 'Invalid Subject'\r\n"),
        (
            {},
            b"SUB foo 1\r\nSUB bar 1\r\nPUB foo 1\r\na\r\nPUB bar 1\r\nb\r\n",
            b"MSG foo 1 1\r\na\r\n",
        ),
        (
            {},
            b"SUB foo 1\r\nUNSUB 1 2\r\n" + b"PUB foo 1\r\na\r\n" * 3,
            b"MSG foo 1 1\r\na\r\n" * 2,
        ),
        (
            {},
            b"SUB foo 1\r\n" + b"PUB foo 1\r\na\r\n" * 2 + b"UNSUB 1 2\r\nPUB foo 1\r\nc\r\n",
            b"MSG foo 1 1\r\na\r\n" * 2,
        ),
        ({}, b"SUB foo 1\r\nUNSUB 1 0\r\nPUB foo 1\r\na\r\n", b""),
        ({}, b"SUB foo 1\r\nUNSUB 1\r\nPUB foo 1\r\na\r\n", b""),
        ({}, b"UNSUB 99\r\n", b""),
        ({}, b"SUB foo 1\r\nPUB foo re.* 1\r\nx\r\n", b"MSG foo 1 re.* 1\r\nx\r\n"),
        ({}, b'CONNECT {"verbose":false}\r\nPING\r\n', b""),
        ({}, b"PONG\r\n+OK\r\nINFO {}\r\n", b""),
    ],
)
async def test_client_operations_are_answered(
    options: dict[str, bool], sent: bytes, got: bytes
) -> None:
    async with NatsSite() as opened:
        talk = await opened.connect(**options)
        if sent.startswith((b"CONNECT", b"PING")) or got == b"+OK\r\n":
            talk.send(sent)
            await talk.expect(got + b"PONG\r\n")
        else:
            assert await talk.answer(sent) == got


@pytest.mark.feature("P01")
async def test_before_connect_a_client_is_verbose() -> None:
    async with NatsSite() as opened:
        talk = await opened.open()
        assert await talk.answer() == b""
        got = await talk.answer(b"SUB foo 1\r\nPUB foo 1\r\na\r\n")
        assert got == b"+OK\r\n+OK\r\nMSG foo 1 1\r\na\r\n"


@pytest.mark.feature("P01", "P19")
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"FOO\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"PUB foo 2\r\nhello\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"PUB foo 101\r\n", b"-ERR 'Maximum Payload Violation'\r\n"),
        (b"HPUB foo 18 101\r\n", b"-ERR 'Maximum Payload Violation'\r\n"),
        (b"x" * (CONTROL_LINE_MAX + 3), b"-ERR 'maximum control line exceeded'\r\n"),
        (
            b'CONNECT {"headers":false,"no_responders":true}\r\n',
            b"-ERR 'no responders requires headers support'\r\n",
        ),
        (b"CONNECT {bad\r\n", b""),
        (b"SUB foo\r\n", b""),
        (b"PUB foo\r\n", b""),
        (b"HPUB foo 20 18\r\n", b""),
        (b"-ERR 'x'\r\n", b""),
    ],
)
async def test_a_protocol_violation_closes_only_its_connection_with_an_error(
    sent: bytes, told: bytes
) -> None:
    async with NatsSite(NatsLimits(payload_bytes=100)) as opened:
        good = await opened.connect()
        await good.answer(b"SUB ok 1\r\n")
        bad = await opened.connect()
        got = await bad.closed(b"SUB > 1\r\nPUB ok 1\r\nx\r\n", sent, b"PUB ok 1\r\ny\r\n")
        assert got == b"MSG ok 1 1\r\nx\r\n" + told
        assert await good.answer(b"PUB ok 1\r\nz\r\n") == b"MSG ok 1 1\r\nx\r\nMSG ok 1 1\r\nz\r\n"

        async def gone() -> bool:
            return len(opened.server.clients.open) == 1

        await eventually(gone)
        assert opened.server.interest.count == 1


@pytest.mark.feature("P19")
async def test_headers_from_a_client_without_header_support_end_the_connection() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect(headers=False, no_responders=False)
        assert await talk.closed(b"HPUB foo 18 18\r\n" + BLOCK + b"\r\n") == b""


@pytest.mark.feature("P19")
async def test_a_payload_of_the_largest_size_is_accepted() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        payload = b"x" * (1 << 20)
        got = await talk.answer(b"SUB foo 1\r\nPUB foo 1048576\r\n", payload, b"\r\n")
        assert got == b"MSG foo 1 1048576\r\n" + payload + b"\r\n"


async def test_only_so_many_subscriptions_and_the_client_stays() -> None:
    async with NatsSite(NatsLimits(subscriptions=2)) as opened:
        talk = await opened.connect()
        got = await talk.answer(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nUNSUB 1\r\nSUB d 4\r\n")
        assert got == b"-ERR 'maximum subscriptions exceeded'\r\n"
        assert await talk.answer(b"PUB d 0\r\n\r\nPUB c 0\r\n\r\n") == b"MSG d 4 0\r\n\r\n"


async def test_connections_are_limited_and_a_released_place_is_reused() -> None:
    async with NatsSite(NatsLimits(connections=1)) as opened:
        first = await opened.connect()
        await first.answer()
        second = await opened.open()
        assert await second.closed() == b"-ERR 'maximum connections exceeded'\r\n"
        assert await first.answer() == b""
        await first.end()

        async def room() -> bool:
            return not opened.server.clients.open

        await eventually(room)
        assert await (await opened.connect()).answer() == b""


@pytest.mark.parametrize(
    ("credentials", "options"),
    [(TOKEN, {"auth_token": "secret"}), (USERS, {"user": "derek", "pass": "p4ss"})],
)
async def test_a_client_with_the_secret_is_served(
    credentials: Credentials, options: dict[str, str]
) -> None:
    async with NatsSite(credentials=credentials) as opened:
        talk = await opened.connect(protocol=1, **options)
        assert talk.greeting["auth_required"] is True
        talk.send(b"PING\r\n")
        await talk.expect(b"PONG\r\n")
        assert (await talk.info())["connect_info"] is True
        assert await talk.answer(b"SUB a 1\r\nPUB a 1\r\nx\r\n") == b"MSG a 1 1\r\nx\r\n"
        wrong = b'CONNECT {"auth_token":"wrong","user":"derek","pass":"wrong"}\r\n'
        assert await talk.closed(wrong) == VIOLATION


@pytest.mark.parametrize("credentials", [TOKEN, USERS])
@pytest.mark.parametrize(
    "sent",
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"SUB > 1\r\n",
        b"PUB a 1\r\nx\r\n",
        b"UNSUB 1\r\n",
        b"FOO\r\n",
        b"CONNECT {}\r\n",
        b'CONNECT {"auth_token":"wrong"}\r\n',
        b'CONNECT {"user":"derek","pass":"secret"}\r\n',
        b'CONNECT {"user":"secret","pass":"p4ss"}\r\n',
    ],
)
async def test_a_client_without_the_secret_is_disconnected_and_publishes_nothing(
    credentials: Credentials, sent: bytes
) -> None:
    async with NatsSite(credentials=credentials) as opened:
        options = {"auth_token": "secret"} if credentials is TOKEN else {}
        known = {"user": "derek", "pass": "p4ss"} if credentials is USERS else options
        good = await opened.connect(**known)
        await good.answer(b"SUB > 1\r\n")
        bad = await opened.open()
        assert await bad.closed(sent) == VIOLATION
        assert await good.answer() == b""


async def test_a_client_that_does_not_authenticate_is_disconnected() -> None:
    async with NatsSite(NatsLimits(auth_seconds=0.6), TOKEN) as opened:
        silent = await opened.open()
        assert await silent.closed() == b"-ERR 'Authentication Timeout'\r\n"
        quick = await opened.connect(auth_token="secret")
        await quick.answer()
        await asyncio.sleep(0.8)
        assert await quick.answer() == b""


async def test_a_client_that_answers_no_ping_is_stale() -> None:
    async with NatsSite(
        NatsLimits(first_ping_seconds=0.01, ping_seconds=0.01, pings_out=2)
    ) as opened:
        talk = await opened.connect()
        assert await talk.closed() == b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"


async def test_a_client_that_answers_pings_stays() -> None:
    async with NatsSite(
        NatsLimits(first_ping_seconds=0.01, ping_seconds=0.5, pings_out=1)
    ) as opened:
        talk = await opened.connect()
        for _ in range(3):
            await talk.expect(b"PING\r\n")
            talk.send(b"PONG\r\n")
        assert await talk.answer() == b""


async def test_a_slow_client_is_disconnected_and_the_others_receive_all() -> None:
    async with NatsSite(NatsLimits(pending_bytes=1 << 20)) as opened:
        slow, quick, sender = [await opened.connect() for _ in range(3)]
        await slow.answer(b"SUB a 1\r\n")
        await quick.answer(b"SUB a 1\r\n")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        clients, message = opened.server.clients, b"PUB a 10000\r\n" + b"x" * 10_000 + b"\r\n"
        sent = 0
        with capture_logs() as told:
            while not clients.gate.slow_consumers:
                await sender.answer(message * 20)
                sent += 20
                assert (await quick.answer()).count(b"MSG a 1 10000\r\n") == 20
        assert [event["event"] for event in told] == ["nats_slow_consumer"]
        assert sent * 10_000 > 1 << 20

        async def gone() -> bool:
            return len(clients.open) == 2

        await eventually(gone)
        assert opened.server.interest.count == 1
        assert clients.gate.slow_consumers == 1


@pytest.mark.feature("P19")
async def test_output_counts_against_the_limit_as_it_is_queued() -> None:
    async with NatsSite(NatsLimits(pending_bytes=8 << 20)) as opened:
        greedy, sender = [await opened.connect() for _ in range(2)]
        await greedy.answer(*(b"SUB a %d\r\n" % sid for sid in range(500)))
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client = opened.server.clients.open[1]
        tracemalloc.start()
        try:
            await sender.answer(b"PUB a 1048576\r\n", bytes(1 << 20), b"\r\n")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert opened.server.clients.gate.slow_consumers == 1
        assert not client.open
        assert not client.subscriptions
        assert client.out_messages < 50
        assert peak < 50 << 20


@pytest.mark.feature("P19")
async def test_a_slow_consumer_reads_whole_messages_and_then_the_error() -> None:
    async with NatsSite(NatsLimits(pending_bytes=8 << 20)) as opened:
        slow, sender = [await opened.connect() for _ in range(2)]
        await slow.answer(b"SUB a 1\r\nSUB a 2\r\n")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        large = b"PUB a 1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
        while not opened.server.clients.gate.slow_consumers:
            await sender.answer(b"PUB a 1\r\ny\r\n", large)
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        got = await slow.closed()
        rest = re.sub(rb"MSG a [12] (?:1\r\ny|1000000\r\nx{1000000})\r\n", b"", got)
        assert rest == b"-ERR 'Slow Consumer'\r\n"


async def test_a_client_that_was_slow_for_a_while_gets_everything_in_order() -> None:
    async with NatsSite() as opened:
        slow, sender = [await opened.connect() for _ in range(2)]
        await slow.answer(b"SUB a 1\r\n")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sizes = [1, 100_000, 10, 1_000_000] * 12
        for size in sizes:
            await sender.answer(b"PUB a %d\r\n" % size, b"x" * size, b"\r\n")
        client = opened.server.clients.open[1]
        drained = asyncio.create_task(client.drained())
        await sender.answer()
        assert not drained.done()
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for size in sizes:
            await slow.expect(b"MSG a 1 %d\r\n" % size + b"x" * size + b"\r\n")
        await asyncio.wait_for(drained, WAIT_SECONDS)
        assert client.out_messages == len(sizes)


@pytest.mark.parametrize("size", [SHARED_BYTES, 1 << 20])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_large_payload_is_written_to_all_subscribers_without_a_copy(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    async with NatsSite() as opened:
        talks = [await opened.connect() for _ in range(3)]
        written: list[bytes] = []
        for talk, client in zip(talks, list(opened.server.clients.open.values()), strict=True):
            await talk.answer(b"SUB a 1\r\nSUB a 2\r\n")
            transport = client._transport
            assert transport is not None
            monkeypatch.setattr(client, "_transport", _Watched(transport, written))
        payload = bytes(size)
        for to in opened.server.exchange.recipients(b"a"):
            to.client.deliver_rows(to, b"a", [b"r"] * count, None, [payload] * count)
            await asyncio.sleep(0)
        monkeypatch.undo()
        assert sum(piece is payload for piece in written) == 6 * count
        heads = b"".join(b"MSG a %d r %d\r\n\r\n" % (sid, size) * count for sid in (1, 2))
        assert b"".join(piece for piece in written if piece is not payload) == heads * 3


async def test_a_closed_client_does_not_count_as_a_receiver() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB a 1\r\n")
        (client,) = opened.server.clients.open.values()
        told: list[str] = []
        opened.server.exchange.on_no_interest(b"a", lambda: told.append("gone"))
        client.close()
        assert told == ["gone"]
        assert opened.server.exchange.send_rows(b"a", [b"a"], [b"r"], None, [b"x"]) == 0
        assert opened.server.exchange.send(b"a", b"", b"", b"x") == 0
        assert await talk.closed() == b""


async def test_a_closed_client_that_reads_nothing_does_not_stay_for_ever() -> None:
    async with NatsSite(NatsLimits(linger_seconds=0.01)) as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB a 1\r\n")
        talk.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (client,) = opened.server.clients.open.values()
        opened.server.exchange.send(b"a", b"", b"", b"x" * (32 << 20))
        await asyncio.sleep(0)
        client.close()

        async def gone() -> bool:
            return not opened.server.clients.open

        await eventually(gone)


class Holding:
    """A target that holds every client that publishes to it."""

    def __init__(self) -> None:
        self.held: list[ConnectedClient] = []
        self.payloads: list[bytes] = []

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        self.payloads += run.payloads
        self.held.append(sender)
        sender.hold()


async def test_a_held_client_is_not_read_until_all_its_publishes_are_done() -> None:
    async with NatsSite() as opened:
        holding = Holding()
        opened.server.exchange.route({b"slow": holding, b"slow2": holding}.get)
        talk = await opened.connect()
        free = await opened.connect()
        message = b"PUB slow 1\r\na\r\nPUB slow2 1\r\nb\r\nPING\r\nPUB slow 1\r\nc\r\n"
        await talk.answer(message.partition(b"PING")[0])
        assert len(holding.held) == 1
        talk.send(b"PING\r\n", b"PUB slow 1\r\nd\r\n")
        for _ in range(5):
            assert await free.answer() == b""
        assert holding.payloads == [b"a", b"b"]
        holding.held.pop().resume()
        await talk.expect(b"PONG\r\n")
        talk.send(b"PING\r\n")

        async def held_again() -> bool:
            return holding.payloads == [b"a", b"b", b"d"]

        await eventually(held_again)
        holding.held.pop().resume()
        await talk.expect(b"PONG\r\n")


async def test_a_client_that_is_held_twice_is_read_when_both_are_done() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer()
        (client,) = opened.server.clients.open.values()
        client.hold()
        client.hold()
        client.resume()
        talk.send(b"PING\r\n")
        assert await (await opened.connect()).answer() == b""
        assert not talk.reader._buffer  # type: ignore[attr-defined]
        client.resume()
        await talk.expect(b"PONG\r\n")


async def test_a_disconnected_client_may_be_held_and_resumed() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer()
        (client,) = opened.server.clients.open.values()
        client.hold()
        await talk.end()
        client.resume()

        async def gone() -> bool:
            return not opened.server.clients.open

        await eventually(gone)
        client.hold()
        client.resume()
        client.close()
        client.send(b"x")


async def test_output_of_one_turn_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB a 1\r\n")
        (client,) = opened.server.clients.open.values()
        written: list[bytes] = []
        transport = client._transport
        assert transport is not None
        monkeypatch.setattr(client, "_transport", _Watched(transport, written), raising=True)
        for _ in range(10):
            opened.server.exchange.send(b"a", b"", b"", b"x")
        await asyncio.sleep(0)
        assert written == [b"MSG a 1 1\r\nx\r\n" * 10]
        monkeypatch.undo()


class _Watched:
    """Records what is written."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport, self._written = transport, written

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._written.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self._written += pieces


@pytest.mark.feature("T26")
def test_confirmations_are_written_in_the_turn_in_which_the_lease_is_checked() -> None:
    looks: list[str] = []

    def look() -> bool:
        looks.append("valid")
        return True

    async def check() -> None:
        async with NatsSite() as opened:
            host, port = opened.server.addresses[0]
            with closing(socket.create_connection((host, int(port)))) as client:
                client.sendall(b"CONNECT {}\r\nSUB r 1\r\nPING\r\n")
                got = b""
                while b"PONG" not in got:
                    got += await asyncio.to_thread(client.recv, 1 << 16)
                client.setblocking(False)
                opened.server.clients.enable_jetstream(look)
                opened.server.exchange.answer([b"r"], [b"stored"])
                opened.server.exchange.answer([b"r"], [b"too"])
                read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

                def read_now() -> None:
                    read.set_result(client.recv(1 << 16))

                # In the same turn as the flush, which is scheduled already, and behind it.
                asyncio.get_running_loop().call_soon(read_now)
                assert await read == b"MSG r 1 6\r\nstored\r\nMSG r 1 3\r\ntoo\r\n"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
    assert looks == ["valid"]


async def test_many_events_of_one_client_are_handled_in_order_and_in_parts() -> None:
    async with NatsSite() as opened:
        busy, other = await opened.connect(), await opened.connect()
        await busy.answer()
        (client, _) = opened.server.clients.open.values()
        count = 3 * EVENTS_PER_TURN + 1
        lines = [b"SUB s.%d %d\r\n" % (number, number) for number in range(count)]
        connection_of(client).data_received(b"".join(lines))
        assert len(client.subscriptions) == EVENTS_PER_TURN
        assert await other.answer() == b""
        # What comes meanwhile is handled behind them.
        assert await busy.answer(b"PUB s.%d 1\r\nx\r\n" % (count - 1)) == (
            b"MSG s.%d %d 1\r\nx\r\n" % (count - 1, count - 1)
        )
        assert list(client.subscriptions) == [b"%d" % number for number in range(count)]


async def test_events_of_a_client_that_fails_are_not_handled_in_later_turns() -> None:
    async with NatsSite() as opened:
        busy = await opened.connect()
        await busy.answer()
        (client,) = opened.server.clients.open.values()
        count = 2 * EVENTS_PER_TURN
        connection_of(client).data_received(
            b"".join(b"SUB s %d\r\n" % number for number in range(count))
        )
        client.fail(b"'Stale Connection'")
        assert await busy.closed() == b"-ERR 'Stale Connection'\r\n"
        assert opened.server.interest.count == 0
