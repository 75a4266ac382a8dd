"""Damage in the bucket and in the manifest of a real broker, found by an audit."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock.cli.objects import open_stores, read_config
from penstock.client import SyncClient
from penstock.formats.paths import topic_directory
from penstock.metadata import Metadata, MetadataKeys
from penstock.model import names
from penstock.spark.pipelines import audit_topic
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest.entries import Head, ObjectEntry
from tests.integration.process import FREE_PORT, Broker
from tests.spark.conftest import UPLOAD_EACH_SECOND
from tests.spark.topics import messages, plan_of, uploaded

PUSHED: Final = 100


class Manifest(NamedTuple):
    """The manifest of a topic in the metadata store, for edits while no broker runs."""

    metadata: Metadata
    keys: MetadataKeys
    topic: str

    async def head(self) -> Head:
        found = await self.metadata.get(self.keys.manifest(names.topic(self.topic)))
        assert found is not None
        return forms.decode_head(found.value)

    async def entries(self) -> list[ObjectEntry]:
        page = await self.metadata.range(self.keys.objects(names.topic(self.topic)))
        return [forms.decode_entry(entry.value) for entry in page.entries]

    async def put(self, entry: ObjectEntry) -> None:
        key = self.keys.object(names.topic(self.topic), entry.sequence)
        await self.metadata.put(key, forms.encode_record(entry))

    async def remove(self, entry: ObjectEntry) -> None:
        await self.metadata.delete(self.keys.object(names.topic(self.topic), entry.sequence))

    async def change_head(self, **changes: int) -> None:
        head = msgspec.structs.replace(await self.head(), **changes)
        await self.metadata.put(
            self.keys.manifest(names.topic(self.topic)), forms.encode_record(head)
        )


async def twice(manifest: Manifest) -> None:
    """Add a second entry of an object to the manifest."""
    last = (await manifest.entries())[-1]
    again = msgspec.structs.replace(last, sequence=last.sequence + 1)
    await manifest.put(again)
    await manifest.change_head(next_sequence=again.sequence + 1)


async def without_one(manifest: Manifest) -> None:
    await manifest.remove((await manifest.entries())[1])


async def of_before(manifest: Manifest) -> None:
    """Restore the manifest of the first upload."""
    first, *others = await manifest.entries()
    for entry in others:
        await manifest.remove(entry)
    await manifest.change_head(
        next_sequence=first.sequence + 1, uploaded_frame=first.next_frame, reserved=PUSHED
    )


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BUCKET: Final[dict[str, Callable[[Path], None]]] = {"missing": Path.unlink, "damaged": flipped}
MANIFEST: Final = {"duplicate": twice, "gap": without_one, "stale": of_before}
TOPICS: Final = ("sound", *BUCKET, *MANIFEST)


class Damaged(NamedTuple):
    """A broker with damaged topics, named after their damage."""

    url: str
    objects: dict[str, list[str]]
    """The keys of the objects of each topic before the damage."""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    data = tmp_path_factory.mktemp("damaged")
    arguments = ("--data", str(data), *FREE_PORT, *UPLOAD_EACH_SECOND)
    with Broker(*arguments) as broker, SyncClient(f"http://{broker.host}:{broker.port}") as client:
        objects, root = filled(client)
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    for topic, change in BUCKET.items():
        change(root / objects[topic][1])
    asyncio.run(plant(data))
    shutil.rmtree(data / "wal" / topic_directory(names.topic("stale")))
    with Broker(*arguments) as broker:
        yield Damaged(f"http://{broker.host}:{broker.port}", objects)


def filled(client: SyncClient) -> tuple[dict[str, list[str]], Path]:
    """Create three objects in each topic; returns their keys and their directory."""
    for topic in TOPICS:
        client.create_topic(topic)
    for first in range(0, 3 * PUSHED, PUSHED):
        for topic in TOPICS:
            client.push(topic, messages(first, PUSHED))
        for topic in TOPICS:
            uploaded(client, topic)
    plans = {topic: plan_of(client, topic) for topic in TOPICS}
    assert {len(plan.objects) for plan in plans.values()} == {3}
    store = plans["sound"].store
    assert store is not None
    keys = {topic: [item.key for item in plan.objects] for topic, plan in plans.items()}
    return keys, Path(store.root)


async def plant(data: Path) -> None:
    async with open_stores(read_config(None, str(data), ())) as stores:
        for topic, change in MANIFEST.items():
            await change(Manifest(stores.metadata, stores.keys, topic))


@pytest.mark.feature("S08")
@pytest.mark.parametrize("topic", TOPICS)
def test_an_audit_finds_exactly_the_damage(
    spark: SparkSession, damaged: Damaged, topic: str
) -> None:
    found = audit_topic(spark, topic, broker=damaged.url)
    _, second, third = damaged.objects[topic]
    expected = {
        "sound": [],
        "missing": [(second, "it is not in the bucket")],
        "damaged": [(second, "its bytes have the CRC32C")],
        "duplicate": [(third, "partition 0: offsets 200 to 299 are in another object too")],
        "gap": [(third, "partition 0: offsets 100 to 199 are in no object")],
        "stale": [
            (second, "it is not in the manifest and has offsets up to 199"),
            (third, "it is not in the manifest and has offsets up to 299"),
        ],
    }[topic]
    wrong = [finding for finding in found.findings if not finding.harmless]
    assert [(topic, key) for key, _ in expected] == [(item.kind, item.object) for item in wrong]
    for finding, (_, words) in zip(wrong, expected, strict=True):
        assert finding.problem.startswith(words)
    assert found.sound == (topic == "sound")
