"""Topics over a broker without protocols, in a world that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from penstock.log.log import Log
from penstock.metadata.catalog import PageQuery
from penstock.model import names, schema
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Durability, Topic, TopicSpec
from penstock.model.run import Run
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects import ObjectStore
from penstock.topics import (
    LocalAdmin,
    LocalSource,
    OpenPartition,
    OpenTopic,
    TopicHost,
    TopicPartition,
    Topics,
)
from penstock.topics.host import no_store
from penstock.topics.lost_topics import PAUSE_SECONDS
from penstock.topics.partitions import Partitions
from penstock.topics.topics import RETRY_SECONDS
from tests.broker.storage import KEYS, TOPIC, Broker, World, rows_of

PAGE: Final = PageQuery()
P0: Final = PartitionId(0)
SPEC: Final = TopicSpec(TOPIC)
BY_REGION: Final = TopicSpec(
    names.topic("regions"), schema.schema([schema.field("region:string")]), "region"
)


def spec(name: str, **facts: Any) -> TopicSpec:
    return TopicSpec(names.topic(name), **facts)


def region(name: str) -> PartitionValue:
    return PartitionValue("String", name)


class Served:
    """A broker's topics."""

    def __init__(
        self,
        broker: Broker,
        *,
        retry_seconds: float = RETRY_SECONDS,
        regain_seconds: float = PAUSE_SECONDS,
        store_named: Callable[[str], ObjectStore] = no_store,
    ) -> None:
        self.broker = broker
        self.host = TopicHost(
            broker.logs,
            broker.tiers,
            broker.metadata,
            KEYS,
            broker.ownership,
            broker.store,
            broker.world.clock,
            store_named=store_named,
        )
        self.topics = Topics(self.host, retry_seconds=retry_seconds, regain_seconds=regain_seconds)
        self.admin = LocalAdmin(self.topics, self.host)
        self.source = LocalSource(self.topics)

    async def create(self, spec: TopicSpec = SPEC) -> OpenTopic:
        await self.topics.create_topic(spec)
        return self.topics.get(spec.name)

    async def crash(self) -> Path:
        return await self.broker.crash()


async def serve(
    world: World,
    directory: Path | None = None,
    name: str = "b1",
    *,
    retry_seconds: float = RETRY_SECONDS,
    regain_seconds: float = PAUSE_SECONDS,
    **settings: Any,
) -> Served:
    """A broker with these settings, with open topics and without pending background work."""
    broker = await world.broker(directory, name, **settings)
    served = Served(broker, retry_seconds=retry_seconds, regain_seconds=regain_seconds)
    await served.topics.open()
    for log in served.broker.logs:
        await log.index.settled()
    return served


async def push(opened: OpenTopic, *payloads: bytes, value: PartitionValue | None = None) -> int:
    """Append messages; the first one's offset."""
    (partition,) = await opened.partitions.ensure([value])
    return (await opened.log.append(Run(b"s", list(payloads), partition=partition))).first


async def read(
    source: LocalSource, topic: Topic, offset: int = 0, value: PartitionValue | None = None
) -> list[Batch] | AtHead | Gone:
    return await source.read(TopicPartition(topic, value), Offset(offset), 1 << 20)


async def payloads(
    source: LocalSource, topic: Topic, offset: int = 0, value: PartitionValue | None = None
) -> list[tuple[int, bytes]]:
    """Offset and payload of every message up to the head."""
    found: list[tuple[int, bytes]] = []
    while isinstance(batches := await read(source, topic, offset, value), list):
        for batch in batches:
            assert isinstance(batch.content, Columns)
            found += [row for row in rows_of(batch) if row[0] >= offset]
            offset = batch.next_offset
    assert isinstance(batches, AtHead)
    return found


async def left_of(world: World) -> tuple[list[str], list[str], list[str]]:
    """The remains of topics: metadata keys (without tenants and namespaces), objects and files."""
    entries = (await world.metadata.range("/penstock/")).entries
    parents = ("/penstock/catalog/tenants/", "/penstock/catalog/namespaces/")
    keys = [entry.key for entry in entries if not entry.key.startswith(parents)]
    files = [str(path) for path in world._root.glob("b*/*/*/*")]
    return keys, await world.keys(""), files


def memory(name: str) -> TopicSpec:
    return spec(name, durability=Durability.MEMORY)


def bare_partition(log: Log) -> OpenPartition:
    """The first partition of a topic that is a log alone, without tiers."""
    partitions = cast(Partitions, None)
    return OpenTopic(Topic(SPEC, "unique", Microseconds(0)), log, None, partitions).partition(P0)
