"""Appends to an open topic: reservations, admissions, queue policy, and closing."""

from dataclasses import replace

import pytest

from penstock.log import LogObserver
from penstock.log.settings import WhenFull
from penstock.model.errors import AppendQueueFull, RunInvalid
from penstock.model.resources import Durability
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.units import Offset
from tests.broker.storage import World
from tests.broker.topics import P0, serve, spec


async def test_more_offsets_than_usual_are_reserved_on_request(world: World) -> None:
    opened = await (await serve(world, reserve_offsets=100)).create()
    assert opened.partition(P0).has_reserved(50)
    assert not opened.partition(P0).has_reserved(5000)
    await opened.partition(P0).reserve(5000)
    assert opened.partition(P0).has_reserved(5000)


async def test_a_topic_in_memory_has_all_offsets(world: World) -> None:
    opened = await (await serve(world)).create(spec("m", durability=Durability.MEMORY))
    assert opened.partition(P0).has_reserved(1 << 40)
    await opened.partition(P0).reserve(1 << 40)


async def test_waiting_readers_are_woken_when_a_topic_closes(world: World) -> None:
    opened = await (await serve(world)).create()
    with opened.log.waiters.arrival(P0) as arrival:
        opened.stop()
        assert arrival.done()


async def test_a_run_that_a_rule_does_not_admit_changes_nothing(world: World) -> None:
    opened = await (await serve(world)).create()
    partition, first_offsets = opened.partition(P0), list[int]()

    class Recorder(LogObserver):
        def appended(self, run: Run | ColumnRun, first_offset: Offset) -> None:
            first_offsets.append(first_offset)

    def refuse(run: Run | ColumnRun, origin: Origin) -> None:
        raise RunInvalid("not here")

    opened.observe(Recorder())
    cancel = opened.add_admission(refuse)
    with pytest.raises(RunInvalid):
        partition.append(Run(b"s", [b"0"]))
    cancel()
    await partition.append(Run(b"s", [b"0"]))
    assert (first_offsets, partition.next_offset) == ([0], 1)


async def test_the_rule_that_was_added_last_is_applied_first(world: World) -> None:
    opened = await (await serve(world)).create()
    rules = list[int]()
    opened.add_admission(lambda run, origin: rules.append(1))
    opened.add_admission(lambda run, origin: rules.append(2))
    await opened.partition(P0).append(Run(b"s", [b"0"]))
    assert rules == [2, 1]


@pytest.mark.feature("T31")
@pytest.mark.parametrize("when_full", WhenFull)
async def test_several_runs_are_published_together_or_not_at_all(
    world: World, when_full: WhenFull
) -> None:
    world.log_settings = replace(world.log_settings, pending_bytes_max=1000, when_full=when_full)
    partition = (await (await serve(world)).create()).partition(P0)
    first = partition.append(Run(b"s", [b"x" * 900]))
    runs = [Run(b"s", [b"x" * 300]), Run(b"s", [b"y" * 300])]
    if when_full is WhenFull.WAIT:
        offsets = await partition.publish(*runs)
        assert (offsets.first, offsets.next) == (1, 3)
    else:
        with pytest.raises(AppendQueueFull):
            await partition.publish(*runs)
        await first
        assert partition.next_offset == 1


async def test_a_closed_topic_notifies_no_observer(world: World) -> None:
    opened = await (await serve(world)).create()
    commits = list[set[int]]()

    class Recorder(LogObserver):
        def committed(self, partitions: set[int]) -> None:
            commits.append(partitions)

    opened.observe(Recorder())
    await opened.partition(P0).append(Run(b"s", [b"0"]))
    opened.stop()
    await opened.log.append(Run(b"s", [b"1"]))
    assert commits == [{0}]
