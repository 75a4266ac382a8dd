"""A broker that is killed at any moment while consumers pull and acknowledge, again and again.

What was stored is delivered at least once, and what was answered (a double ack, a term) is never
delivered again.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.broker.consumers import Message, Peer
from tests.broker.nats import Talk
from tests.servers.nats import OURS, NatsServer

LIVES = 7
BATCH = 8
ACK_WAIT_NS = 300_000_000
CONNECT = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'


@dataclass
class Book:
    """What clients know."""

    stored: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    again: int = 0
    """Deliveries of messages that were delivered in an earlier life."""


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Peer]:
    talk = Talk(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        await talk.greeted()
        talk.send(CONNECT)
        yield Peer(talk)
    finally:
        await talk.end()


async def publish(server: NatsServer, book: Book) -> None:
    async with connected(server) as peer:
        while True:
            told = msgspec.json.decode((await peer.request("q.x", b"payload")).payload)
            book.stored.add(told["seq"])


async def work(server: NatsServer, book: Book, chance: random.Random) -> None:
    async with connected(server) as peer:
        while True:
            # A delivery may race an answer under way, but not one that came before the pull.
            ended = frozenset(book.answered)
            sid = peer.pull("Q", "d", {"batch": BATCH, "expires": 100_000_000})
            for _ in range(BATCH):
                message = await peer.next(sid)
                if not message.reply:
                    break
                assert sequence(message) not in ended, f"its end was confirmed: {message}"
                await treat(peer, message, book, chance)
            peer.unsubscribe(sid)


def sequence(message: Message) -> int:
    return int(message.reply.split(".")[5])


async def treat(peer: Peer, message: Message, book: Book, chance: random.Random) -> None:
    seq = sequence(message)
    book.again += seq in book.delivered
    book.delivered.add(seq)
    decision = chance.random()
    if decision < 0.6:
        await peer.request(message.reply, b"+ACK" if decision < 0.4 else b"+TERM")
        book.answered.add(seq)
    elif decision < 0.8:
        peer.publish(message.reply, b"+ACK")


async def live(server: NatsServer, book: Book, chance: random.Random, seconds: float) -> None:
    """Work for a while, then have the broker killed in the middle of it."""
    tasks = [
        asyncio.create_task(publish(server, book)),
        *(asyncio.create_task(work(server, book, chance)) for _ in range(2)),
    ]
    await asyncio.sleep(seconds)
    server.close()
    for task in tasks:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await task


async def finish(server: NatsServer, book: Book, chance: random.Random) -> None:
    """Deliver everything that is left."""
    worker = asyncio.create_task(work(server, book, chance))
    async with connected(server) as peer:
        while not worker.done():
            info = await peer.info("Q", "d")
            if not info["num_pending"] and not info["num_ack_pending"]:
                worker.cancel()
            await asyncio.sleep(0.05)
    with suppress(asyncio.CancelledError):
        await worker


@pytest.mark.feature("P18")
async def test_however_often_the_broker_is_killed_consumers_lose_nothing_and_answers_hold(
    tmp_path: Path,
) -> None:
    chance, book = random.Random(5), Book()
    server = NatsServer(tmp_path, OURS)
    try:
        for number in range(LIVES):
            server.start()
            if number == 0:
                async with connected(server) as peer:
                    await peer.stream("Q", "q.>")
                    await peer.consumer("Q", "d", ack_wait=ACK_WAIT_NS, max_ack_pending=50)
            await live(server, book, chance, 0.3 + chance.random())
        server.start()
        await finish(server, book, chance)
    finally:
        server.close()
    assert len(book.stored) > LIVES
    assert book.stored <= book.delivered
    assert book.again
