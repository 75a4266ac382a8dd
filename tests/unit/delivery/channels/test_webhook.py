"""One call: where it may go, and what its answer means."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis.strategies import builds, integers, sampled_from, text

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.webhook import (
    ERROR_CHARACTERS_MAX,
    RESPONSE_BYTES_MAX,
    RETRY_AFTER_SECONDS_MAX,
    AddressRefused,
    CallResult,
    Outcome,
    WebhookClient,
    retry_after,
)
from tests.eventually import WAIT_SECONDS

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
    ("outcome", "result"),
    [
        (Outcome(200, "", 1), CallResult.DELIVERED),
        (Outcome(299, "", 1), CallResult.DELIVERED),
        (Outcome(302, "", 1), CallResult.FAILED),
        (Outcome(410, "", 1), CallResult.GONE),
        (Outcome(429, "", 1), CallResult.FAILED),
        (Outcome(429, "", 1, 5.0), CallResult.BUSY),
        (Outcome(503, "", 1, 0.0), CallResult.BUSY),
        (Outcome(500, "", 1, 5.0), CallResult.FAILED),
        (Outcome(0, "reset", 1), CallResult.FAILED),
    ],
)
def test_the_status_of_a_response_decides_its_result(outcome: Outcome, result: CallResult) -> None:
    assert outcome.result is result


async def test_a_call_posts_the_body_and_reads_the_response() -> None:
    client = WebhookClient(Addresses(loopback=True), 5)
    reply = b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow"
    async with receiver(reply) as (port, seen):
        outcome = await client.call(f"http://127.0.0.1:{port}/x", [("X-A", "1")], b"body", 0)
    assert outcome[:2] == (429, "slow")
    assert outcome.retry_after_seconds == 7
    assert seen[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert seen[0].endswith(b"\r\n\r\nbody")
    assert b"X-A: 1\r\n" in seen[0]
    await client.close()


@pytest.mark.feature("C19")
async def test_a_host_name_is_refused_by_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = WebhookClient(Addresses(), 5)
    async with receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, seen):
        for host in ("localhost", "127.0.0.1", "[::ffff:127.0.0.1]"):
            outcome = await client.call(f"http://{host}:{port}/", [], b"x", 0)
            assert "not open to callbacks" in outcome.error
    assert seen == []
    await client.close()


@pytest.mark.feature("C19")
async def test_a_host_name_is_checked_at_every_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First it leads to an open address, then, for the same name, to a closed one."""
    client = WebhookClient(Addresses(["127.0.0.2/32"]), 5)
    loop = asyncio.get_running_loop()
    answers = iter(["127.0.0.2", "127.0.0.1"])

    async def rebinding(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(loop, "getaddrinfo", rebinding)
    first = await client.call("http://rebinding.example:9/", [], b"x", 0)
    second = await client.call("http://rebinding.example:9/", [], b"x", 0)
    assert "not open" not in first.error
    assert "127.0.0.1 is not open to callbacks" in second.error
    await client.close()


@pytest.mark.feature("C19")
def test_a_closed_address_gets_no_socket() -> None:
    client = WebhookClient(Addresses(), 5)
    with pytest.raises(AddressRefused):
        client._socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80)))


