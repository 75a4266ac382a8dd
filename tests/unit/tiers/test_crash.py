"""A life of a topic, ended at every call it makes to a store: nothing acknowledged is lost, nothing
is there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.metadata import MetadataUnavailable
from penstock.objects import StoreUnavailable
from penstock.tiers.manifest.manifest import Deposed
from penstock.tiers.manifest.stored_manifest import ManifestLimits
from penstock.tiers.reading.object_reader import ObjectRowsDamaged
from tests.broker.storage import (
    P0,
    TOPIC,
    Broker,
    World,
    fill,
    indexed,
    nothing_uncaught,
    stage_fill,
    verify,
)
from tests.faults import Crashed

DEAD: Final = (3, 4, 17)
LIVE: Final = [n for n in range(70) if n not in DEAD]
LIVES_AT_ONCE: Final = 6
SETTINGS: Final[dict[str, Any]] = {
    "batch_bytes_max": 800,
    "merge_objects_min": 2,
    "trash_seconds": 0,
    "manifest": ManifestLimits(added_max=1),
}
"""The two objects of a link are written in separate transactions."""


@asynccontextmanager
async def new_world(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    world.log_settings = replace(world.log_settings, file_bytes_max=1500)
    await world.open()
    yield world
    await world.close()


async def write(broker: Broker) -> None:
    """Write a topic with 60 messages in the WAL only and 10 linked ones in the bucket."""
    log = await broker.logs.create(TOPIC)
    await fill(log, 30)
    await log.delete(P0, DEAD)
    refs = [await stage_fill(broker.world, first, count) for first, count in ((30, 4), (34, 6))]
    await log.link("app", 1, {P0: refs})
    await fill(log, 30)
    await indexed(log)


Step = Callable[[], Awaitable[object]]


def life(broker: Broker) -> list[Step]:
    """Upload, merge, prune, snapshot, empty the trash; more than once."""
    tiers = broker.tiers
    return [
        lambda: tiers.maintenance(TOPIC).upload_round(),
        lambda: tiers.upkeep(TOPIC),
        lambda: tiers.flush(TOPIC),
        lambda: tiers.upkeep(TOPIC),
        lambda: tiers.upkeep(TOPIC),
    ]


async def crashes(broker: Broker, when: str, number: int) -> bool:
    """Run the steps and crash at that call; returns whether there was such a call."""
    await write(broker)
    setattr(broker.use_steps(), f"crash_{when}", number)
    try:
        await broker.tier()
        for step in life(broker):
            await step()
    except Crashed:
        return True
    return False


async def calls_of_a_life(directory: Path) -> list[str]:
    """The calls to the stores of a run without faults."""
    async with new_world(directory) as world:
        broker = await world.broker(**SETTINGS)
        await write(broker)
        steps = broker.use_steps()
        tier = await broker.tier()
        for step in life(broker):
            await step()
        calls = list(steps.names)
        await verify(world, tier, {0: LIVE})
        assert broker.counters.merges > 1
        assert tier.log.files.start(P0) > 0
        return calls


async def everywhere(
    directory: Path, one: Callable[[World, int], Awaitable[bool]], first: int = 0
) -> int:
    """Live once for every call, some lives at a time, until there is no such call; their number."""
    async with nothing_uncaught():
        for start in count(first, LIVES_AT_ONCE):
            numbers = range(start, start + LIVES_AT_ONCE)
            found = await asyncio.gather(*(_life_in(directory / str(n), one, n) for n in numbers))
            if not all(found):
                return start + found.index(False)
    raise AssertionError


async def _life_in(
    directory: Path, one: Callable[[World, int], Awaitable[bool]], number: int
) -> bool:
    async with new_world(directory) as world:
        return await one(world, number)


@pytest.mark.feature("T07", "T12", "T14", "T17", "T35")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_call_to_a_store_leaves_no_gap_and_no_overlap(
    tmp_path: Path, light: None, when: str
) -> None:
    async def one(world: World, number: int) -> bool:
        broker = await world.broker(**SETTINGS)
        if not await crashes(broker, when, number):
            return False
        broker = await world.broker(await broker.crash(), **SETTINGS)
        tier = await broker.tier()
        await verify(world, tier, {0: LIVE})
        assert await tier.manifest.sessions() == []
        for step in life(broker):
            await step()
        await fill(tier.log, 10)
        await broker.tiers.flush(TOPIC)
        await verify(world, tier, {0: [*LIVE, *range(70, 80)]})
        assert tier.log.files.start(P0) > 0
        return True

    calls = await calls_of_a_life(tmp_path / "whole")
    assert {"transaction", "put", "get", "delete", "list", "range"} <= set(calls)
    assert await everywhere(tmp_path, one) > len(calls) - 5


@pytest.mark.feature("T17", "T26")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_machine_lost_at_any_call_to_a_store_loses_only_what_was_not_uploaded(
    tmp_path: Path, light: None, when: str
) -> None:
    async def one(world: World, number: int) -> bool:
        broker = await world.broker(**SETTINGS)
        if not await crashes(broker, when, number):
            return False
        await broker.drop()
        await world.depose()
        other = await world.broker(name="b2", **SETTINGS)
        tier = await other.tier()
        _, entries = await world.manifest()
        end = max((entry.end_offset + 1 for entry in entries), default=0)
        deleted = tier.log.state.bitmap(P0) or ()
        uploaded = [n for n in range(end) if n not in deleted]
        assert set(uploaded) | set(DEAD) >= set(range(end))
        await verify(world, tier, {0: uploaded})
        first = tier.log.next_offset(P0)
        assert first >= 70
        await fill(tier.log, 10)
        for step in life(other):
            await step()
        await verify(world, tier, {0: [*uploaded, *range(first, first + 10)]})
        return True

    calls = await calls_of_a_life(tmp_path / "whole")
    assert await everywhere(tmp_path, one, calls.index("put")) > len(calls) - 5


@pytest.mark.feature("T07", "T15")
@pytest.mark.parametrize("carried_out", [False, True], ids=["lost on the way", "answer lost"])
async def test_a_retry_recovers_from_one_failed_call_to_a_store(
    tmp_path: Path, light: None, carried_out: bool
) -> None:
    async def one(world: World, number: int) -> bool:
        broker = await world.broker(**SETTINGS)
        await write(broker)
        broker.use_steps().lose = {number: carried_out}
        failures = 0
        for step in [broker.tier, *life(broker)]:
            try:
                await step()
            except (MetadataUnavailable, StoreUnavailable):
                failures += 1
                await step()
        broker.use_steps()
        tier = broker.tiers[TOPIC]
        assert await tier.manifest.sessions() == []
        await verify(world, tier, {0: LIVE})
        return failures == 1

    calls = await calls_of_a_life(tmp_path / "whole")
    assert await everywhere(tmp_path, one) > len(calls) - 5


@pytest.mark.feature("T17", "T26")
async def test_an_owner_that_is_deposed_at_any_call_changes_nothing_from_then_on(
    tmp_path: Path, light: None
) -> None:
    async def one(world: World, number: int) -> bool:
        broker, other = await world.broker(**SETTINGS), await world.broker(name="b2", **SETTINGS)
        await write(broker)
        await broker.tier()
        steps = broker.use_steps()
        deposing: list[asyncio.Task[dict[str, bytes]]] = []

        async def depose() -> dict[str, bytes]:
            await world.depose()
            await other.tier()
            return await world.raw_metadata()

        async def at_call(name: str, key: str) -> None:
            if len(steps.names) == number + 1:
                deposing.append(asyncio.create_task(depose()))
            if deposing:
                await asyncio.shield(deposing[0])

        steps.wait = at_call
        # Its successor may have removed what it had put and not committed.
        with suppress(Deposed, ObjectRowsDamaged):
            for step in life(broker):
                await step()
        if not deposing:
            return False
        after = await deposing[0]
        await fill(broker.tiers[TOPIC].log, 5)
        with pytest.raises(Deposed):
            await broker.tiers.flush(TOPIC)
        assert await world.raw_metadata() == after
        tier = other.tiers[TOPIC]
        _, entries = await world.manifest()
        end = max((entry.end_offset + 1 for entry in entries), default=0)
        deleted = tier.log.state.bitmap(P0) or ()
        uploaded = [n for n in range(end) if n not in deleted]
        await verify(world, tier, {0: uploaded})
        first = tier.log.next_offset(P0)
        await fill(tier.log, 10)
        for step in life(other):
            await step()
        await verify(world, tier, {0: [*uploaded, *range(first, first + 10)]})
        return True

    calls = await calls_of_a_life(tmp_path / "whole")
    opening = calls.index("put") - 1
    assert await everywhere(tmp_path, one) > len(calls) - opening - 5
