from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.log import Log, LogMode, recover
from penstock.log.recovery.recover import Recovered
from penstock.metadata import MetadataUnavailable
from penstock.metadata.ownership import NOT_OURS, NotOwner
from penstock.model.errors import DurabilityUnmet, LogError, LogReadOnly, OwnedElsewhere
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.model.run import Run
from penstock.model.units import Offset
from penstock.objects import ObjectStoreError, StoreUnavailable
from penstock.tiers.maintenance import SLOW_SECONDS, TopicMaintenance
from penstock.tiers.manifest import snapshot
from penstock.tiers.manifest.manifest import Deposed
from penstock.tiers.manifest.stored_manifest import ManifestLimits
from penstock.tiers.settings import Pressure
from penstock.tiers.topic_tier import OBJECTS_PER_ROUND
from penstock.tiers.upload import next_object
from tests.broker.storage import (
    KEYS,
    P0,
    TOPIC,
    Broker,
    World,
    fill,
    filled,
    payload,
    read_all,
    spans,
    started,
    verify,
)
from tests.unit.log.messages import eventually

NEVER = 1e12
IDLE_TOPICS = 2000


def maintenance_of(broker: Broker, topic: TopicName = TOPIC) -> TopicMaintenance:
    return broker.tiers.maintenance(topic)


async def upload(broker: Broker, topic: TopicName = TOPIC) -> None:
    """Upload the topic as if that were due."""
    maintenance = maintenance_of(broker, topic)
    await maintenance.run_job(maintenance.uploading)


def out(name: str, key: str) -> Exception | None:
    """Fail as an unavailable bucket does."""
    return StoreUnavailable(key, "out")


def back(name: str, key: str) -> Exception | None:
    """Do not fail any more."""
    return None


# -- when a topic is uploaded


@pytest.mark.feature("T12")
@pytest.mark.parametrize(
    ("durability", "patience"), [(Durability.FSYNC, 10.0), (Durability.CLOUD, 0.25)]
)
async def test_new_messages_are_due_when_they_are_old_enough_or_large_enough(
    world: World, durability: Durability, patience: float
) -> None:
    broker = await world.broker(
        interval_seconds=10, linger_seconds=0.25, batch_bytes_max=4000, backlog_bytes_max=8000
    )
    tier = await broker.tier(durability=durability)
    tiers, maintenance = broker.tiers, maintenance_of(broker)
    pause = min(patience, 1.0)

    def is_due(time: float) -> bool:
        due_at = maintenance.upload_at(time)
        return due_at is not None and due_at <= time

    async def due(*times: float) -> list[bool]:
        await tier.log.writer.flush()
        return [is_due(time) for time in times]

    await tiers.flush(TOPIC)
    assert not is_due(100.0)
    tier.log.append(Run(b"s", [b"x"]))
    assert await due(200.0, 200 + patience * 0.99, 200 + patience) == [False, False, True]
    await tiers.flush(TOPIC)
    assert not is_due(300.0)
    tier.log.append(Run(b"s", [b"x" * 3500]))
    assert await due(400.0, 400 + pause * 0.99) == [False, False]
    tier.log.append(Run(b"s", [b"x" * 500]))
    assert await due(400.0, 400 + pause * 0.99, 400 + pause) == [False, False, True]
    tier.log.append(Run(b"s", [b"x" * 4000]))
    assert await due(400.0) == [True]


