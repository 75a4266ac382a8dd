from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.metadata import MetadataUnavailable
from penstock.model.units import PartitionRange
from penstock.objects import StoreUnavailable
from penstock.objects import transfer as checksums
from penstock.tiers.manifest.entries import ObjectEntry, UploadSession
from penstock.tiers.upload import upload_sessions as sessions
from tests.broker.storage import KEYS, P0, TOPIC, World, entry, fill, flush, started, verify
from tests.faults import Crashed
from tests.unit.log.messages import eventually


@pytest.mark.feature("T07", "T14")
async def test_an_intact_upload_of_a_dead_process_is_completed(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 30)
    steps = broker.use_steps()

    async def when_all_are_whole(name: str, key: str) -> None:
        if key == KEYS.manifest(TOPIC):
            await eventually(lambda: steps.names.count("get") == 3)
            raise Crashed

    steps.wait = when_all_are_whole
    with pytest.raises(Crashed):
        await tier.upload_round()
    puts = list(broker.store.puts)
    assert (await world.manifest())[1] == []
    broker = await world.broker(await broker.crash())
    tier = await broker.tier()
    _, entries = await world.manifest()
    assert [entry.object_id for entry in entries] == puts
    assert [entry.etag for entry in entries] == [
        (await broker.store.head(key)).etag for key in puts
    ]
    assert broker.counters.sessions_completed == len(entries) == 3
    assert await tier.manifest.sessions() == []
    await flush(tier)
    assert broker.store.puts == []
    await verify(world, tier, {0: range(30)})


@pytest.mark.feature("T07", "T14")
@pytest.mark.parametrize("left", ["nothing", "other bytes", "too little"])
async def test_an_incomplete_upload_is_aborted_and_repeated(world: World, left: str) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    out = StoreUnavailable("k", "out")
    broker.store.steps.fail = lambda name, key: out if name == "get" else None
    with pytest.raises(StoreUnavailable):
        await tier.upload_round()
    [key] = broker.store.puts
    if left == "nothing":
        await world.bucket.delete(key)
    elif left == "other bytes":
        await broker.store.damage(key, lambda data: b"?" + data[1:])
    else:
        await broker.store.damage(key, lambda data: data[:-1])
    broker = await world.broker(await broker.crash())
    steps = broker.use_steps()
    tier = await broker.tier()
    assert "abort_uploads" in steps.names
    assert (broker.counters.sessions_aborted, broker.counters.sessions_completed) == (1, 0)
    assert key not in await world.keys()
    assert await tier.manifest.sessions() == []
    await flush(tier)
    assert key not in broker.store.puts
    await verify(world, tier, {0: range(10)})


@pytest.mark.feature("T14")
async def test_an_upload_that_does_not_continue_the_manifest_is_aborted(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 20)
    await flush(tier)
    _, entries = await world.manifest()
    assert len(entries) > 1
    key = "topics/default/default/t/data-again.parquet"
    await world.bucket.put(key, [await world.bucket.get(entries[1].object_id)])
    again = UploadSession(key, None, 0, 0, _renamed(entries[1], key))
    await tier.manifest.record_session(again)
    broker = await world.broker(await broker.crash())
    tier = await broker.tier()
    assert (await world.manifest())[1] == entries
    assert key not in await world.keys()
    await verify(world, tier, {0: range(20)})


def _renamed(entry: ObjectEntry, key: str) -> ObjectEntry:
    return msgspec.structs.replace(entry, object_id=key, sequence=entry.sequence + 7)


@pytest.mark.feature("T07", "T26")
async def test_uploads_are_settled_before_a_successor_counts_its_frames(world: World) -> None:
    """The successor's frames begin after the completed object, so that all are uploaded."""
    broker, tier = await started(world)
    await fill(tier.log, 20)
    broker.use_steps().crash_before = 3
    with pytest.raises(Crashed):
        await tier.upload_round()
    await broker.drop()
    await world.depose()
    broker = await world.broker(name="b2")
    tier = await broker.tier()
    assert broker.counters.sessions_completed == 1
    await verify(world, tier, {0: range(20)})
    first = tier.log.next_offset(P0)
    for _ in range(8):
        await fill(tier.log, 1)
    await flush(tier)
    await verify(world, tier, {0: [*range(20), *range(first, first + 8)]})
    _, entries = await world.manifest()
    assert entries[-1].end_offset == first + 7


