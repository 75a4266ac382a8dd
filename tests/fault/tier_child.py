"""A broker in a process of its own that publishes for as long as it may and tells what happens.

    python -m tests.fault.tier_child FACTS

FACTS is a `Facts` as JSON. There is a topic of every durability that it names. It tries to own each
until it does, publishes on several partitions and keeps uploading. Every line it prints is a JSON
array:

    ["tries"]                                            it is up
    ["owns", topic, epoch]                               from here on it publishes there
    ["sent", topic, partition, number]                   the next RUN messages of the partition
    ["acked", topic, partition, number, first offset]    they are as safe as the topic promises
    ["refused", topic, partition, number, reason]        they are not
    ["lost", topic]                                      it may not own the topic any more
    ["tried", topic, {what: outcome}]                    answer to `try`
    ["read", topic, partition, [[offset, text], ...]]    some of the answer to `read`
    ["done"]                                             end of an answer

Lines that it reads: `try` writes as if nothing had happened, `read` reads everything, `stop` ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.metadata.etcd import EtcdMetadata
from penstock.metadata.etcd_endpoints import EtcdSettings
from penstock.metadata.keys import Keys
from penstock.metadata.tenure import Terms
from penstock.model.durability import Durability
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.run import Run
from penstock.model.units import PartitionId
from penstock.objects.transfer import TransferLimits
from penstock.tiers.entries import Session
from penstock.tiers.tier import TopicTier
from tests.fault.tier_broker import UNMERGED, TierBroker, read_all
from tests.servers.s3 import PATIENT, make_store

PARTITIONS: Final = (0, 1)
RUN: Final = 3
"""Messages that are published together."""
PAUSE_SECONDS: Final = 0.01
CALL_SECONDS: Final = 2.0
"""How long etcd is waited for."""
NOBODY_ELSES: Final = 1_000_000_000
"""Number of a message that no publisher comes to."""
ANSWER_SECONDS: Final = 20.0
SETTINGS: Final = replace(UNMERGED, reserve_offsets=100_000)


class Facts(msgspec.Struct, frozen=True):
    """Who it is and where everything is."""

    broker: str
    life: str
    """Of the broker; a restart has another one."""
    directory: str
    etcd: str
    namespace: str
    store: str
    bucket: str
    prefix: str
    durabilities: list[str]
    lease_seconds: int
    margin_seconds: float


def topic_of(durability: str) -> TopicName:
    return TopicName("default", "default", durability)


def text_of(life: str, partition: int, number: int) -> str:
    """The payload of one message; no other of the topic is the same."""
    who = f"{life}/{partition}/{number}"
    return f"{who} {hashlib.sha256(who.encode()).hexdigest()}"


class Child:
    """The broker and the answers to what it is asked."""

    def __init__(self, facts: Facts) -> None:
        store = make_store(facts.bucket, facts.store, facts.prefix, PATIENT, TransferLimits())
        self._broker = TierBroker(
            Path(facts.directory),
            store,
            EtcdMetadata(EtcdSettings((facts.etcd,), CALL_SECONDS)),
            SETTINGS,
            facts.broker,
            Keys(facts.namespace),
            Terms(facts.lease_seconds, facts.margin_seconds),
            on_lost=lambda topic: tell("lost", topic.topic),
        )
        self._publishers = [
            Publisher(self._broker, facts.life, durability) for durability in facts.durabilities
        ]

    async def run(self) -> None:
        lines = await _lines()
        await self._broker.open()
        tell("tries")
        owning = [asyncio.create_task(publisher.run()) for publisher in self._publishers]
        while (line := (await lines.readline()).decode().strip()) != "stop":
            for publisher in self._publishers:
                await (publisher.try_all() if line == "try" else publisher.read())
            tell("done")
        for task in owning:
            task.cancel()
        await asyncio.gather(*owning, return_exceptions=True)
        await self._broker.close()
        tell("done")


class Publisher:
    """Owns and uses one topic."""

    def __init__(self, broker: TierBroker, life: str, durability: str) -> None:
        self._broker, self._life, self._durability = broker, life, durability
        self._topic = topic_of(durability)
        self._tier: TopicTier

    async def run(self) -> None:
        self._tier = await self._own()
        tell("owns", self._durability, self._broker.ownership.epoch(self._topic))
        await asyncio.gather(*map(self._publish, PARTITIONS))

    async def try_all(self) -> None:
        """Write past every check that a broker makes before it writes."""
        tier, manifest = self._tier, self._tier.manifest
        entry = next(iter(manifest.index))
        tier.log.refusal = ""
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: tier.log.publish(self._run(0, NOBODY_ELSES)),
            "commit": tier._commit,
            "drop": lambda: tier.drop([entry]),
            "session": lambda: manifest.note_session(Session("zombie", None, 0, 0, entry)),
            "round": tier.round,
        }
        outcomes = {name: await _outcome(attempt) for name, attempt in attempts.items()}
        tell("tried", self._durability, outcomes)

    async def read(self) -> None:
        for partition in PARTITIONS:
            rows = [(n, data.decode()) async for n, data in read_all(self._tier, partition)]
            for start in range(0, len(rows), 100):
                tell("read", self._durability, partition, rows[start : start + 100])

    async def _own(self) -> TopicTier:
        while True:
            try:
                if await self._is_new():
                    await self._broker.logs.create(self._topic, Durability(self._durability))
                return await self._broker.tiers.add(self._topic)
            except PenstockError:
                await asyncio.sleep(0.02)

    async def _is_new(self) -> bool:
        if self._broker.logs.get(self._topic) is not None:
            return False
        key = self._broker.keys.manifest(self._topic)
        return await self._broker.metadata.get(key) is None

    async def _publish(self, partition: int) -> None:
        number, place = 0, (self._durability, partition)
        while True:
            tell("sent", *place, number)
            try:
                given = await self._tier.log.publish(self._run(partition, number))
            except PenstockError as error:
                tell("refused", *place, number, str(error))
                await asyncio.sleep(4 * PAUSE_SECONDS)
            else:
                tell("acked", *place, number, given.first)
            number += RUN
            await asyncio.sleep(PAUSE_SECONDS)

    def _run(self, partition: int, number: int) -> Run:
        texts = [text_of(self._life, partition, number + n).encode() for n in range(RUN)]
        return Run(b"s", texts, partition=PartitionId(partition))


async def _outcome(attempt: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await attempt()
    except (PenstockError, TimeoutError) as error:
        return type(error).__name__
    return "done"


def tell(*fact: object) -> None:
    print(json.dumps(fact), flush=True)


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def main(text: str) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    await Child(msgspec.json.decode(text, type=Facts)).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
