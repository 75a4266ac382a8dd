"""Brokers in one process that publish for as long as they may and tell what happens.

    python -m tests.fault.tier_child FACTS

FACTS is a `Facts` as JSON. Each broker has a lease, a disk and topics of its own, one of every
durability in DURABILITIES. It tries to own them until it does, publishes on several partitions and
keeps uploading. Every line that is printed is a JSON array:

    ["tries"]                                            all are up
    ["owns", topic, epoch]                               from here on one publishes there
    ["sent", topic, partition, number]                   the next RUN messages of the partition
    ["acked", topic, partition, number, first offset]    they are as safe as the topic promises
    ["refused", topic, partition, number, reason]        they are not
    ["lost", topic]                                      its broker may not own it any more
    ["tried", topic, {what: outcome}]                    answer to `try`
    ["read", topic, partition, [[offset, text], ...]]    some of the answer to `read`
    ["done"]                                             end of an answer

Lines that are read: `try` writes as if nothing had happened, `read` ends publishing and reads
everything, `stop` ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar
from unittest.mock import patch

import msgspec
import structlog

from penstock.host.child import Child
from penstock.log import LogMode, logs
from penstock.metadata import MetadataKeys, ProgressUpdater, SubscriptionId
from penstock.metadata.etcd import EtcdMetadata, EtcdSettings
from penstock.metadata.ownership import LeaseTerms, NotOwner
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from penstock.objects.transfer import TransferLimits
from penstock.tiers.manifest.entries import UploadSession
from penstock.tiers.topic_tier import TopicTier
from tests.eventually import eventually
from tests.fault.tier_broker import UNMERGED, TierBroker, read_all
from tests.servers.s3 import PATIENT, make_store

DURABILITIES: Final = ("fsync", "cloud")
PARTITIONS: Final = (0, 1)
RUN: Final = 3
"""Messages that are published together."""
PAUSE_SECONDS: Final = 0.01
"""Between two runs."""
INTERVAL_SECONDS, LINGER_SECONDS = 0.15, 0.06
"""Between two uploads of a topic, the second if it must reach the bucket."""
OWN_SECONDS: Final = 0.02
"""Between two attempts to own a topic. All these times are for each broker of the process: together
they do as much as one alone.
"""
BUSY_MAX: Final = 4
"""Brokers that open topics or answer at the same time: leases must be renewed meanwhile."""
CALL_SECONDS: Final = 2.0
"""How long etcd is waited for."""
NOBODYS: Final = 1_000_000_000
"""Number of a message that no publisher comes to, and a position that no subscription does."""
SUBSCRIPTION: Final = "s"
ANSWER_SECONDS: Final = 20.0
_T = TypeVar("_T")


class Facts(msgspec.Struct, frozen=True):
    """Who they are and where everything is."""

    name: str
    brokers: int
    life: str
    """Of the process; a restart has another one."""
    directory: str
    etcd: str
    namespace: str
    store: str
    bucket: str
    prefix: str
    lease_seconds: int
    margin_seconds: float


def topics_of(broker: int) -> list[str]:
    """Each promises what its name begins with."""
    return [f"{durability}-{broker}" for durability in DURABILITIES]


def topic_name(topic: str) -> TopicName:
    return TopicName("default", "default", topic)


def text_of(life: str, partition: int, number: int) -> str:
    """The payload of one message; no other of the topic is the same."""
    who = f"{life}/{partition}/{number}"
    return f"{who} {hashlib.sha256(who.encode()).hexdigest()}"


class Hosted:
    """One broker of the process; the more there are, the less each does."""

    def __init__(self, facts: Facts, number: int, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        store = make_store(facts.bucket, facts.store, facts.prefix, PATIENT, TransferLimits())
        settings = replace(
            UNMERGED,
            interval_seconds=INTERVAL_SECONDS * facts.brokers,
            linger_seconds=LINGER_SECONDS * facts.brokers,
            reserve_offsets=100_000,
        )
        self._broker = TierBroker(
            Path(facts.directory) / str(number),
            store,
            EtcdMetadata(EtcdSettings((facts.etcd,), CALL_SECONDS)),
            settings,
            f"{facts.name}-{number}",
            MetadataKeys(facts.namespace),
            LeaseTerms(facts.lease_seconds, facts.margin_seconds),
            on_lost=lambda topic: tell("lost", topic.topic),
        )
        self._publishers = [
            Publisher(self._broker, facts.life, topic, facts.brokers, slots)
            for topic in topics_of(number)
        ]
        self._owning: asyncio.Task[None]

    async def open(self) -> None:
        await self._broker.open()

    def start(self) -> None:
        """Own and publish from now on."""
        self._owning = asyncio.create_task(self._run())

    async def close(self) -> None:
        await self._stop()
        await asyncio.gather(*(publisher.close() for publisher in self._publishers))
        await self._broker.close()

    async def answer(self, line: str) -> None:
        """Do what was asked for, when it is this broker's turn."""
        if line == "read":
            await self._stop()
        async with self._slots:
            for publisher in self._publishers:
                await (publisher.try_all() if line == "try" else publisher.read())

    async def _stop(self) -> None:
        """Publish no more."""
        self._owning.cancel()
        await asyncio.gather(self._owning, return_exceptions=True)

    async def _run(self) -> None:
        for publisher in self._publishers:
            await publisher.own()
        await asyncio.gather(*(publisher.publish() for publisher in self._publishers))


