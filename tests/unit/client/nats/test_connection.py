import asyncio
import json

import pytest

from penstock.client.nats.connection import WAITING_MAX, NatsConnection
from penstock.client.nats.errors import NatsStatus, NatsTimeout, NatsUnreachable
from penstock.client.nats.protocol import subscribe
from tests.unit.client.nats.served import GREETING, Scripted

REFUSING = GREETING + b"-ERR 'Authorization Violation'\r\n"


async def _flush_on(connection: NatsConnection) -> None:
    async with asyncio.timeout(10):
        while True:
            await connection.flush()


async def test_connect_sends_the_client_s_options_and_credentials() -> None:
    async with Scripted() as server:
        connection = await server.connect("ada:l%40ve@")
        options = json.loads(server.sent.removeprefix(b"CONNECT ").partition(b"\r\n")[0])
        assert (options["user"], options["pass"]) == ("ada", "l@ve")
        assert (options["headers"], options["no_responders"], options["verbose"]) == (1, 1, 0)
        await connection.close()


async def test_a_user_without_a_password_is_sent_as_a_token() -> None:
    async with Scripted() as server:
        connection = await server.connect("t0ken@")
        assert b'"auth_token": "t0ken"' in server.sent
        await connection.close()


async def test_a_request_returns_the_first_reply_and_forgets_its_inbox() -> None:
    async with Scripted() as server:
        connection = await server.connect()
        asking = asyncio.create_task(connection.request(b"a", b"hi", 10))
        await server.heard(b"SUB _INBOX.u0 1\r\nUNSUB 1 1\r\nPUB a _INBOX.u0 2\r\nhi\r\n")
        server.say(b"MSG _INBOX.u0 1 3\r\nyes\r\n")
        assert (await asking).payload == b"yes"
        await connection.close()


async def test_a_request_without_a_reply_times_out_and_unsubscribes() -> None:
    async with Scripted() as server:
        connection = await server.connect()
        with pytest.raises(NatsTimeout, match=r"^no answer came from a within 0.01 s$"):
            await connection.request(b"a", b"", 0.01)
        await server.heard(b"UNSUB 1\r\n")
        await connection.close()


async def test_a_request_without_responders_fails_at_once() -> None:
    async with Scripted() as server:
        connection = await server.connect()
        asking = asyncio.create_task(connection.request(b"a", b"", 10))
        await server.heard(b"PUB a")
        server.say(b"HMSG _INBOX.u0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
        with pytest.raises(NatsStatus, match="503"):
            await asking
        await connection.close()


async def test_a_ping_is_answered() -> None:
    async with Scripted() as server:
        connection = await server.connect()
        server.say(b"PING\r\n")
        await server.heard(b"PONG\r\n")
        await connection.close()


async def test_a_lost_connection_ends_every_wait_with_an_error() -> None:
    async with Scripted() as server:
        connection = await server.connect()
        asking = asyncio.create_task(connection.request(b"a", b"", 10))
        await server.heard(b"PUB a")
        server.say(b"-ERR 'Stale Connection'\r\n")
        server.hang_up()
        with pytest.raises(NatsUnreachable, match="Stale Connection"):
            await asking
        with pytest.raises(NatsUnreachable):
            await connection.write(b"PING\r\n")


async def test_a_refused_login_raises_the_server_s_reason() -> None:
    async with Scripted(REFUSING, pongs=False) as server:
        opening = asyncio.create_task(server.connect())
        await server.heard(b"CONNECT")
        server.hang_up()
        with pytest.raises(NatsUnreachable, match="Authorization Violation"):
            await opening


async def test_a_server_of_another_protocol_is_refused() -> None:
    async with Scripted(b"SSH-2.0-x\r\n") as server:
        with pytest.raises(NatsUnreachable, match="what is not NATS"):
            await server.connect()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:4222", "nats://", "127.0.0.1:4222", "nats://[::1", "nats://a:99999"]
)
async def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(NatsUnreachable, match="it must be written nats://HOST:PORT"):
        await NatsConnection.open(url, str)


async def test_the_error_names_the_unreachable_server() -> None:
    async with Scripted() as server:
        port = server.port
    with pytest.raises(NatsUnreachable, match=f"^the NATS server at nats://127.0.0.1:{port} "):
        await NatsConnection.open(f"nats://127.0.0.1:{port}", str)


async def test_the_error_shows_an_ipv6_address_in_brackets() -> None:
    with pytest.raises(NatsUnreachable, match=r"^the NATS server at nats://\[::1\]:1 "):
        await NatsConnection.open("nats://[::1]:1", str)


async def test_too_many_unread_messages_end_the_connection() -> None:
    async with Scripted() as server:
        connection = await server.connect()
        inbox = connection.inbox()
        await connection.write(subscribe(inbox))
        server.say(b"MSG a 1 0\r\n\r\n" * (WAITING_MAX + 1))
        with pytest.raises(
            NatsUnreachable, match=f"more than {WAITING_MAX} messages of a subscription are unread"
        ):
            await _flush_on(connection)
