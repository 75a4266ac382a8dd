"""A broker that is stopped for longer than its lease and then goes on as if nothing had happened.

    python -m tests.conformance.metadata.zombie ENDPOINT PREFIX TOPICS

Owns the topics and prints `ready`. When a line comes on standard input, which is after it was
stopped and resumed, it first asks for every topic whether it may ack, then makes the writes it had
prepared before, with the guards it had then, and prints one line of JSON about all that.
"""

from __future__ import annotations

import asyncio
import json
import sys

import structlog

from penstock.metadata import MetadataKeys, ProgressUpdater, Put, SubscriptionId
from penstock.metadata.etcd import EtcdMetadata, EtcdSettings
from penstock.metadata.ownership import Epoch, LeaseTerms, Ownership
from penstock.model.names import TopicName
from penstock.model.units import Offset

TERMS = LeaseTerms(seconds=3, margin_seconds=0.5)
MINE, LATE = b"zombie", b"zombie after its end"
NEVER_SECONDS, NEVER_DELTA = 3600, 1_000_000


def topics(count: int) -> list[TopicName]:
    return [TopicName("default", "default", f"topic-{number}") for number in range(count)]


async def main(endpoint: str, prefix: str, count: int) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    store, keys = EtcdMetadata(EtcdSettings((endpoint,))), MetadataKeys(prefix)
    lost: list[str] = []
    ownership = Ownership(
        store, keys, "zombie", "zombie:1", lambda topic, *_: lost.append(str(topic)), TERMS
    )
    await ownership.start()
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, NEVER_DELTA)
    prepared = []
    epochs: dict[TopicName, Epoch] = {}
    for topic in topics(count):
        epoch = await ownership.acquire(topic)
        assert epoch is not None
        epochs[topic] = epoch
        guard = ownership.guard(topic)
        assert (await store.transaction([guard], [Put(keys.manifest(topic), MINE)])).succeeded
        prepared.append(([guard], [Put(keys.manifest(topic), LATE)]))
        subscription = SubscriptionId(topic, "s")
        await progress.start(subscription, Offset(0))
        progress.record(subscription, Offset(99))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    could_ack = sum(ownership.may_ack(*item) for item in epochs.items())
    print("ready", flush=True)
    await reader.readline()
    may_ack = sum(ownership.may_ack(*item) for item in epochs.items())
    outcomes = await asyncio.gather(*(store.transaction(*write) for write in prepared))
    await progress.flush()
    while len(lost) < count:
        await asyncio.sleep(0.01)
    facts = {
        "could_ack": could_ack,
        "may_ack": may_ack,
        "succeeded": sum(outcome.succeeded for outcome in outcomes),
        "refused": sum(not outcome.succeeded for outcome in outcomes),
        "lost": len(lost),
    }
    print(json.dumps(facts), flush=True)
    await progress.close()
    await ownership.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