@pytest.mark.feature("T12")
async def test_upkeep_does_not_make_an_upload_come_early(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, tier = await started(world, upkeep_seconds=0.01, interval_seconds=NEVER)
    await fill(tier.log, 10)
    maintenance = maintenance_of(broker)
    steps = 0
    step = maintenance.upkeep.step

    async def counting() -> float | None:
        nonlocal steps
        steps += 1
        return await step()

    monkeypatch.setattr(type(maintenance.upkeep), "step", lambda self: counting())
    await broker.tiers.start()
    for wanted in range(1, 6):
        await fill(tier.log, 5)
        await eventually(lambda: steps >= wanted)  # noqa: B023 - called at once
    assert (await world.manifest())[1] == []


# -- topics at rest


async def at_rest(broker: Broker) -> None:
    """Wait until no topic has a job, nor will have one soon."""
    tiers, loop = broker.tiers, asyncio.get_running_loop()

    def resting() -> bool:
        schedules = [tiers.maintenance(topic) for topic in tiers.topics]
        times = [maintenance.upkeep_at for maintenance in schedules]
        soon = [at for at in times if at is not None and at < loop.time() + 1]
        return all(maintenance.is_idle for maintenance in schedules) and not soon

    await eventually(resting, seconds=60)


@pytest.mark.feature("T12")
async def test_idle_topics_cost_no_looks_and_no_calls_to_stores(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[TopicName] = []
    look = TopicMaintenance.look

    def counting(maintenance: TopicMaintenance) -> None:
        looked.append(maintenance.tier.topic)
        look(maintenance)

    monkeypatch.setattr(TopicMaintenance, "look", counting)
    broker = await world.broker(upkeep_seconds=0.01, interval_seconds=0)
    topics = [TopicName("default", "default", f"t{n}") for n in range(IDLE_TOPICS)]
    for start in range(0, IDLE_TOPICS, 50):
        await asyncio.gather(*(broker.tier(topic) for topic in topics[start : start + 50]))
    await broker.tiers.start()
    await at_rest(broker)
    looked.clear()
    asked, stored = len(broker.metadata.steps.names), len(broker.store.steps.names)
    await asyncio.sleep(0.1)
    # The lease may be renewed meanwhile.
    assert {"transaction"}.issuperset(broker.metadata.steps.names[asked:])
    assert len(broker.store.steps.names) == stored
    assert looked == []
    await fill(broker.tiers[topics[7]].log, 10)
    await eventually(lambda: broker.tiers.lag_bytes(topics[7]) == 0)
    await at_rest(broker)
    assert set(looked) == {topics[7]}


@pytest.mark.feature("T12", "T14", "T35")
async def test_upkeep_of_an_idle_topic_runs_when_time_makes_it_due(world: World) -> None:
    world.clock = Clock()  # type: ignore[assignment]
    world.log_settings = replace(world.log_settings, file_bytes_max=2000)
    broker = await world.broker(
        upkeep_seconds=0.01,
        interval_seconds=0,
        batch_bytes_max=1000,
        object_seconds_max=0.5,
        trash_seconds=1,
        wal_seconds_min=0.5,
    )
    tier = await broker.tier(limits=TopicRetention(max_age_seconds=4))
    await broker.tiers.start()
    await fill(tier.log, 100)
    await eventually(lambda: broker.tiers.lag_bytes(TOPIC) == 0)
    assert len(tier.manifest.index) > 3
    # No message is appended from here on.
    await eventually(lambda: len(tier.manifest.index) <= 2)
    await eventually(lambda: tier.log.files.start(P0) > 0)
    await eventually(lambda: tier.log.start_offset(P0) == 100)
    await eventually(lambda: len(tier.manifest.index) == 0)
    while [key for key in await world.keys() if "/data-" in key]:
        await asyncio.sleep(0.01)
    maintenance = maintenance_of(broker)
    await eventually(lambda: maintenance.is_idle and maintenance.upkeep_at is None)


@pytest.mark.feature("T15")
async def test_upkeep_that_fails_or_hangs_does_not_delay_uploads(world: World) -> None:
    broker, tier = await started(
        world,
        upkeep_seconds=0.005,
        interval_seconds=0,
        merge_objects_min=2,
        retry_seconds=1000,
        retry_seconds_max=1000,
    )
    await broker.tiers.start()
    maintenance = maintenance_of(broker)
    broker.store.steps.fail = lambda name, key: out(name, key) if "/manifest-" in key else None
    await fill(tier.log, 20)
    await eventually(lambda: maintenance.upkeeping.failures > 0)
    await fill(tier.log, 20)
    await eventually(lambda: broker.tiers.lag_bytes(TOPIC) == 0)
    assert maintenance.uploading.failures == 0
    assert broker.counters.upload_retries == 0
    broker.store.steps.fail = back
    hanging = asyncio.Event()

    async def hang(name: str, key: str) -> None:
        if "/manifest-" in key:
            hanging.set()
            await asyncio.Event().wait()

    broker.store.steps.wait = hang
    maintenance.upkeeping.not_before = 0.0
    await hanging.wait()
    await fill(tier.log, 20)
    await eventually(lambda: broker.tiers.lag_bytes(TOPIC) == 0)
    assert maintenance.upkeeping.task is not None
    await verify(world, tier, {0: range(60)})


@pytest.mark.feature("T12")
async def test_topics_are_uploaded_and_maintained_in_the_background(world: World) -> None:
    broker = await world.broker(upkeep_seconds=0.01, interval_seconds=0.01, merge_objects_min=2)
    topics = [TopicName("default", "default", f"t{n}") for n in range(3)]
    tiers = [await broker.tier(topic) for topic in topics]
    await broker.tiers.start()
    for _ in range(5):
        for tier in tiers:
            await fill(tier.log, 30)
        await asyncio.sleep(0.02)
    await eventually(lambda: all(broker.tiers.lag_bytes(topic) == 0 for topic in topics))
    await eventually(lambda: broker.counters.merges >= 3)
    await eventually(lambda: all(len(tier.manifest.index) <= 3 for tier in tiers))
    assert broker.tiers.topics == topics
    for tier in tiers:
        await verify(world, tier, {0: range(150)})


@pytest.mark.feature("T12", "T15")
async def test_a_backlog_from_before_a_restart_is_uploaded_without_new_messages(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 100)
    broker = await world.broker(await broker.crash(), interval_seconds=0.01)
    tier = await broker.tier()
    assert broker.tiers.lag_bytes(TOPIC) > 100 * 40
    await broker.tiers.start()
    await eventually(lambda: broker.tiers.lag_bytes(TOPIC) == 0)
    assert spans((await world.manifest())[1])[-1][1] == 100
    await verify(world, tier, {0: range(100)})


@pytest.mark.feature("T12")
async def test_uploads_at_once_limits_concurrent_uploads(world: World) -> None:
    broker = await world.broker(uploads_at_once=2, interval_seconds=0)
    topics = [TopicName("default", "default", f"t{n}") for n in range(6)]
    for topic in topics:
        await fill((await broker.tier(topic)).log, 10)
    busy: set[str] = set()
    most = 0

    async def watch(name: str, key: str) -> None:
        nonlocal most
        if name == "put" and "/data-" in key:
            topic = key.split("/")[3]
            busy.add(topic)
            most = max(most, len(busy))
            await asyncio.sleep(0.01)
            busy.discard(topic)

    broker.store.steps.wait = watch
    await broker.tiers.start()
    await eventually(lambda: all(broker.tiers.lag_bytes(topic) == 0 for topic in topics))
    assert most == 2


async def test_failing_uploads_of_a_topic_do_not_delay_other_topics(world: World) -> None:
    broker = await world.broker(uploads_at_once=1, interval_seconds=0)
    bad, good = (TopicName("default", "default", name) for name in ("bad", "good"))
    for topic in (bad, good):
        await fill((await broker.tier(topic)).log, 10)
    broker.store.steps.fail = lambda name, key: out(name, key) if "/bad/" in key else None
    await broker.tiers.start()
    await eventually(lambda: broker.tiers.lag_bytes(good) == 0)
    await eventually(lambda: maintenance_of(broker, bad).uploading.failures > 3)
    assert broker.tiers.lag_bytes(bad) > 0


# -- outages


@pytest.mark.feature("T15")
async def test_delays_double_with_jitter_up_to_a_limit_however_long_an_outage_lasts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, tier = await started(world, interval_seconds=0, retry_seconds=0.5, retry_seconds_max=30)
    await fill(tier.log, 10)
    broker.store.steps.fail = out
    loop, maintenance, delays = asyncio.get_running_loop(), maintenance_of(broker), []
    moment = loop.time()
    with monkeypatch.context() as patch:
        patch.setattr(random, "uniform", lambda low, high: high)
        patch.setattr(loop, "time", lambda: moment)
        for _ in range(1200):
            await upload(broker)
            delays.append(maintenance.uploading.not_before - moment)
    assert [round(delay, 6) for delay in delays[:8]] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert {round(delay, 6) for delay in delays[8:]} == {30}
    assert broker.counters.upload_retries == 1200
    broker.store.steps.fail = back
    await upload(broker)
    assert (maintenance.uploading.failures, broker.tiers.lag_bytes(TOPIC)) == (0, 0)
    await verify(world, tier, {0: range(10)})


@pytest.mark.feature("T15")
async def test_a_delay_is_between_half_and_all_of_what_it_may_be(world: World) -> None:
    broker, _ = await started(world, retry_seconds=8, retry_seconds_max=8)
    work = maintenance_of(broker).upkeeping
    delays = [work.failed(100.0) for _ in range(200)]
    assert work.not_before == 100.0 + delays[-1]
    assert min(delays) >= 4
    assert max(delays) <= 8
    assert len({round(delay, 3) for delay in delays}) > 50


@pytest.mark.feature("T15")
@pytest.mark.parametrize("what", ["bucket", "metadata"])
async def test_an_outage_is_absorbed_by_the_wal_and_the_backlog_drains_after_it(
    world: World, what: str
) -> None:
    broker, tier = await started(
        world, upkeep_seconds=0.01, interval_seconds=0, batch_bytes_max=2000
    )
    steps = broker.store.steps if what == "bucket" else broker.metadata.steps
    await fill(tier.log, 50)
    await broker.tiers.start()
    await eventually(lambda: broker.tiers.lag_bytes(TOPIC) == 0)
    before = await world.manifest()
    steps.fail = out if what == "bucket" else lambda name, key: MetadataUnavailable("out")
    await fill(tier.log, 250)
    await eventually(lambda: maintenance_of(broker).uploading.failures > 8)
    assert broker.tiers.lag_bytes(TOPIC) > 250 * 40
    assert (await world.manifest())[1] == before[1]
    await verify(world, tier, {0: range(300)})
    steps.fail = back
    await eventually(lambda: broker.tiers.lag_bytes(TOPIC) == 0)
    assert maintenance_of(broker).uploading.failures == 0
    assert spans((await world.manifest())[1])[-1][1] == 300
    await verify(world, tier, {0: range(300)})


@pytest.mark.feature("T15", "T26")
async def test_offsets_do_not_run_out_while_the_bucket_is_unavailable(world: World) -> None:
    broker, tier = await started(
        world, interval_seconds=0, reserve_offsets=100, retry_seconds=1000, retry_seconds_max=1000
    )
    broker.store.steps.fail = out
    await broker.tiers.start()
    for _ in range(12):
        await fill(tier.log, 40, run=20)
        await eventually(lambda: not tier.needs_reservation)
    assert (await world.manifest())[0].reserved > 480
    assert maintenance_of(broker).uploading.failures == 1
    await verify(world, tier, {0: range(480)})


@pytest.mark.feature("T15", "T26")
async def test_offsets_are_reserved_without_the_bucket_however_much_is_deleted(
    world: World,
) -> None:
    limits = ManifestLimits(inline_bytes_max=16)
    broker, tier = await started(world, reserve_offsets=100, manifest=limits)
    await fill(tier.log, 40)
    await tier.log.delete(P0, range(0, 40, 3))
    await broker.tiers.flush(TOPIC)
    assert (await world.manifest())[0].deletes_object is not None
    broker.store.steps.fail = out
    await tier.log.delete(P0, [1])
    for _ in range(5):
        await fill(tier.log, 40, run=20)
        await tier.reserve()
    broker.store.steps.fail = back
    await broker.tiers.flush(TOPIC)
    dead = {1, *range(0, 40, 3)}
    await verify(world, tier, {0: [n for n in range(240) if n not in dead]})
    after = await world.broker(await broker.crash())
    assert set((await after.tier()).log.state.bitmap(P0) or ()) == dead


@pytest.mark.feature("T15")
async def test_a_topic_opens_without_the_bucket_however_much_is_deleted(
    world: World,
) -> None:
    limits = ManifestLimits(inline_bytes_max=16)
    broker, tier = await started(world, reserve_offsets=100, manifest=limits)
    await fill(tier.log, 60)
    dead = set(range(0, 60, 3))
    await tier.log.delete(P0, sorted(dead))
    await broker.tiers.flush(TOPIC)
    broker = await world.broker(await broker.crash(), reserve_offsets=100, manifest=limits)
    broker.store.steps.fail = out
    tier = await broker.tier()
    for _ in range(3):
        await fill(tier.log, 40, run=20)
        await tier.reserve()
    broker.store.steps.fail = back
    await broker.tiers.upkeep(TOPIC)
    assert await snapshot.newest(world.bucket, TOPIC) is None
    await broker.tiers.flush(TOPIC)
    await broker.tiers.upkeep(TOPIC)
    newest = await snapshot.newest(world.bucket, TOPIC)
    assert newest is not None
    assert newest.head.deletes == tier.manifest.head.deletes == tier.log.state.deleted()
    await verify(world, tier, {0: [n for n in range(180) if n not in dead]})
    other = await world.broker(name="elsewhere")
    other.store.steps.fail = out
    await world.depose()
    with pytest.raises(StoreUnavailable):
        await other.tier()


@pytest.mark.feature("T15")
async def test_a_failed_reservation_is_repeated(world: World) -> None:
    broker, tier = await started(world, interval_seconds=NEVER, reserve_offsets=100)
    maintenance_of(broker).upkeep_at = NEVER
    broker.metadata.steps.fail = lambda name, key: MetadataUnavailable("out")
    await broker.tiers.start()
    await fill(tier.log, 90, run=30)
    calls = broker.metadata.steps.names
    await eventually(lambda: len(calls) > 10)
    with pytest.raises(LogReadOnly):
        tier.log.append(Run(b"s", [b"x"] * 11))
    broker.metadata.steps.fail = back
    await eventually(lambda: not tier.needs_reservation)
    await fill(tier.log, 50, run=50)
    assert TOPIC in broker.tiers.topics


# -- pressure


@pytest.mark.feature("T15")
async def test_the_lag_is_the_size_of_messages_in_no_object(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    lag = broker.tiers.lag_bytes
    await broker.tiers.flush(TOPIC)
    assert lag(TOPIC) == 0
    await fill(tier.log, 200)
    whole = lag(TOPIC)
    assert whole == tier.log.stored_bytes > 200 * 40
    await maintenance_of(broker).upload_round()
    assert 0 < lag(TOPIC) < whole
    await broker.tiers.flush(TOPIC)
    assert lag(TOPIC) == 0


@pytest.mark.feature("T15")
async def test_the_lag_does_not_grow_while_uploads_keep_up_with_appends(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1 << 20)

    async def append(name: str, key: str) -> None:
        if name == "put":
            await fill(tier.log, 5)

    broker.store.steps.wait = append
    lags = []
    for _ in range(10):
        await fill(tier.log, 20)
        await maintenance_of(broker).upload_round()
        lags.append(broker.tiers.lag_bytes(TOPIC))
    assert max(lags) <= OBJECTS_PER_ROUND * min(lags)


def overloaded(broker: Broker, log: Log) -> tuple[float, str]:
    maintenance_of(broker).apply_pressure()
    return log.pressure_seconds, log.refusal


@pytest.mark.feature("T15")
@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (Pressure.NONE, (0.0, "")),
        (Pressure.SLOW, (SLOW_SECONDS, "")),
        (Pressure.REFUSE, (0.0, "the object store is too far behind")),
    ],
)
async def test_the_back_pressure_policy_applies_while_the_lag_exceeds_its_limit(
    world: World, policy: Pressure, wanted: tuple[float, str]
) -> None:
    broker, tier = await started(world, lag_bytes_max=5000, pressure=policy)
    await broker.tiers.flush(TOPIC)
    await fill(tier.log, 50)
    assert broker.tiers.lag_bytes(TOPIC) <= 5000
    assert overloaded(broker, tier.log) == (0.0, "")
    await fill(tier.log, 100)
    assert broker.tiers.lag_bytes(TOPIC) > 5000
    assert overloaded(broker, tier.log) == wanted
    if policy is Pressure.REFUSE:
        with pytest.raises(LogReadOnly, match="the object store is too far behind"):
            tier.log.append(Run(b"s", [b"x"]))
        await tier.log.delete(P0, [0])
    else:
        await tier.log.append(Run(b"s", [payload(150)]))
    await broker.tiers.flush(TOPIC)
    assert overloaded(broker, tier.log) == (0.0, "")
    await fill(tier.log, 1)


@pytest.mark.feature("T15")
async def test_the_lag_after_a_restart_includes_the_earlier_backlog(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 200)
    broker = await world.broker(await broker.crash(), lag_bytes_max=5000, pressure=Pressure.REFUSE)
    tier = await broker.tier()
    assert overloaded(broker, tier.log)[1] != ""
    await broker.tiers.flush(TOPIC)
    assert overloaded(broker, tier.log) == (0.0, "")
    broker = await world.broker(
        await broker.crash(), lag_bytes_max=20_000, pressure=Pressure.REFUSE
    )
    tier = await broker.tier()
    assert overloaded(broker, tier.log) == (0.0, "")


# -- owning


@pytest.mark.feature("T26")
async def test_a_topic_of_another_broker_is_refused(world: World) -> None:
    first, _ = await started(world)
    second = await world.broker(name="b2")
    with pytest.raises(LogError, match="another broker owns it"):
        await second.tier()
    assert second.tiers.topics == []
    await first.stop()
    await second.tier()
    assert second.tiers.topics == [TOPIC]


@pytest.mark.feature("T26")
async def test_a_broker_owns_its_topics_with_a_later_epoch_after_a_crash(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    epochs = [tier.epoch]
    for _ in range(2):
        broker = await world.broker(await broker.crash())
        tier = await broker.tier()
        epochs.append(tier.epoch)
        await verify(world, tier, {0: range(10)})
    assert epochs == sorted(set(epochs))


@pytest.mark.feature("T26")
async def test_a_lost_topic_refuses_messages_and_is_not_uploaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, tier = await started(world, interval_seconds=0)
    await fill(tier.log, 10)
    await broker.tiers.flush(TOPIC)
    await world.depose()
    before = await world.raw_metadata()
    await fill(tier.log, 10)
    monkeypatch.setattr(broker.ownership, "verify", AsyncMock())
    await broker.tiers.start()
    await eventually(lambda: broker.tiers.topics == [])
    assert not broker.ownership.may_ack(TOPIC, tier.epoch)
    with pytest.raises(LogReadOnly, match=NOT_OURS):
        tier.log.append(Run(b"s", [b"x"]))
    assert await world.raw_metadata() == before
    broker.tiers.lost(TOPIC, NOT_OURS)
    await broker.tiers.close()


@pytest.mark.feature("T26")
async def test_jobs_of_a_lost_topic_are_cancelled(world: World) -> None:
    broker, tier = await started(world, interval_seconds=0)
    await fill(tier.log, 10)
    stuck = asyncio.Event()

    async def wait(name: str, key: str) -> None:
        if name == "put":
            stuck.set()
            await asyncio.Event().wait()

    broker.store.steps.wait = wait
    maintenance = maintenance_of(broker)
    maintenance.start_job(maintenance.uploading)
    task = maintenance.uploading.task
    assert task is not None
    await stuck.wait()
    await world.depose()
    await broker.ownership.verify()
    await asyncio.wait([task])
    assert (broker.lost, broker.tiers.topics, task.cancelled()) == ([TOPIC], [], True)
    assert (await world.manifest())[1] == []


@pytest.mark.feature("T03", "T26")
async def test_a_publisher_that_waits_for_an_upload_is_answered_when_the_topic_is_lost(
    world: World,
) -> None:
    broker = await world.broker()
    tier = await broker.tier(durability=Durability.CLOUD)
    waiting = tier.log.append(Run(b"s", [b"x"]))
    await tier.log.writer.flush()
    await world.depose()
    await broker.ownership.verify()
    with pytest.raises(DurabilityUnmet, match=NOT_OURS):
        await asyncio.wait_for(waiting, 30)


# -- disks that are not the one


async def taken_over(world: World) -> tuple[Broker, Broker]:
    """A stopped broker, and the stopped broker that had taken its topic over."""
    first, tier = await started(world)
    await fill(tier.log, 20)
    await first.tiers.flush(TOPIC)
    await fill(tier.log, 5)
    await world.depose()
    second = await world.broker(name="b2")
    other = await second.tier()
    await fill(other.log, 10)
    await second.stop()
    await first.drop()
    return first, second


@pytest.mark.feature("T26")
async def test_an_overtaken_wal_is_set_aside_and_the_topic_continues(
    world: World,
) -> None:
    first, _ = await taken_over(world)
    broker = await world.broker(first.directory)
    tier = await broker.tier()
    start = tier.log.next_offset(P0)
    assert start >= 2000, "behind both reservations"
    await fill(tier.log, 3)
    live = [*range(20), *range(1000, 1010), *range(start, start + 3)]
    await verify(world, tier, {0: live})
    [aside] = [
        path
        for path in (first.directory / "default/default").iterdir()
        if path.name.startswith("t.overtaken-")
    ]
    assert sum(payload(24) in path.read_bytes() for path in aside.glob("*.log")) == 1


@pytest.mark.feature("T26")
async def test_the_successor_keeps_its_own_wal(world: World) -> None:
    _, second = await taken_over(world)
    tier = await (await world.broker(second.directory, name="b2")).tier()
    assert tier.log.next_offset(P0) == 1010
    await verify(world, tier, {0: [*range(20), *range(1000, 1010)]})


@pytest.mark.feature("T26")
async def test_a_wal_that_was_set_aside_is_not_opened_at_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await taken_over(world)
    broker = await world.broker(first.directory)
    tier = await broker.tier()
    await fill(tier.log, 3)
    directory = tier.log.directory
    await broker.stop()
    opened: list[Path] = []

    def note(disk: Disk, found: Path, topic: str) -> Recovered:
        opened.append(found)
        return recover(disk, found, topic)

    monkeypatch.setattr("penstock.log.opening.recover", note)
    await world.broker(first.directory)
    assert opened == [directory]


@pytest.mark.feature("T26")
async def test_an_old_copy_of_the_wal_does_not_assign_offsets_again(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 20)
    await broker.tiers.flush(TOPIC)
    backup = world.new_directory("backup")
    shutil.copytree(broker.directory, backup)
    await fill(tier.log, 30)
    await broker.tiers.flush(TOPIC)
    await broker.drop()
    tier = await (await world.broker(backup)).tier()
    assert tier.log.next_offset(P0) >= 50
    start = tier.log.next_offset(P0)
    await fill(tier.log, 2)
    await verify(world, tier, {0: [*range(50), *range(start, start + 2)]})


# -- durability cloud


async def cloud(world: World, **settings: Any) -> tuple[Broker, Log]:
    broker = await world.broker(**settings)
    return broker, (await broker.tier(durability=Durability.CLOUD)).log


@pytest.mark.feature("T03")
async def test_an_ack_waits_for_the_object_and_the_manifest(world: World) -> None:
    broker, log = await cloud(world)
    waiting = log.append(Run(b"s", [payload(0)]))
    await log.writer.flush()
    seen: list[tuple[str, bool]] = []

    async def watch(name: str, key: str) -> None:
        seen.append((name, waiting.done()))

    broker.use_steps().wait = watch
    assert not waiting.done()
    await broker.tiers.flush(TOPIC)
    assert [done for _, done in seen] == [False] * len(seen)
    assert [name for name, _ in seen] == ["transaction", "put", "get", "transaction"]
    assert await waiting == (0, 1)
    assert spans((await world.manifest())[1]) == [(0, 1)]


@pytest.mark.feature("T03", "T15")
async def test_acknowledged_messages_of_a_cloud_topic_survive_the_loss_of_the_disk(
    world: World,
) -> None:
    broker, log = await cloud(world, linger_seconds=0.002, batch_bytes_max=1000)
    await broker.tiers.start()
    acked: list[int] = []

    async def publish(name: int) -> None:
        for n in range(20):
            given = await log.append(Run(b"s", [b"%d/%d" % (name, n)]))
            acked.append(given.first)

    tasks = [asyncio.create_task(publish(name)) for name in range(8)]
    await eventually(lambda: len(acked) > 60)
    broker.store.steps.fail = out
    count = len(acked)
    await broker.drop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    shutil.rmtree(broker.directory)
    await world.depose()
    tier = await (await world.broker(name="b2")).tier()
    assert tier.log.durability is Durability.CLOUD
    found = {offset for offset, _ in await read_all(tier)}
    assert set(acked[:count]) <= found


@pytest.mark.feature("T03")
async def test_an_ack_is_sent_although_the_reply_to_the_commit_was_lost(world: World) -> None:
    broker = await world.broker()
    tier = await broker.tier(durability=Durability.CLOUD)
    await broker.tiers.flush(TOPIC)
    written = tier.log.append(Run(b"s", [b"x"]))
    await eventually(lambda: tier.log.writer.durable_number > tier.collected_frame)
    steps = broker.metadata.steps
    steps.lose = {len(steps.names) + 1: True}
    with pytest.raises(MetadataUnavailable):
        await broker.tiers.flush(TOPIC)
    assert not written.done()
    assert spans((await world.manifest())[1]) == [(0, 1)]
    await broker.tiers.flush(TOPIC)
    assert written.done()


@pytest.mark.feature("T14")
async def test_a_topic_opens_although_the_store_refuses_to_abort_uploads(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    broker.store.steps.fail = lambda name, key: (
        StoreUnavailable(key, "out") if name == "get" else None
    )
    with pytest.raises(StoreUnavailable):
        await tier.upload_round()
    await world.bucket.delete(broker.store.puts[0])
    broker = await world.broker(await broker.crash())
    broker.store.steps.fail = lambda name, key: (
        ObjectStoreError(key, "status 403") if name == "abort_uploads" else None
    )
    tier = await broker.tier()
    await broker.tiers.flush(TOPIC)
    await verify(world, tier, {0: range(10)})


@pytest.mark.feature("T03")
async def test_acks_are_in_order_while_several_objects_are_uploaded(world: World) -> None:
    broker, log = await cloud(world, batch_bytes_max=300)
    order: list[int] = []
    for n in range(20):
        future = log.append(Run(b"s", [payload(n)]))
        future.add_done_callback(lambda done: order.append(done.result().first))
        await log.writer.flush()
    await broker.tiers.flush(TOPIC)
    await eventually(lambda: len(order) == 20)
    assert order == list(range(20))
    assert len((await world.manifest())[1]) > 4


@pytest.mark.feature("T03", "T35")
async def test_a_deletion_in_a_cloud_topic_is_acknowledged_once_the_manifest_has_it(
    world: World,
) -> None:
    broker, log = await cloud(world)
    waiting = log.append(Run(b"s", [payload(n) for n in range(5)]))
    await log.writer.flush()
    await broker.tiers.flush(TOPIC)
    await waiting
    deleting = asyncio.create_task(log.delete(P0, [2]))
    await eventually(lambda: log.state.bitmap(P0) is not None)
    assert not deleting.done()
    await broker.tiers.flush(TOPIC)
    await deleting
    assert (await world.manifest())[0].deletes == log.state.deleted()


# -- the end


@pytest.mark.feature("T15")
async def test_shutdown_uploads_the_remaining_messages(world: World) -> None:
    broker, tier = await started(world, interval_seconds=NEVER, batch_bytes_max=1000)
    await broker.tiers.start()
    await fill(tier.log, 200)
    await broker.stop()
    assert spans((await world.manifest())[1])[-1][1] == 200


async def test_an_unavailable_bucket_does_not_block_shutdown(world: World) -> None:
    broker, tier = await started(world, interval_seconds=0)
    await broker.tiers.start()
    await fill(tier.log, 20)
    broker.store.steps.fail = out
    await broker.stop()
    broker = await world.broker(broker.directory)
    tier = await broker.tier()
    await verify(world, tier, {0: range(20)})
    await broker.tiers.flush(TOPIC)
    await verify(world, tier, {0: range(20)})


async def test_losing_a_topic_during_shutdown_does_not_block_it(
    world: World,
) -> None:
    broker = await world.broker(interval_seconds=0)
    topics = [TopicName("default", "default", f"t{n}") for n in range(3)]
    lost = asyncio.Event()

    async def wait(name: str, key: str) -> None:
        if name == "put":
            await lost.wait()

    for topic in topics:
        await fill((await broker.tier(topic)).log, 10)
    broker.store.steps.wait = wait
    for topic in topics:
        maintenance = maintenance_of(broker, topic)
        maintenance.start_job(maintenance.uploading)
    await world.depose(topics[0])
    asyncio.get_running_loop().call_later(0.02, lost.set)
    await broker.stop()
    assert spans((await world.manifest(topics[0]))[1]) == []
    assert [spans((await world.manifest(t))[1]) for t in topics[1:]] == [[(0, 10)]] * 2


async def test_a_topic_that_is_lost_during_the_last_uploads_does_not_stop_the_others(
    world: World,
) -> None:
    broker = await world.broker(interval_seconds=NEVER)
    topics = [TopicName("default", "default", f"t{n}") for n in range(3)]
    for topic in topics:
        await fill((await broker.tier(topic)).log, 10)

    async def wait(name: str, key: str) -> None:
        if name == "put":
            broker.tiers.lost(topics[1], "another has it")

    broker.store.steps.wait = wait
    await broker.tiers.close()
    assert [spans((await world.manifest(t))[1]) for t in topics] == [[(0, 10)], [], [(0, 10)]]


async def test_a_failing_disk_does_not_block_shutdown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, tier = await started(world, interval_seconds=NEVER)
    await fill(tier.log, 10)
    monkeypatch.setattr(next_object, "make_here", Mock(side_effect=OSError(5, "bad disk")))
    await broker.tiers.close()
    assert spans((await world.manifest())[1]) == []


async def test_a_flush_ends_although_appends_go_on(world: World) -> None:
    broker, tier = await started(world)

    async def append(name: str, key: str) -> None:
        if name == "put":
            await fill(tier.log, 5)

    await fill(tier.log, 20)
    broker.store.steps.wait = append
    await asyncio.wait_for(broker.tiers.flush(TOPIC), 30)
    assert spans((await world.manifest())[1])[0][0] == 0
    broker.store.steps.wait = None
    await broker.tiers.flush(TOPIC)
    await verify(world, tier, {0: range(tier.log.next_offset(P0))})


async def test_flush_and_upkeep_raise_an_error_for_a_topic_that_was_lost(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await world.depose()
    with pytest.raises(Deposed):
        await broker.tiers.flush(TOPIC)
    await tier.log.purge(P0, Offset(10))
    assert await read_all(tier) == filled([])


@pytest.mark.feature("T26")
async def test_the_error_names_the_owner_of_the_topic(world: World) -> None:
    first, _ = await started(world)
    second = await world.broker(name="b2")
    with pytest.raises(OwnedElsewhere, match=r"another broker owns it: b1 at address") as caught:
        await second.tiers.own(TOPIC)
    assert (caught.value.broker, caught.value.address) == ("b1", "address")
    assert await first.tiers.own(TOPIC) == first.ownership.epoch(TOPIC)


@pytest.mark.feature("T26")
async def test_ownership_is_acquired_at_once_if_the_owner_ends_meanwhile(world: World) -> None:
    await started(world)
    second = await world.broker(name="b2")
    steps = second.use_steps()

    async def depose(name: str, key: str) -> None:
        if name == "read" and key.endswith("/owner"):
            steps.wait = None
            await world.depose()

    steps.wait = depose
    assert await second.tiers.own(TOPIC) == second.ownership.epoch(TOPIC)


@pytest.mark.feature("T26")
async def test_observers_are_notified_of_lost_topics_with_and_without_a_tier(world: World) -> None:
    broker, _ = await started(world)
    other = TopicName("default", "default", "other")
    await broker.tiers.own(other)
    told: list[tuple[TopicName, str]] = []
    broker.tiers.watch(lost=lambda *lost: told.append(lost))
    for topic in (TOPIC, other):
        await world.depose(topic)
    await broker.ownership.verify()
    assert told == [(TOPIC, NOT_OURS), (other, NOT_OURS)]


@pytest.mark.feature("T26")
async def test_a_topic_that_is_owned_again_accepts_messages_as_before(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 5)
    await world.depose()
    await broker.ownership.verify()
    again = await broker.tier()
    assert again.log is tier.log
    await eventually(lambda: again.log.mode is LogMode.OPEN)
    await asyncio.wait_for(fill(again.log, 5), 30)
    assert await read_all(again) == filled(range(10))


@pytest.mark.feature("T26")
async def test_a_topic_lost_while_it_opens_is_not_maintained(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 5)
    await broker.stop()
    broker = await world.broker(broker.directory)
    steps = broker.use_steps()

    async def lose(name: str, key: str) -> None:
        if key == KEYS.objects(TOPIC):
            steps.wait = None
            await world.depose()
            await broker.ownership.verify()

    steps.wait = lose
    with pytest.raises(NotOwner):
        await broker.tier()
    assert (broker.lost, broker.tiers.topics) == ([TOPIC], [])
    again = await broker.tier()
    await fill(again.log, 5)
    assert await read_all(again) == filled(range(10))


@pytest.mark.feature("T26")
@pytest.mark.parametrize("seen_before", [False, True])
async def test_messages_are_refused_only_while_the_lease_is_renewed_late(
    world: World, monkeypatch: pytest.MonkeyPatch, seen_before: bool
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 5)
    answers = iter([True]) if seen_before else iter([])
    with monkeypatch.context() as patch:
        patch.setattr(broker.ownership, "may_ack", lambda *_: next(answers, False))
        with pytest.raises(DurabilityUnmet if seen_before else LogReadOnly, match="no longer own"):
            await tier.log.append(Run(b"s", [b"x"]))
        with pytest.raises(LogReadOnly, match="no longer own"):
            await tier.log.append(Run(b"s", [b"x"]))
    await eventually(lambda: tier.log.mode is LogMode.OPEN)
    await asyncio.wait_for(fill(tier.log, 5), 30)
    assert await read_all(tier) == filled(range(10))


async def test_a_new_log_has_the_requested_durability(world: World) -> None:
    broker = await world.broker()
    tier = await broker.tiers.add(TOPIC, durability=Durability.CLOUD)
    assert tier.log.durability is Durability.CLOUD


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.CLOUD])
async def test_a_removed_topic_is_not_maintained(world: World, durability: Durability) -> None:
    broker = await world.broker(interval_seconds=0.001, linger_seconds=0.001)
    tier = await broker.tier(durability=durability)
    reached = asyncio.Event()

    async def hang(name: str, key: str) -> None:
        if name == "put":
            reached.set()
            await asyncio.Event().wait()

    broker.store.steps.wait = hang
    await broker.tiers.start()
    waiting = tier.log.append(Run(b"s", [b"x"]))
    await reached.wait()
    uploading = maintenance_of(broker).uploading.task
    assert uploading is not None
    await asyncio.wait_for(broker.tiers.remove(TOPIC), 30)
    assert uploading.done()
    assert broker.tiers.topics == []
    if durability is Durability.CLOUD:
        with pytest.raises(DurabilityUnmet, match="the topic is deleted"):
            await waiting
    with pytest.raises(LogReadOnly, match="the topic is deleted"):
        await tier.log.append(Run(b"s", [b"x"]))
    await broker.tiers.remove(TOPIC)
