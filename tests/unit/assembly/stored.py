"""A data directory with a topic, created by the real storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.assembly.storage import Storage
from penstock.config import Config, load
from penstock.model import names
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.log_reader import LogReader

TOPIC = names.topic("orders")
PARTITION = PartitionId(0)


def config_of(data: Path, *overrides: str) -> Config:
    quick = ("storage.uploader.interval_seconds=1", f"data={data}")
    return load(None, {}, [*quick, *overrides]).config


@asynccontextmanager
async def opened(data: Path, *overrides: str) -> AsyncIterator[Storage]:
    storage = Storage(config_of(data, *overrides))
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()


async def fill(storage: Storage, first: int, count: int) -> None:
    """Append and upload messages whose payloads are their offsets."""
    assert storage.tiers is not None
    tier = await storage.tiers.add(TOPIC)
    assert tier.log.next_offset(PARTITION) == first
    payloads = [b"%d" % offset for offset in range(first, first + count)]
    await tier.log.append(Run(b"orders.eu", payloads))
    await storage.tiers.flush(TOPIC)


async def payloads(storage: Storage) -> list[bytes]:
    """All payloads of the topic, from every tier."""
    assert storage.tiers is not None
    tier = storage.tiers[TOPIC]
    reader = LogReader(tier.log, PARTITION, Offset(0), objects=tier.read)
    state, found = tier.log.state, list[bytes]()
    while state.next_live(PARTITION, reader.next_offset) < state.next(PARTITION):
        found += (await anext(reader)).content.payload.to_pylist()
    return found