async def test_a_response_that_is_late_is_a_failure() -> None:
    client = WebhookClient(Addresses(loopback=True), 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    outcome = await client.call(f"http://127.0.0.1:{silent.getsockname()[1]}/", [], b"x", 0)
    assert outcome[:2] == (0, "no answer in 0.2 s")
    silent.close()
    await client.close()


@pytest.mark.parametrize("url", ["http://[::bad", "http://a b/", "nonsense"])
async def test_a_malformed_url_is_a_failure(url: str) -> None:
    client = WebhookClient(Addresses(), 1)
    assert (await client.call(url, [], b"x", 0)).status == 0
    await client.close()


async def test_a_header_that_cannot_be_sent_is_a_failure() -> None:
    client = WebhookClient(Addresses(loopback=True), 1)
    async with receiver(b"") as (port, seen):
        outcome = await client.call(f"http://127.0.0.1:{port}/", [("A", "b\r\nC: d")], b"x", 0)
        await client.close()
    assert outcome.status == 0
    assert seen == []


# -- names and addresses


Resolve = Callable[[str], Iterable[str]]


def _resolving(monkeypatch: pytest.MonkeyPatch, resolve: Resolve) -> None:
    """Makes names of this event loop resolve to the addresses that `resolve` returns."""

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (ip, port, 0, 0))
            if ":" in ip
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))
            for ip in resolve(host)
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.feature("C19")
async def test_an_address_is_resolved_once_for_its_check_and_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name whose second lookup leads to a closed address is connected to where it led first."""
    client = WebhookClient(Addresses(["127.0.0.2/32"]), 5)
    async with receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, seen):
        answers = iter(["127.0.0.2", "127.0.0.1", "127.0.0.1"])
        _resolving(monkeypatch, lambda host: [next(answers)])
        first = await client.call(f"http://rebinding.example:{port}/", [], b"x", 0)
        assert first.error.startswith("Cannot connect to host rebinding.example")
        assert list(answers) == ["127.0.0.1", "127.0.0.1"]
    # 127.0.0.1 was never connected to, though a receiver listens there.
    assert seen == []
    await client.close()


@pytest.mark.feature("C19")
@pytest.mark.parametrize(
    "ips",
    [
        ["10.0.0.1", "127.0.0.1"],
        ["127.0.0.1", "10.0.0.1"],
        ["::1", "127.0.0.1"],
        ["::ffff:10.0.0.1", "0.0.0.0", "169.254.169.254", "127.0.0.1"],
    ],
)
async def test_only_the_open_addresses_of_a_host_are_connected_to(
    monkeypatch: pytest.MonkeyPatch, ips: list[str]
) -> None:
    client = WebhookClient(Addresses(["127.0.0.1/32"]), 5)
    connected = []
    create = client._socket

    def created(address: tuple[object, ...]) -> socket.socket:
        sock = create(address)
        connected.append(address[4][0])  # type: ignore[index]
        return sock

    client._socket = created  # type: ignore[method-assign]
    _resolving(monkeypatch, lambda host: ips)
    async with receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, seen):
        outcome = await client.call(f"http://several.example:{port}/", [], b"x", 0)
    assert (outcome.status, len(seen), connected) == (200, 1, ["127.0.0.1"])
    await client.close()


@pytest.mark.feature("C19")
@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost.", "LOCALHOST", "127.0.0.1", "127.1", "127.0.0.1."),
        *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "0", "0.0.0.0"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]"),
        *("[64:ff9b::7f00:1]", "[::ffff:0:7f00:1]", "[2002:7f00:1::]", "[::1%25lo]"),
        *("\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "\u24db\u24de\u24d2alhost"),
    ],
)
async def test_no_spelling_of_a_loopback_address_is_connected_to(host: str) -> None:
    client = WebhookClient(Addresses(), 5)
    async with receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (port, seen):
        outcome = await client.call(f"http://{host}:{port}/", [], b"x", 0)
    assert (outcome.status, seen) == (0, [])
    await client.close()


@pytest.mark.feature("C19")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_not_followed(status: int) -> None:
    client = WebhookClient(Addresses(loopback=True), 5)
    async with receiver(b"") as (target, never):
        location = f"http://127.0.0.1:{target}/".encode()
        reply = b"HTTP/1.1 %d Go\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n"
        async with receiver(reply % (status, location)) as (port, seen):
            outcome = await client.call(f"http://127.0.0.1:{port}/", [], b"x", 0)
    assert (outcome.status, outcome.result) == (status, CallResult.FAILED)
    assert (len(seen), never) == (1, [])
    await client.close()


# -- receivers that answer badly


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


def _endless(start: bytes, more: bytes) -> Talk:
    """Sends the start, then more without end."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(more)
            await writer.drain()

    return talk


def _cut(start: bytes) -> Talk:
    """Sends the start and closes the connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await writer.drain()

    return talk


def _slow(start: bytes, more: bytes) -> Talk:
    """Sends the start, and then a byte from time to time."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        for byte in more:
            await writer.drain()
            await asyncio.sleep(0.3)
            writer.write(bytes([byte]))

    return talk


async def _call(talk: Talk, body: bytes = b"x", seconds: float = WAIT_SECONDS) -> Outcome:
    """The outcome of one call to a receiver that reads the head of the request and then talks."""
    tasks = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    client = WebhookClient(Addresses(loopback=True), seconds)
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(WAIT_SECONDS):
            return await client.call(f"http://127.0.0.1:{port}/", [], body, 0)
    finally:
        await client.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


BAD_ANSWERS = {
    "headers without end": _endless(OK, b"".join(b"x-%d: y\r\n" % n for n in range(1000))),
    "a header without end": _endless(b"HTTP/1.1 429 No\r\nRetry-After: ", b"9" * 65536),
    "a header name without end": _endless(OK, b"a" * 65536),
    "a reason without end": _endless(b"HTTP/1.1 200 ", b"a" * 65536),
    "interim answers without end": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000),
    "early hints without end": _endless(b"", b"HTTP/1.1 103 H\r\nLink: x\r\n\r\n" * 2000),
    "no HTTP": _endless(b"", b"\x00\xff" * 65536),
    "invalid header names": _cut(OK + b"\xff\xfe\x00: \xff\r\n\r\n"),
    "nothing": _cut(b""),
    "half a head": _cut(OK + b"Conte"),
    "a chunk size that is too large": _cut(
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n"
    ),
    "a length that is no number": _cut(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
    "a negative length": _cut(OK + b"Content-Length: -1\r\n\r\n"),
}


