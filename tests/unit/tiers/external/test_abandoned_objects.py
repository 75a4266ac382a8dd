"""Objects of dead jobs remain while they may still be linked, and are deleted afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.formats import objects as form
from penstock.host.disk import Disk
from penstock.model.errors import RunInvalid
from penstock.model.units import PartitionRange
from penstock.objects.fs import FileStore, unfinished
from penstock.tiers.external.abandoned_objects import (
    ABANDONED_SECONDS,
    ACCEPTED_SECONDS,
    check_object_age,
    created_us,
    delete_abandoned_objects,
)
from tests.broker.storage import TOPIC, World, fill, flush, started

NOW_US = 1_794_000_000_000_000


def staged(made: int) -> str:
    return f"{form.staged_prefix(TOPIC)}{made:017d}-x.parquet"


def data(made: int, unique: str = "x") -> str:
    return form.object_key(TOPIC, made, [PartitionRange(0, 0, 10)], unique)


def test_object_names_contain_the_creation_time() -> None:
    assert (created_us(staged(17)), created_us(data(18))) == (17, 18)
    for name in ("staged-1.parquet", "deletes-1.msgpack", "data-1-x", f"x-data-{1:017d}-x"):
        assert created_us(f"{form.topic_prefix(TOPIC)}{name}") is None


@pytest.mark.feature("S03", "S05")
def test_objects_more_than_a_day_old_are_refused() -> None:
    edge = NOW_US - ACCEPTED_SECONDS * 1_000_000
    check_object_age(
        [staged(edge), data(edge), f"{form.staged_prefix(TOPIC)}named.parquet"], NOW_US
    )
    for key in (staged(edge - 1), data(edge - 1)):
        with pytest.raises(RunInvalid, match="more than a day old"):
            check_object_age([data(NOW_US), key], NOW_US)


@pytest.mark.feature("S03", "S05")
async def test_only_old_objects_outside_the_manifest_are_deleted(world: World) -> None:
    _, tier = await started(world)
    for _ in range(2):
        await fill(tier.log, 10)
        await flush(tier)
    counting, replaced = sorted(tier.manifest.index, key=lambda entry: entry.sequence)
    await tier.remove_entries([replaced])
    named = {counting.object_id, replaced.object_id}
    world.clock.us += ABANDONED_SECONDS * 1_000_000 + 1
    edge = world.clock.us - ABANDONED_SECONDS * 1_000_000
    old = {staged(edge - 1), data(edge - 1)}
    young = {staged(edge), data(edge), f"{form.staged_prefix(TOPIC)}00-named.parquet"}
    for key in old | young:
        await world.bucket.put(key, [b"x"])
    tier.manifest.sessions_recorded[data(edge - 1, "under-way")] = 1
    await world.bucket.put(data(edge - 1, "under-way"), [b"x"])
    assert await delete_abandoned_objects(tier) == 2
    left = {key for key in await world.keys() if "manifest" not in key and "snapshot" not in key}
    assert left >= named | young | {data(edge - 1, "under-way")}
    assert not left & old
    assert await delete_abandoned_objects(tier) == 0


@pytest.mark.feature("S05")
async def test_uploads_that_were_never_completed_are_removed_too(
    world: World, tmp_path: Path
) -> None:
    _, tier = await started(world)
    tier.store = FileStore(tmp_path / "bucket", Disk())
    try:
        edge = world.clock.now_us() - ABANDONED_SECONDS * 1_000_000
        for key in (data(edge - 1), data(edge)):
            path = tmp_path / "bucket" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(unfinished(path.name, "cafe")).write_bytes(b"half")
        assert await delete_abandoned_objects(tier) == 1
        (path,) = (path for path in (tmp_path / "bucket").rglob("*") if path.is_file())
        assert str(edge) in path.name
    finally:
        await tier.store.close()
