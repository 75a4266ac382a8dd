"""One call: where it may go, and what its answer means."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.webhook import AddressClosed, Caller, Outcome, Verdict

pytestmark = pytest.mark.feature("C05")


@asynccontextmanager
async def receiver(reply: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that answers every request with these bytes, and what came in."""
    seen: list[bytes] = []
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        if data := await reader.read(65536):
            seen.append(data)
            writer.write(reply)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], seen
        if handlers:
            await asyncio.wait(handlers)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(200, "", 1), Verdict.DELIVERED),
        (Outcome(299, "", 1), Verdict.DELIVERED),
        (Outcome(302, "", 1), Verdict.FAILED),
        (Outcome(410, "", 1), Verdict.GONE),
        (Outcome(429, "", 1), Verdict.FAILED),
        (Outcome(429, "", 1, 5.0), Verdict.BUSY),
        (Outcome(503, "", 1, 0.0), Verdict.BUSY),
        (Outcome(500, "", 1, 5.0), Verdict.FAILED),
        (Outcome(0, "reset", 1), Verdict.FAILED),
    ],
)
def test_what_an_answer_means(outcome: Outcome, verdict: Verdict) -> None:
    assert outcome.verdict is verdict


async def test_a_call_posts_the_body_and_reads_the_answer() -> None:
    caller = Caller(Addresses(loopback=True), 5)
    reply = b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow"
    async with receiver(reply) as (port, seen):
        outcome = await caller.call(f"http://127.0.0.1:{port}/x", {"X-A": "1"}, b"body", 0)
    assert outcome[:2] == (429, "slow")
    assert outcome.retry_after_seconds == 7
    assert seen[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert seen[0].endswith(b"\r\n\r\nbody")
    assert b"X-A: 1\r\n" in seen[0]
    await caller.close()


@pytest.mark.feature("C19")
async def test_a_name_is_judged_by_the_address_it_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Caller(Addresses(), 5)
    async with receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, seen):
        for host in ("localhost", "127.0.0.1", "[::ffff:127.0.0.1]"):
            outcome = await caller.call(f"http://{host}:{port}/", {}, b"x", 0)
            assert "not open to callbacks" in outcome.error
    assert seen == []
    await caller.close()


@pytest.mark.feature("C19")
async def test_a_name_that_changes_its_mind_is_judged_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First it leads to an open address, then, for the same name, to a closed one."""
    caller = Caller(Addresses(["127.0.0.2/32"]), 5)
    loop = asyncio.get_running_loop()
    answers = iter(["127.0.0.2", "127.0.0.1"])

    async def rebinding(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(loop, "getaddrinfo", rebinding)
    first = await caller.call("http://rebinding.example:9/", {}, b"x", 0)
    second = await caller.call("http://rebinding.example:9/", {}, b"x", 0)
    assert "not open" not in first.error
    assert "127.0.0.1 is not open to callbacks" in second.error
    await caller.close()


@pytest.mark.feature("C19")
def test_no_socket_is_made_for_a_closed_address() -> None:
    caller = Caller(Addresses(), 5)
    with pytest.raises(AddressClosed):
        caller._socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80)))


async def test_no_answer_in_time_is_an_answer_too() -> None:
    caller = Caller(Addresses(loopback=True), 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    outcome = await caller.call(f"http://127.0.0.1:{silent.getsockname()[1]}/", {}, b"x", 0)
    assert outcome[:2] == (0, "no answer in 0.2 s")
    silent.close()
    await caller.close()


@pytest.mark.parametrize("url", ["http://[::bad", "http://a b/", "nonsense"])
async def test_an_address_that_is_none_has_failed(url: str) -> None:
    caller = Caller(Addresses(), 1)
    assert (await caller.call(url, {}, b"x", 0)).status == 0
    await caller.close()


async def test_a_header_that_cannot_be_sent_has_failed() -> None:
    caller = Caller(Addresses(loopback=True), 1)
    async with receiver(b"") as (port, seen):
        outcome = await caller.call(f"http://127.0.0.1:{port}/", {"A": "b\r\nC: d"}, b"x", 0)
        await caller.close()
    assert outcome.status == 0
    assert seen == []
