"""Floors of jobs."""

from pathlib import Path

import pytest

from penstock.delivery.channels.store import JobFloors
from penstock.metadata.interface import Compare, CompareTarget
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.ownership.ownership import NotOwner
from penstock.metadata.sqlite.metadata import SqliteMetadata
from penstock.model import names
from penstock.model.errors import FormatError

TOPIC = names.topic("orders")


async def test_only_the_owner_writes_floors(tmp_path: Path) -> None:
    metadata, keys = await SqliteMetadata.open(tmp_path), MetadataKeys()
    revision = await metadata.put(keys.owner(TOPIC), b"me")
    guard = Compare(keys.owner(TOPIC), CompareTarget.CREATE_REVISION, revision)
    floors = JobFloors(metadata, keys, lambda topic: guard)
    assert await floors.load(TOPIC) == {}
    await floors.save(TOPIC, {1: 5, 2: 0})
    assert await floors.load(TOPIC) == {1: 5, 2: 0}
    await metadata.delete(keys.owner(TOPIC))
    with pytest.raises(NotOwner):
        await floors.save(TOPIC, {1: 6})
    assert await floors.load(TOPIC) == {1: 5, 2: 0}
    await metadata.put(keys.job_floors(TOPIC), b"{")
    with pytest.raises(FormatError, match="damaged"):
        await floors.load(TOPIC)
    await metadata.close()
