from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from penstock.tiers.maintenance import TopicMaintenance, Work
from penstock.tiers.settings import TierSettings

SETTINGS = TierSettings(retry_seconds=0.5, retry_seconds_max=30)


def duty() -> TopicMaintenance:
    nothing: Any = None
    return TopicMaintenance(nothing, nothing, asyncio.Lock(), set())


@pytest.mark.feature("T15")
def test_work_that_fails_waits_longer_every_time_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    work = Work("failed")
    delays = [work.back_off(SETTINGS, 7.0) for _ in range(1200)]
    assert delays[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert (set(delays[8:]), work.failures) == ({30}, 1200)
    assert (work.may_start(36.9), work.may_start(37.0)) == (False, True)


async def test_of_one_kind_of_work_one_task_runs_at_a_time() -> None:
    mine = duty()
    assert mine.uploading.may_start(0.0)
    task = mine.uploading.task = asyncio.create_task(asyncio.sleep(60))
    assert not mine.uploading.may_start(0.0)
    assert mine.keeping.may_start(0.0)
    assert mine.tasks() == [task]
    mine.end()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_change_wakes_a_topic_and_is_taken_once() -> None:
    mine = duty()
    assert mine.take_change()
    mine.rest()
    assert not mine.awake
    mine.change()
    assert mine.awake == {mine}
    assert [mine.take_change(), mine.take_change()] == [True, False]


async def test_a_topic_at_rest_wakes_when_its_upkeep_is_due() -> None:
    mine, now = duty(), asyncio.get_running_loop().time()
    mine.want_upkeep(now + 60)
    mine.want_upkeep(now + 0.01)
    mine.want_upkeep(now + 90)
    assert mine.upkeep_at == now + 0.01
    mine.rest()
    assert not mine.awake
    async with asyncio.timeout(10):
        while not mine.awake:
            await asyncio.sleep(0.001)


async def test_a_topic_that_is_let_go_never_wakes_again() -> None:
    mine, everybody = duty(), set[TopicMaintenance]()
    mine.awake = everybody
    mine.want_upkeep(asyncio.get_running_loop().time() + 0.005)
    mine.rest()
    mine.end()
    mine.change()
    await asyncio.sleep(0.02)
    assert everybody == set()