@pytest.mark.parametrize("talk", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_a_malformed_response_is_a_failure_with_a_short_error(talk: Talk) -> None:
    outcome = await _call(talk)
    assert (outcome.status, outcome.result) == (0, CallResult.FAILED)
    assert 0 < len(outcome.error) <= ERROR_CHARACTERS_MAX
    assert not outcome.error.startswith("no answer in")
    msgspec.json.encode(outcome.error)


async def test_interim_responses_are_skipped_within_the_limit() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert (await _call(_cut(interim * 10 + final))).status == 200
    outcome = await _call(_cut(interim * (RESPONSE_BYTES_MAX // len(interim) + 1) + final))
    assert outcome[:2] == (0, f"the answer is longer than {RESPONSE_BYTES_MAX} bytes")


LENGTH = b"Content-Length: 100\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BAD_BODIES = {
    "no body": _cut(LENGTH),
    "half a body": _cut(LENGTH + b"half"),
    "a body byte by byte": _slow(LENGTH, b"x" * 100),
    "a body without end": _endless(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    "a chunk extension without end": _endless(CHUNKED + b"1;", b"a" * 65536),
    "a body that turns invalid": _cut(CHUNKED + b"1\r\nx\r\n"),
}


def _after(head: bytes, talk: Talk) -> Talk:
    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await talk(reader, writer)

    return both


@pytest.mark.parametrize("talk", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_broken_body_does_not_change_the_result(talk: Talk) -> None:
    outcome = await _call(_after(OK, talk))
    assert (outcome.status, outcome.error, outcome.result) == (200, "", CallResult.DELIVERED)
    outcome = await _call(_after(b"HTTP/1.1 503 No\r\nRetry-After: 7\r\n", talk))
    assert (outcome.status, outcome.retry_after_seconds) == (503, 7.0)
    assert len(outcome.error) <= ERROR_CHARACTERS_MAX


async def test_headers_that_arrive_byte_by_byte_time_out() -> None:
    outcome = await _call(_slow(b"", OK + b"\r\n"), seconds=1)
    assert outcome[:2] == (0, "no answer in 1 s")


@pytest.mark.parametrize(
    "value", [b"Mon, 01 Jan 99999999999 00:00:00 GMT", b"\xff\xfe", b"1e9", b"-1"]
)
async def test_a_malformed_retry_after_is_ignored(value: bytes) -> None:
    head = b"HTTP/1.1 429 No\r\nContent-Length: 0\r\nRetry-After: " + value + b"\r\n\r\n"
    outcome = await _call(_cut(head))
    assert (outcome.status, outcome.retry_after_seconds) == (429, None)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_receiver_that_does_not_read_the_body_responds_or_times_out() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await asyncio.sleep(WAIT_SECONDS)

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(WAIT_SECONDS)

    body = b"x" * (32 << 20)
    assert (await _call(answer, body)).status == 200
    assert (await _call(silence, body, seconds=0.5))[:2] == (0, "no answer in 0.5 s")


async def test_every_response_on_a_reused_connection_has_the_whole_limit() -> None:
    body = b"x" * (RESPONSE_BYTES_MAX // 3)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    connections = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\nx")
                writer.write(reply)
        writer.close()

    client = WebhookClient(Addresses(loopback=True), WAIT_SECONDS)
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for _ in range(10):
            assert (await client.call(url, [], b"x", 0)).status == 200
        await client.close()
    assert len(connections) <= 10


RETRY_NOW_US = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 5 ", 5.0),
        ("0", 0.0),
        ("99999999999999", 86_400.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:14:20", 60.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("9" * 8000, 86_400.0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2001 00:00:00 +99999999999", None),
        ("Mon, 99999999999999999999 Jan 2001 00:00:00 GMT", None),
        ("\udcff", None),
    ],
)
def test_retry_after_has_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after(value, RETRY_NOW_US) == seconds


@given(
    text()
    | builds(
        "{} {} {} {}:{}:{} {}".format,
        *(integers(), sampled_from(["Jan", "Feb", "xyz", ""]), integers()),
        *(integers(), integers(), integers(), integers() | text()),
    )
)
def test_any_text_is_a_bounded_delay_or_none(value: str) -> None:
    seconds = retry_after(value, RETRY_NOW_US)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_SECONDS_MAX
