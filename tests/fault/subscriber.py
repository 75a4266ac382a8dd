"""A broker that publishes to a topic and delivers it to subscriptions, until it is killed.

    python -m tests.fault.subscriber DIRECTORY

Every life goes on from what the last one left in the directory. Lines that it prints:

    ["acked", first offset, [text, ...]]                 published for good
    ["starts", subscription, offset]                     delivery begins there
    ["delivered", subscription, first offset, [text, ...]]

`stop` ends it in an orderly way, when everything is delivered.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import uuid
from pathlib import Path
from typing import Final

import structlog

from penstock.metadata import ProgressUpdater, SubscriptionId
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model.columns import Columns
from penstock.model.run import Run
from penstock.model.units import ONLY_PARTITION, Offset
from penstock.objects.fs import FileStore
from penstock.tiers.topic_tier import TopicTier
from tests.fault.tier_broker import TOPIC, TierBroker, running
from tests.log_reader import LogReader

PACES: Final = {"fast": 0.0, "slow": 0.02, "late": 0.0}
"""Longest pause of a subscription after a delivery."""
LATE: Final = "late"
"""A subscription that gets nothing before the end."""
READ_BYTES: Final = 500
FLUSH_SECONDS: Final = 0.05
DELTA: Final = 40


async def main(directory: Path) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    metadata = await SqliteMetadata.open(directory / "metadata")
    store = FileStore(directory / "objects")
    async with running(TierBroker(directory, store, metadata)) as broker:
        tier = await broker.tiers.add(TOPIC)
        guard = broker.ownership.guard
        progress = ProgressUpdater(metadata, broker.keys, guard, FLUSH_SECONDS, DELTA)
        publishing = asyncio.create_task(_publish(tier))
        subscriptions = [Subscriber(tier, progress, name) for name in PACES]
        delivering = [asyncio.create_task(one.run()) for one in subscriptions]
        await asyncio.to_thread(sys.stdin.readline)
        publishing.cancel()
        await asyncio.wait([publishing])
        for one in subscriptions:
            one.ready.set()
        end = tier.log.next_offset(ONLY_PARTITION)
        while any(one.position < end for one in subscriptions):
            await asyncio.sleep(0.01)
        for task in delivering:
            task.cancel()
        await asyncio.wait(delivering)
        await progress.close()
    tell("done")


async def _publish(tier: TopicTier) -> None:
    while True:
        texts = [uuid.uuid4().hex for _ in range(random.randrange(1, 6))]
        given = await tier.log.append(Run(b"s", [text.encode() for text in texts]))
        tell("acked", given.first, texts)
        await asyncio.sleep(random.random() * 0.005)


class Subscriber:
    """One that is new begins at the head; what it has got is told, then recorded."""

    def __init__(self, tier: TopicTier, progress: ProgressUpdater, name: str) -> None:
        self._tier, self._progress, self._name = tier, progress, name
        self.position = Offset(0)
        self.ready = asyncio.Event()
        if name != LATE:
            self.ready.set()

    async def run(self) -> None:
        log, subscription = self._tier.log, SubscriptionId(TOPIC, self._name)
        head = log.next_offset(ONLY_PARTITION)
        self.position = await self._progress.start(subscription, head)
        tell("starts", self._name, self.position)
        await self.ready.wait()
        async for batch in LogReader(
            log, ONLY_PARTITION, self.position, READ_BYTES, self._tier.read
        ):
            assert isinstance(batch.content, Columns)
            texts = [data.decode() for data in batch.content.payload.to_pylist()]
            tell("delivered", self._name, batch.first_offset, texts)
            self.position = batch.next_offset
            self._progress.record(subscription, self.position)
            await asyncio.sleep(random.random() * PACES[self._name])


def tell(*fact: object) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