@pytest.mark.feature("T14")
@pytest.mark.parametrize("call", ["put", "get", "transaction"])
async def test_an_upload_that_failed_leaves_nothing_in_the_bucket(world: World, call: str) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 30)
    out = {"transaction": MetadataUnavailable("out")}.get(call, StoreUnavailable("k", "out"))
    keys = {"transaction": KEYS.manifest(TOPIC)}
    steps = broker.use_steps()
    steps.fail = lambda name, key: out if name == call and keys.get(call, key) == key else None
    for _ in range(3):
        with pytest.raises(type(out)):
            await tier.upload_round()
    failed = set(broker.store.puts)
    assert len(failed) > 3
    broker.use_steps()
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    assert not failed & set(await world.keys())
    assert broker.counters.sessions_aborted >= len(failed)
    assert (await tier.manifest.sessions(), tier.manifest.sessions_recorded) == ([], {})
    await verify(world, tier, {0: range(30)})


@pytest.mark.feature("T14")
async def test_an_upload_that_cannot_be_removed_now_is_removed_later(world: World) -> None:
    broker, tier = await started(world, trash_seconds=60)
    await fill(tier.log, 10)
    out = StoreUnavailable("k", "out")
    steps = broker.use_steps()
    steps.fail = lambda name, key: out if name == "get" else None
    with pytest.raises(StoreUnavailable):
        await tier.upload_round()
    [failed] = broker.store.puts
    steps.fail = lambda name, key: out if key == failed and name == "delete" else None
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    assert failed in await world.keys()
    assert (await tier.manifest.sessions(), tier.manifest.sessions_recorded) == ([], {})
    steps.fail = lambda name, key: None
    world.clock.pass_seconds(61)
    steps.names.clear()
    await broker.tiers.upkeep(TOPIC)
    assert failed not in await world.keys()
    assert "abort_uploads" in steps.names


@pytest.mark.feature("T14")
async def test_no_record_of_failed_uploads_remains(world: World) -> None:
    broker, tier = await started(world, trash_seconds=0)
    out = StoreUnavailable("k", "out")
    for number in range(1100):
        failed = entry(PartitionRange(0, number, number + 1), sequence=number)
        await tier.manifest.record_session(UploadSession(failed.object_id, None, 0, 0, failed))
    broker.use_steps().fail = lambda name, key: out if name in ("delete", "put") else None
    with pytest.raises(StoreUnavailable):
        await broker.tiers.upkeep(TOPIC)
    assert (await tier.manifest.sessions(), tier.manifest.sessions_recorded) == ([], {})
    broker.use_steps()
    await broker.tiers.upkeep(TOPIC)
    assert await tier.manifest.trash() == []


@pytest.mark.feature("T14", "T26")
async def test_a_successor_does_not_complete_an_abandoned_upload(world: World) -> None:
    old, tier = await started(world)
    await fill(tier.log, 10)
    steps, out = old.use_steps(), MetadataUnavailable("out")
    steps.fail = lambda name, key: out if key == KEYS.manifest(TOPIC) else None
    with pytest.raises(MetadataUnavailable):
        await tier.upload_round()
    steps.fail = lambda name, key: None
    stopped = asyncio.Event()
    steps.wait, wake = _stop_at("abort_uploads", stopped)
    upkeep = asyncio.create_task(old.tiers.upkeep(TOPIC))
    await stopped.wait()
    await world.depose()
    new = await world.broker(name="b2")
    heir = await new.tier()
    wake.set()
    await asyncio.gather(upkeep, return_exceptions=True)
    assert new.counters.sessions_completed == 0
    await fill(heir.log, 3)
    await flush(heir)
    _, entries = await world.manifest()
    assert {entry.object_id for entry in entries} <= set(await world.keys())


