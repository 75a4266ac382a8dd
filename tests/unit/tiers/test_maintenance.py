from __future__ import annotations

import asyncio
import random

import pytest

from penstock.model.run import Run
from penstock.tiers.maintenance import Job, TopicMaintenance
from penstock.tiers.settings import TierSettings
from tests.broker.storage import TOPIC, World, started
from tests.unit.log.messages import eventually


async def nothing() -> None:
    """A job without work."""


async def scheduled(world: World, **settings: float) -> TopicMaintenance:
    """The schedule of a topic whose jobs are due at once when it changes."""
    broker, _ = await started(world, upkeep_seconds=1000, interval_seconds=0, **settings)
    return broker.tiers.maintenance(TOPIC)


@pytest.mark.feature("T15")
def test_a_job_that_fails_is_delayed_longer_every_time_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    job = Job(nothing, "failed", TierSettings(retry_seconds=0.5, retry_seconds_max=30))
    delays = [job.failed(7.0) for _ in range(1200)]
    assert delays[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert (set(delays[8:]), job.failures, job.not_before) == ({30}, 1200, 37.0)
    job.succeeded()
    assert (job.failures, job.failed(7.0)) == (0, 0.5)


async def test_one_kind_of_job_runs_once_at_a_time_and_others_beside_it(world: World) -> None:
    maintenance = await scheduled(world)
    runs: list[str] = []

    async def hang(name: str) -> None:
        runs.append(name)
        await asyncio.Event().wait()

    maintenance.uploading.work = lambda: hang("upload")
    maintenance.upkeeping.work = lambda: hang("upkeep")
    maintenance.start()
    await maintenance.tier.log.append(Run(b"s", [b"x"]))
    await eventually(lambda: runs == ["upload"])
    maintenance.request_upkeep(0.0)
    for _ in range(3):
        maintenance.look()
    await eventually(lambda: len(runs) == 2)
    assert runs == ["upload", "upkeep"]
    task = maintenance.uploading.task
    assert task is not None
    maintenance.cancel()
    await maintenance.drain()
    assert task.cancelled()


async def test_upkeep_is_due_at_the_earliest_requested_time(world: World) -> None:
    maintenance, now = await scheduled(world), asyncio.get_running_loop().time()
    steps: list[float] = []

    async def step() -> None:
        maintenance.upkeep_at = None
        steps.append(asyncio.get_running_loop().time())

    maintenance.upkeeping.work = step
    for seconds in (60, 0.02, 90):
        maintenance.request_upkeep(now + seconds)
    assert maintenance.upkeep_at == now + 0.02
    maintenance.start()
    await eventually(lambda: bool(steps))
    assert steps[0] >= now + 0.02
    await eventually(lambda: maintenance.is_idle)


async def test_a_topic_whose_schedule_has_stopped_starts_no_job(world: World) -> None:
    maintenance = await scheduled(world)
    maintenance.start()
    maintenance.stop()
    maintenance.changed()
    await maintenance.tier.log.append(Run(b"s", [b"x"]))
    await asyncio.sleep(0.02)
    assert maintenance.is_idle
    assert maintenance.lag_bytes > 0
