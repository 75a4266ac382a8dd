"""A broker that is killed at any moment while a stream copies its sources, again and again.

In the end the stream has every message of every source once, in the order of its source, also those
of a work queue, which gives them away, and though copies were purged meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from pathlib import Path
from typing import Final

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StreamConfig, StreamSource, SubjectTransform

from tests.eventually import eventually
from tests.servers.nats import OURS, NatsServer

LIVES: Final = 6
AT_ONCE: Final = 50
ORIGINS: Final = ("a", "b", "queue")


async def _connected(server: NatsServer) -> tuple[Client, JetStreamContext]:
    async def ignore(error: Exception) -> None: ...

    client = await nats.connect(server.url, allow_reconnect=False, error_cb=ignore)
    return client, client.jetstream(timeout=20)


async def _make(context: JetStreamContext) -> None:
    await context.add_stream(name="a", subjects=["a.>"])
    await context.add_stream(name="b", subjects=["b.>"])
    queue = RetentionPolicy.WORK_QUEUE
    await context.add_stream(name="queue", subjects=["queue.>"], retention=queue)
    transforms = [SubjectTransform(src="b.1", dest="one"), SubjectTransform(src="b.0", dest="zero")]
    sources = [
        StreamSource(name="a"),
        StreamSource(name="b", subject_transforms=transforms),
        StreamSource(name="queue"),
    ]
    await context.add_stream(StreamConfig(name="all", subjects=["own"], sources=sources))


async def _publish(context: JetStreamContext, sent: dict[str, int]) -> None:
    """Publish without pause, until the broker is gone."""
    while True:
        acks = []
        for name in ORIGINS:
            for _ in range(AT_ONCE):
                sent[name] += 1
                acks.append(context.publish(f"{name}.{sent[name] % 2}", b"%d" % sent[name]))
        acks.append(context.publish("own", b"own"))
        await asyncio.gather(*acks)


async def _life(server: NatsServer, sent: dict[str, int], seconds: float) -> None:
    client, context = await _connected(server)
    publishing = asyncio.ensure_future(_publish(context, sent))
    await asyncio.sleep(seconds)
    server.close()
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    await _closed(client)


async def _closed(client: Client) -> None:
    with contextlib.suppress(NatsError, OSError):
        await client.close()


async def _copies(context: JetStreamContext, first: int, last: int) -> dict[str, list[int]]:
    """Of each source, the sequences of the messages between two, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for seq in range(first, last + 1):
        told = (await context.get_msg("all", seq)).headers
        if told and "Nats-Stream-Source" in told:
            name, number, *_ = told["Nats-Stream-Source"].split(" ")
            found[name].append(int(number))
    return found


async def _at_rest(context: JetStreamContext) -> None:
    async def done() -> bool:
        queue = (await context.stream_info("queue")).state
        ends = {name: (await context.stream_info(name)).state.last_seq for name in ORIGINS}
        infos = await context._api_request("$JS.API.STREAM.INFO.all")
        seqs = {info["name"]: info.get("seq", 0) for info in infos["sources"]}
        return queue.messages == 0 and seqs == ends

    await eventually(done)


@pytest.mark.feature("T22")
async def test_a_stream_has_every_message_of_its_sources_once_however_often_the_broker_is_killed(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    server = NatsServer(tmp_path, OURS)
    server.start()
    client, context = await _connected(server)
    await _make(context)
    await _closed(client)
    sent: dict[str, int] = dict.fromkeys(ORIGINS, 0)
    copied: dict[str, list[int]] = defaultdict(list)
    first = 1
    for life in range(LIVES):
        await _life(server, sent, chance.uniform(0.1, 0.6))
        server.start()
        if life == LIVES // 2:
            # What is copied and purged must not be copied again.
            client, context = await _connected(server)
            last = (await context.stream_info("all")).state.last_seq
            for name, seqs in (await _copies(context, first, last)).items():
                copied[name] += seqs
            await context.purge_stream("all", seq=last + 1)
            first = last + 1
            await _closed(client)
    client, context = await _connected(server)
    await _at_rest(context)
    last = (await context.stream_info("all")).state.last_seq
    for name, seqs in (await _copies(context, first, last)).items():
        copied[name] += seqs
    for name in ORIGINS:
        end = (await context.stream_info(name)).state.last_seq
        assert copied[name] == list(range(1, end + 1))
    await _closed(client)
    server.close()