class Publisher:
    """Owns and uses one topic, `slowness` times as slowly as one that is alone."""

    def __init__(
        self,
        broker: TierBroker,
        life: str,
        topic: str,
        slowness: int,
        slots: asyncio.Semaphore,
    ) -> None:
        self._broker, self._life, self._topic = broker, life, topic
        self._slowness, self._slots = slowness, slots
        self._name = topic_name(topic)
        self._subscription = SubscriptionId(self._name, SUBSCRIPTION)
        self._progress: ProgressUpdater | None = None
        self._tier: TopicTier

    async def own(self) -> None:
        """Try until the topic is ours."""
        broker = self._broker
        self._tier = await self._until(self._add)
        progress = ProgressUpdater(broker.metadata, broker.keys, broker.ownership.guard)
        self._progress = progress
        await self._until(lambda: progress.start(self._subscription, Offset(0)))
        tell("owns", self._topic, self._tier.epoch)

    async def publish(self) -> None:
        await asyncio.gather(*map(self._publish, PARTITIONS))

    async def close(self) -> None:
        if self._progress is not None:
            await self._progress.close()

    async def try_all(self) -> None:
        """Write past every check that a broker makes before it writes."""
        tier, manifest = self._tier, self._tier.manifest
        entry = next(iter(manifest.index))
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "append": self._try_append,
            "commit": tier.commit,
            "drop": lambda: tier.remove_entries([entry]),
            "session": lambda: manifest.record_session(UploadSession("zombie", None, 0, 0, entry)),
            "progress": self._try_progress,
            "round": tier.upload_round,
        }
        outcomes = {name: await _outcome(attempt) for name, attempt in attempts.items()}
        tell("tried", self._topic, outcomes)

    async def read(self) -> None:
        for partition in PARTITIONS:
            rows = [(n, data.decode()) async for n, data in read_all(self._tier, partition)]
            for start in range(0, len(rows), 100):
                tell("read", self._topic, partition, rows[start : start + 100])

    async def _until(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """What a call answers, once it does."""
        while True:
            try:
                async with self._slots:
                    return await call()
            except PenstockError:
                await asyncio.sleep(OWN_SECONDS * self._slowness)

    async def _add(self) -> TopicTier:
        durability = Durability(self._topic.partition("-")[0])
        return await self._broker.tiers.add(self._name, durability=durability)

    async def _try_append(self) -> None:
        log = self._tier.log

        async def is_open() -> bool:
            return log.mode is LogMode.OPEN

        await eventually(is_open)
        await log.writer.append(self._run(0, NOBODYS))

    async def _try_progress(self) -> None:
        assert self._progress is not None
        self._progress.record(self._subscription, Offset(NOBODYS))
        if not await self._progress.flush():
            raise NotOwner(self._name)

    async def _publish(self, partition: int) -> None:
        number, place = 0, (self._topic, partition)
        pause = PAUSE_SECONDS * self._slowness
        while True:
            tell("sent", *place, number)
            try:
                given = await self._tier.log.append(self._run(partition, number))
            except PenstockError as error:
                tell("refused", *place, number, str(error))
                await asyncio.sleep(4 * pause)
            else:
                tell("acked", *place, number, given.first)
            number += RUN
            await asyncio.sleep(pause)

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


async def main(facts: Facts) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    lines = await _lines()
    child, slots = Child(), asyncio.Semaphore(BUSY_MAX)
    # A process for each broker's subject index would be most of the work.
    with patch.object(logs, "Child", lambda: child):
        brokers = [Hosted(facts, number, slots) for number in range(facts.brokers)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    for broker in brokers:
        broker.start()
    tell("tries")
    while (line := (await lines.readline()).decode().strip()) != "stop":
        await asyncio.gather(*(broker.answer(line) for broker in brokers))
        tell("done")
    await asyncio.gather(*(broker.close() for broker in brokers))
    tell("done")


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Facts)))
