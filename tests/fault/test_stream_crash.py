"""A broker that is killed while streams are created and published to."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.broker.consumers import Peer
from tests.fault.test_consumer_crash import connected
from tests.servers.nats import OURS, NatsServer

LIVES = 8
MESSAGES = 60
CONSUMER = {"durable_name": "d", "ack_policy": "explicit"}
FIRST_SEQ = 1 << 62


async def api(peer: Peer, endpoint: str, **body: Any) -> dict[str, Any]:
    asked = json.dumps(body).encode() if body else b""
    answer: dict[str, Any] = json.loads((await peer.request(f"$JS.API.{endpoint}", asked)).payload)
    return answer


async def test_a_stream_created_when_the_broker_is_killed_is_absent_or_has_its_first_sequence(
    tmp_path: Path,
) -> None:
    chance, found = random.Random(7), list[bool]()
    server = NatsServer(tmp_path, OURS)
    try:
        for life in range(LIVES):
            server.start()
            async with connected(server) as peer:
                if life:
                    info = await api(peer, f"STREAM.INFO.S{life - 1}")
                    found.append("error" not in info)
                if life and found[-1]:
                    state = info["state"]
                    assert (state["first_seq"], state["last_seq"]) == (FIRST_SEQ, FIRST_SEQ - 1)
                    told = json.loads((await peer.request(f"s{life - 1}", b"x")).payload)
                    assert told == {"stream": f"S{life - 1}", "seq": FIRST_SEQ}
                config = {"name": f"S{life}", "subjects": [f"s{life}"], "first_seq": FIRST_SEQ}
                peer.publish(f"$JS.API.STREAM.CREATE.S{life}", json.dumps(config).encode(), "r")
                await asyncio.sleep(chance.random() * 0.02)
                server.close()
    finally:
        server.close()


async def publish(peer: Peer, subject: str, message_id: str) -> dict[str, Any]:
    """The answer to a message with an id."""
    block = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n".encode()
    sid = peer.subscribe(inbox := f"_INBOX.{message_id}")
    peer.unsubscribe(sid, 1)
    peer.send(b"HPUB %b %b %d %d\r\n" % (subject.encode(), inbox.encode(), len(block), len(block)))
    peer.send(block, b"\r\n")
    answer: dict[str, Any] = json.loads((await peer.next(sid)).payload)
    return answer


async def _work_off(peer: Peer) -> None:
    """Acknowledge every message of the work queue."""
    await api(peer, "CONSUMER.CREATE.S.d", stream_name="S", config=CONSUMER)
    sid = peer.pull("S", "d", {"batch": MESSAGES, "expires": 5_000_000_000})
    for message in await peer.several(MESSAGES, sid):
        await peer.request(message.reply, b"+ACK")


async def _purge(peer: Peer) -> None:
    assert (await api(peer, "STREAM.PURGE.S", keep=10))["purged"] == MESSAGES - 10


async def _delete(peer: Peer) -> None:
    for seq in range(1, MESSAGES, 7):
        assert (await api(peer, "STREAM.MSG.DELETE.S", seq=seq))["success"]


async def _nothing(peer: Peer) -> None:
    """The limits of the stream removed messages already."""


@pytest.mark.feature("P03")
@pytest.mark.parametrize(
    ("config", "remove"),
    [
        ({"retention": "workqueue"}, _work_off),
        ({}, _purge),
        ({}, _delete),
        ({"max_msgs_per_subject": 1}, _nothing),
        ({"max_msgs": 5}, _nothing),
    ],
)
async def test_a_message_that_was_removed_is_a_duplicate_after_the_broker_is_killed(
    tmp_path: Path, config: dict[str, Any], remove: Callable[[Peer], Coroutine[Any, Any, None]]
) -> None:
    server = NatsServer(tmp_path, OURS)
    server.start()
    try:
        async with connected(server) as peer:
            await api(peer, "STREAM.CREATE.S", name="S", subjects=["s.>"], **config)
            for n in range(MESSAGES):
                answer = await publish(peer, f"s.{n % 4}", f"id-{n}")
                assert answer == {"stream": "S", "seq": n + 1}
            await remove(peer)
        server.close()
        server.start()
        async with connected(server) as peer:
            for n in range(MESSAGES):
                answer = await publish(peer, f"s.{n % 4}", f"id-{n}")
                assert answer == {"stream": "S", "seq": n + 1, "duplicate": True}
    finally:
        server.close()
