"""The server as a whole: start, disconnects and shutdown."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.broker.nats import NatsSite


@pytest.mark.feature("P19")
async def test_invalid_input_does_not_affect_other_clients() -> None:
    async with NatsSite() as opened:
        good = await opened.connect()
        await good.answer(b"SUB a 1\r\n")
        nonsense = [b"\x00" * 100, b"\r\n" * 100, b"{}", b"GET / HTTP/1.1\r\n\r\n", b"PUB a 99\r\n"]
        nonsense += [b"SUB \xff\xff\xff 1\r\nPUB \xff 0\r\n\r\n", os.urandom(5000) + b"\n" * 10]
        for data in nonsense:
            bad = await opened.open()
            bad.send(data)
            await bad.end()
            assert await good.answer(b"PUB a 1\r\nx\r\n") == b"MSG a 1 1\r\nx\r\n"


async def test_clients_read_their_pending_output_when_the_server_closes() -> None:
    opened = NatsSite()
    async with opened:
        talk = await opened.connect()
        await talk.answer(b"SUB a 1\r\n")
        opened.server.exchange.send(b"a", b"", b"", b"x" * 100_000)
        drained = asyncio.create_task(opened.server.drain(30))
        assert await talk.closed() == b"MSG a 1 100000\r\n" + b"x" * 100_000 + b"\r\n"
        await drained
        assert not opened.server.clients.open
        assert opened.server.interest.count == 0
        host, port = opened.server.addresses[0]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))


async def test_a_server_waits_for_a_slow_reader_only_so_long() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB a 1\r\n")
        talk.writer.transport.pause_reading()  # type: ignore[attr-defined]
        opened.server.exchange.send(b"a", b"", b"", b"x" * (32 << 20))
        await opened.server.drain(0.05)
        assert opened.server.clients.open


async def test_in_lame_duck_mode_clients_are_notified_and_still_served() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer()
        opened.server.lame_duck()
        assert (await talk.info())["ldm"] is True
        assert await talk.answer(b"SUB a 1\r\nPUB a 1\r\nx\r\n") == b"MSG a 1 1\r\nx\r\n"
