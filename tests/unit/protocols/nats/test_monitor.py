import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.config import Address
from penstock.host.clock import Clock
from penstock.protocols.listener import listen
from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.monitor import Monitor
from penstock.protocols.nats.server import NatsServer


class NatsSite:
    """A server and its monitoring pages."""

    def __init__(self) -> None:
        self.listener = listen([Address("127.0.0.1", 0)], "--nats")
        self.pages = listen([Address("127.0.0.1", 0)], "-m")
        self.server = NatsServer(self.listener, NatsLimits(), Credentials(), "here")
        self.monitor = Monitor(self.pages, self.server.clients, Clock())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.addresses[0])
        writer.write(
            b'CONNECT {"verbose":false,"name":"n","lang":"l","version":"7"}\r\n'
            b"SUB a.b 1\r\nPUB a.b 2\r\nhi\r\nPUB c 3\r\nfor\r\nPING\r\n"
        )
        await reader.readuntil(b"PONG\r\n")
        return reader, writer

    async def get(self, path: str) -> Any:
        return json.loads((await self.exchange(f"GET {path} HTTP/1.1\r\n\r\n"))[1])

    async def exchange(self, request: str) -> tuple[str, str]:
        reader, writer = await asyncio.open_connection(*self.pages.addresses[0])
        writer.write(request.encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        await closed(writer)
        return head.partition("\r\n")[0], body


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.fixture
async def served() -> AsyncIterator[NatsSite]:
    served = NatsSite()
    await served.server.start()
    await served.monitor.start()
    yield served
    served.monitor.close()
    await served.server.drain(1)
    served.listener.close()
    served.pages.close()


async def test_varz_counts_input_and_output(served: NatsSite) -> None:
    before = await served.get("/varz")
    assert (before["server_name"], before["connections"], before["in_msgs"]) == ("here", 0, 0)
    assert before["port"] == served.listener.addresses[0].port
    _, writer = await served.connect()
    now = await served.get("/varz")
    counted = [now[name] for name in ("connections", "in_msgs", "out_msgs", "subscriptions")]
    assert counted == [1, 2, 1, 1]
    assert [now["in_bytes"], now["out_bytes"]] == [5, 2]
    await closed(writer)


async def test_the_counts_of_a_disconnected_client_remain(served: NatsSite) -> None:
    _, writer = await served.connect()
    await closed(writer)
    await served.server.clients.empty.wait()
    gone = await served.get("/varz")
    assert (gone["connections"], gone["total_connections"], gone["in_msgs"]) == (0, 1, 2)


async def test_connz_lists_every_client(served: NatsSite) -> None:
    _, first = await served.connect()
    _, second = await served.connect()
    told = await served.get("/connz?subs=1&limit=1")
    assert (told["num_connections"], told["total"], told["limit"]) == (1, 2, 1)
    (shown,) = told["connections"]
    assert shown.pop("port") == first.get_extra_info("sockname")[1]
    assert shown == {
        "cid": 1,
        "kind": "Client",
        "type": "nats",
        "ip": "127.0.0.1",
        "in_msgs": 2,
        "out_msgs": 2,
        "in_bytes": 5,
        "out_bytes": 4,
        "subscriptions": 1,
        "name": "n",
        "lang": "l",
        "version": "7",
        "subscriptions_list": ["a.b"],
    }
    (other,) = (await served.get("/connz?offset=1"))["connections"]
    assert (other["cid"], "subscriptions_list" in other) == (2, False)
    await closed(first)
    await closed(second)


async def test_another_page_or_method_is_refused(served: NatsSite) -> None:
    assert (await served.exchange("GET /x HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 404 Not Found"
    assert (await served.exchange("POST /varz HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 400 Bad Request"
    assert (await served.exchange("HEAD /healthz HTTP/1.1\r\n\r\n")) == ("HTTP/1.1 200 OK", "")


async def test_a_request_that_is_too_long_gets_no_answer(served: NatsSite) -> None:
    head, body = await served.exchange("GET /" + "x" * 10_000)
    assert (head, body) == ("", "")