@pytest.mark.feature("T14", "T26")
async def test_an_object_that_appears_late_is_either_completed_or_deleted(world: World) -> None:
    first, tier = await started(world)
    await fill(tier.log, 10)
    first.use_steps().crash_before = 3
    with pytest.raises(Crashed):
        await tier.upload_round()
    await first.drop()
    [key] = first.store.puts
    body = await world.bucket.get(key)
    await world.bucket.delete(key)
    await world.depose()
    old = await world.broker(name="old")
    stopped = asyncio.Event()
    old.use_steps().wait, wake = _stop_at("abort_uploads", stopped)
    opening = asyncio.create_task(old.tier())
    await stopped.wait()
    await world.bucket.put(key, [body])
    await world.depose()
    new = await world.broker(name="new")
    await new.tier()
    wake.set()
    await asyncio.gather(opening, return_exceptions=True)
    _, entries = await world.manifest()
    assert {entry.object_id for entry in entries} <= set(await world.keys())
    assert new.counters.sessions_completed == 0


def _stop_at(call: str, stopped: asyncio.Event) -> tuple[Callable[[str, str], Any], asyncio.Event]:
    """Waits at this call until it is released."""
    wake = asyncio.Event()

    async def wait(name: str, key: str) -> None:
        if name == call:
            stopped.set()
            await wake.wait()

    return wait, wake


@pytest.mark.feature("T14")
async def test_an_object_that_appears_after_its_upload_was_aborted_is_deleted(
    world: World,
) -> None:
    broker, tier = await started(world, trash_seconds=60)
    await fill(tier.log, 10)
    out = StoreUnavailable("k", "out")
    broker.use_steps().fail = lambda name, key: out if name == "put" else None
    with pytest.raises(StoreUnavailable):
        await tier.upload_round()
    [late] = broker.store.puts
    broker.use_steps()
    await broker.tiers.upkeep(TOPIC)
    await world.bucket.put(late, [b"whatever"])
    await broker.tiers.upkeep(TOPIC)
    assert late in await world.keys()
    world.clock.pass_seconds(61)
    await broker.tiers.upkeep(TOPIC)
    assert late not in await world.keys()
    await flush(tier)
    await verify(world, tier, {0: range(10)})


@pytest.mark.feature("T14", "T15")
async def test_an_upload_in_progress_is_not_aborted_as_failed(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    going_on = asyncio.Event()

    async def wait(name: str, key: str) -> None:
        if name == "get":
            await going_on.wait()

    broker.store.steps.wait = wait
    uploading = asyncio.create_task(broker.tiers.flush(TOPIC))
    await eventually(lambda: bool(broker.store.puts))
    keeping = asyncio.create_task(broker.tiers.upkeep(TOPIC))
    await asyncio.sleep(0.01)
    going_on.set()
    await asyncio.gather(uploading, keeping)
    assert broker.counters.sessions_aborted == 0
    await verify(world, tier, {0: range(10)})


@pytest.mark.parametrize("read_bytes", [1 << 20, 100], ids=["in one read", "in many"])
async def test_an_object_is_intact_when_every_byte_is_as_written(
    world: World, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(sessions, "READ_BYTES", read_bytes)
    monkeypatch.setattr(checksums, "READ_BYTES", read_bytes)
    broker, tier = await started(world)
    await fill(tier.log, 5)
    await flush(tier)
    _, [entry] = await world.manifest()
    assert await sessions.is_intact(broker.store, entry)
    await broker.store.damage(entry.object_id, lambda data: data + b"?")
    assert not await sessions.is_intact(broker.store, entry)
    await world.bucket.delete(entry.object_id)
    assert not await sessions.is_intact(broker.store, entry)
    broker.store.steps.fail = lambda name, key: StoreUnavailable(key, "out")
    with pytest.raises(StoreUnavailable):
        await sessions.is_intact(broker.store, entry)
