"""API requests and replies, over real sockets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.model.errors import LogReadOnly
from penstock.protocols.nats.jetstream.api import REQUESTS_MAX, Answer, Api, ApiEndpoint, ApiRequest
from penstock.wire.jetstream import errors
from tests.broker.nats import NatsSite, Talk


class RecordingHandlers:
    """Handlers of every kind."""

    def __init__(self) -> None:
        self.requests: list[ApiRequest] = []
        self.gate = asyncio.Event()

    def at_once(self, request: ApiRequest) -> Answer:
        self.requests.append(request)
        return b"now"

    def silent(self, request: ApiRequest) -> Answer:
        return None

    async def later(self, request: ApiRequest) -> Answer:
        self.requests.append(request)
        await self.gate.wait()
        return b"later" if request.body != b"silent" else None

    def refuse(self, request: ApiRequest) -> Answer:
        raise errors.STREAM_NOT_FOUND.error()

    def fail(self, request: ApiRequest) -> Answer:
        raise LogReadOnly("t", "the disk is full")

    async def fail_later(self, request: ApiRequest) -> Answer:
        raise LogReadOnly("t", "the disk is full")

    async def refuse_later(self, request: ApiRequest) -> Answer:
        raise errors.STREAM_NOT_FOUND.error()


class Served:
    """A server with an API."""

    def __init__(self, opened: NatsSite) -> None:
        exchange, self.asked = opened.server.exchange, RecordingHandlers()
        self.api = Api(
            lambda reply, body, confirms: exchange.answer([reply], [body], confirms=confirms)
        )
        asked = self.asked
        self.api.add(
            {
                "INFO": ApiEndpoint(asked.at_once, "account_info_response"),
                "STREAM.INFO": ApiEndpoint(asked.at_once, "stream_info_response", 1, 1),
                "STREAM.MSG.GET": ApiEndpoint(asked.later, "stream_msg_get_response", 1, 2),
                "SILENT": ApiEndpoint(asked.silent, "x_response"),
                "REFUSE": ApiEndpoint(asked.refuse, "stream_info_response"),
                "FAIL": ApiEndpoint(asked.fail, "stream_info_response"),
            }
        )
        self.api.add(
            {
                "PURGE": ApiEndpoint(asked.at_once, "x_response", confirms=True),
                "PURGE.REFUSE": ApiEndpoint(asked.refuse, "x_response", confirms=True),
                "FAIL.LATER": ApiEndpoint(asked.fail_later, "stream_info_response"),
                "REFUSE.LATER": ApiEndpoint(asked.refuse_later, "stream_info_response"),
            }
        )
        exchange.route(lambda s: self.api if s.startswith(b"$JS.API.") else None)


async def ask(talk: Talk, name: bytes, body: bytes = b"", block: bytes = b"") -> None:
    sizes = b"%d %d" % (len(block), len(block) + len(body))
    talk.send(b"HPUB $JS.API.%b in %b\r\n%b%b\r\n" % (name, sizes, block, body))


async def message(talk: Talk) -> bytes:
    line = await talk.line()
    assert line.startswith(b"MSG in 1 "), line
    body = await talk.reader.readexactly(int(line.split()[-1]) + 2)
    return body.removesuffix(b"\r\n")


async def error_of(talk: Talk) -> tuple[str, int, str]:
    told = msgspec.json.decode(await message(talk))
    return told["type"], told["error"]["err_code"], told["error"]["description"]


async def test_a_request_is_handed_to_the_endpoint_with_the_longest_name() -> None:
    async with NatsSite() as opened:
        served, talk = Served(opened), await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        await ask(talk, b"INFO")
        assert await message(talk) == b"now"
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        await ask(talk, b"STREAM.INFO.S", b"body", block)
        assert await message(talk) == b"now"
        (client,) = opened.server.clients.open.values()
        assert served.asked.requests == [
            ApiRequest([], b"", b"", b"in", client),
            ApiRequest(["S"], b"body", block, b"in", client),
        ]
        assert served.api.counted() == (2, 0)


async def test_a_slow_answer_does_not_delay_other_requests() -> None:
    async with NatsSite() as opened:
        served, talk = Served(opened), await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        await ask(talk, b"STREAM.MSG.GET.S")
        await ask(talk, b"STREAM.MSG.GET.S", b"silent")
        await ask(talk, b"INFO")
        assert await message(talk) == b"now"
        draining = asyncio.create_task(served.api.drained())
        await asyncio.sleep(0)
        assert not draining.done()
        served.asked.gate.set()
        assert await message(talk) == b"later"
        await draining
        assert await talk.answer() == b""


@pytest.mark.parametrize(
    "name",
    [b"NOTHING", b"STREAM", b"STREAM.LIST", b"", b"SILENT", b"\xff.x"],
)
async def test_unknown_endpoints_and_empty_answers_send_no_reply(name: bytes) -> None:
    async with NatsSite() as opened:
        Served(opened)
        talk = await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        assert await talk.answer(b"PUB $JS.API.%b in 0\r\n\r\n" % name) == b""


async def test_gets_without_a_reply_subject_are_ignored() -> None:
    async with NatsSite() as opened:
        served, talk = Served(opened), await opened.connect()
        assert await talk.answer(b"PUB $JS.API.INFO 0\r\n\r\n") == b""
        assert served.api.counted() == (0, 0)


@pytest.mark.feature("P19")
@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        (b"REFUSE", 10059, "stream not found"),
        (b"REFUSE.LATER", 10059, "stream not found"),
        (b"STREAM.INFO", 10003, "bad request"),
        (b"STREAM.INFO.a.b", 10003, "bad request"),
    ],
)
async def test_an_error_is_the_answer_that_clients_of_the_endpoint_expect(
    name: bytes, code: int, text: str
) -> None:
    async with NatsSite() as opened:
        served, talk = Served(opened), await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        await ask(talk, name)
        kind = "io.nats.jetstream.api.v1.stream_info_response"
        assert await error_of(talk) == (kind, code, text)
        assert served.api.counted() == (1, 1)


@pytest.mark.feature("P19")
@pytest.mark.parametrize("name", [b"FAIL", b"FAIL.LATER"])
async def test_an_error_of_the_broker_is_answered_and_the_client_stays_connected(
    name: bytes,
) -> None:
    async with NatsSite() as opened:
        served, talk = Served(opened), await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        await ask(talk, name)
        _, _, text = await error_of(talk)
        assert "the disk is full" in text
        await ask(talk, b"INFO")
        assert await message(talk) == b"now"
        assert served.api.counted() == (2, 1)


@pytest.mark.parametrize(
    ("level", "allowed"),
    [(b"0", True), (b"1", True), (b"99", False), (b"x", False), (b"9" * 5000, False)],
)
async def test_a_level_that_is_too_high_is_refused(level: bytes, allowed: bool) -> None:
    async with NatsSite() as opened:
        Served(opened)
        talk = await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        block = b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n" % level
        await ask(talk, b"INFO", b"", block)
        if allowed:
            assert await message(talk) == b"now"
        else:
            assert (await error_of(talk))[1] == 10185


async def test_only_so_many_requests_are_under_way() -> None:
    async with NatsSite() as opened:
        served, talk = Served(opened), await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        for _ in range(REQUESTS_MAX):
            await ask(talk, b"STREAM.MSG.GET.S")
        await ask(talk, b"STREAM.MSG.GET.S")
        assert (await error_of(talk))[1] == 10023
        served.asked.gate.set()
        for _ in range(REQUESTS_MAX):
            assert await message(talk) == b"later"
        await ask(talk, b"STREAM.MSG.GET.S")
        assert await message(talk) == b"later"


@pytest.mark.feature("T26")
async def test_without_a_lease_a_change_is_not_confirmed_and_a_refusal_is_sent() -> None:
    async with NatsSite() as opened:
        Served(opened)
        talk = await opened.connect()
        await talk.answer(b"SUB in 1\r\n")
        opened.server.clients.enable_jetstream(lambda: False)
        await ask(talk, b"INFO")
        assert await message(talk) == b"now"
        await ask(talk, b"PURGE.REFUSE")
        assert (await error_of(talk))[1] == 10059
        await ask(talk, b"PURGE")
        assert await talk.closed() == b""
