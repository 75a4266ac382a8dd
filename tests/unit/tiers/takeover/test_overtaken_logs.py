"""WALs that another broker has overtaken are proposed to the owner, and removed with their gap."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from penstock.metadata import DeleteKeys
from penstock.objects import StoreUnavailable
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest.entries import ReturnedObject
from penstock.tiers.takeover.overtaken_logs import PROPOSED_FILE
from tests.broker.storage import KEYS, P0, TOPIC, Broker, World, fill, stage_fill, started, verify
from tests.unit.tiers.takeover.test_gap_filling import overtake, reopen, return_to, returning


async def objects(world: World, lineage: str) -> list[ReturnedObject]:
    page = await world.metadata.range(KEYS.returned_log(TOPIC, lineage))
    found = [e.value for e in page.entries if not e.key.endswith("complete")]
    return [forms.decode_returned_object(value) for value in found]


async def taken_over(world: World, broker: Broker) -> Broker:
    await world.depose()
    second = await world.broker(name="b2")
    await second.tier()
    return second


async def gone(directory_of: Broker) -> None:
    async with asyncio.timeout(20):
        while [*directory_of.directory.glob("default/default/*.overtaken-*")]:
            await asyncio.sleep(0.001)


@pytest.mark.feature("T26")
async def test_only_messages_that_were_not_uploaded_are_proposed(world: World) -> None:
    first, _ = await overtake(world)
    lineage = await return_to(world, first)
    spans = [span for one in await objects(world, lineage) for span in one.entry.ranges]
    assert [(span.first, span.next) for span in spans] == [(20, 25)]


@pytest.mark.feature("T26")
async def test_the_wal_is_removed_once_its_gap_is_closed_and_not_before(world: World) -> None:
    first, second = await overtake(world)
    lineage = await return_to(world, first)
    [aside] = first.directory.glob("default/default/*.overtaken-*")
    assert (aside / PROPOSED_FILE).exists()
    await reopen(second)
    async with returning(first) as logs:
        logs.add(TOPIC, aside)
        await gone(first)
    assert await objects(world, lineage) == []


@pytest.mark.feature("T26")
async def test_a_wal_without_messages_to_return_also_closes_its_gap(world: World) -> None:
    first, tier = await started(world)
    await fill(tier.log, 20)
    await first.tiers.flush(TOPIC)
    second = await taken_over(world, first)
    lineage = await return_to(world, first)
    assert await objects(world, lineage) == []
    assert (await reopen(second)).manifest.head.gaps == []


@pytest.mark.feature("T26")
async def test_a_wal_without_a_recorded_gap_is_left_as_it_is(world: World) -> None:
    first, _ = await overtake(world)
    [directory] = first.directory.glob("default/default/*")
    aside = directory.with_name("t.overtaken-7")
    shutil.copytree(directory, aside)
    async with returning(first) as logs:
        logs.add(TOPIC, aside)
        async with asyncio.timeout(20):
            while logs.pending:
                await asyncio.sleep(0.001)
    assert [*aside.glob("*.log")]
    assert not (await world.metadata.range(KEYS.all_returned())).entries


@pytest.mark.feature("T26")
async def test_an_old_copy_of_a_wal_does_not_close_the_gap(world: World) -> None:
    first, tier = await started(world)
    await fill(tier.log, 5)
    await tier.log.writer.flush()
    old = world.new_directory("old")
    shutil.copytree(first.directory, old, dirs_exist_ok=True)
    await fill(tier.log, 20)
    await first.tiers.flush(TOPIC)
    lineage = tier.log.state.lineage
    second = await taken_over(world, first)
    [directory] = old.glob("default/default/*")
    aside = directory.with_name(f"t.overtaken-{lineage}")
    directory.rename(aside)
    async with returning(first) as logs:
        logs.add(TOPIC, aside)
        async with asyncio.timeout(20):
            while logs.pending:
                await asyncio.sleep(0.001)
    assert [gap.lineage for gap in second.tiers[TOPIC].manifest.head.gaps] == [lineage]
    assert [*aside.glob("*.log")]


@pytest.mark.feature("T26")
async def test_a_store_that_fails_for_a_while_delays_the_return(world: World) -> None:
    first, second = await overtake(world)
    failures = 5

    def fail(name: str, key: str) -> Exception | None:
        nonlocal failures
        if name == "put" and failures:
            failures -= 1
            return StoreUnavailable(key, "out, says the test")
        return None

    first.use_steps().fail = fail
    await return_to(world, first)
    assert not failures
    tier = await reopen(second)
    assert tier.log.live_count(P0) == 35


@pytest.mark.feature("T26")
async def test_a_refused_proposal_is_repeated_with_growing_delays(world: World) -> None:
    first, _ = await overtake(world)
    log = first.logs.get(TOPIC)
    assert log is not None
    proposal = KEYS.returned_log(TOPIC, log.state.lineage)
    pauses: list[float] = []
    objects: list[int] = []
    done = asyncio.Event()

    async def refuse(seconds: float) -> None:
        pauses.append(seconds)
        objects.append(sum("/data-" in key for key in await world.keys()))
        if len(pauses) == 12:
            done.set()
            await asyncio.Event().wait()
        await world.metadata.transaction([], [DeleteKeys(proposal, prefix=True)])

    async with returning(first, retry_seconds=1, pause=refuse):
        assert await first.tiers.is_settled_elsewhere(TOPIC)
        async with asyncio.timeout(60):
            await done.wait()
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256]
    assert objects == list(range(objects[0], objects[0] + 12)), "one object for each proposal"


@pytest.mark.feature("T26", "S03")
async def test_links_of_a_returning_wal_come_back_unless_they_were_made_again(world: World) -> None:
    first, tier = await started(world)
    await fill(tier.log, 5)
    await first.tiers.flush(TOPIC)
    refs = [await stage_fill(world, 5, 3), await stage_fill(world, 1000, 3)]
    for number, ref in enumerate(refs):
        await tier.link("app", number, {P0: [ref]})
    second = await taken_over(world, first)
    again = second.tiers[TOPIC]
    assert await again.link("app", 1, {P0: [refs[1]]})
    await second.tiers.flush(TOPIC)
    await return_to(world, first)
    tier = await reopen(second)
    offsets = {entry.object_id: entry.start_offset for entry in tier.manifest.index if entry.linked}
    assert offsets == {refs[0].key: 5, refs[1].key: 1000}
    await verify(world, tier, {0: [*range(8), 1000, 1001, 1002]})
