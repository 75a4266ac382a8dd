"""The jobs of a channel over a real log: creation, storage, restoration and failures."""

from __future__ import annotations

import pytest

from penstock.delivery.channels.entities import Endpoint
from penstock.delivery.channels.jobs import SNAPSHOT_BYTES_MIN, ChannelJobs
from penstock.delivery.channels.store import JobFloors
from penstock.ledger.job_states import JobRules, JobState, offset_of
from penstock.ledger.jobs import JobLedger
from penstock.model.errors import LogReadOnly
from penstock.model.run import Run
from penstock.model.units import PartitionId
from penstock.topics import OpenTopic
from tests.broker.storage import World
from tests.broker.topics import SPEC, Served, push, serve
from tests.eventually import eventually

P0 = PartitionId(0)
RULES = JobRules(2, 3_000_000)
URGENT = b"NATS/1.0\r\nX-Broker-Message-Priority: 5\r\n\r\n"


def endpoint(number: int = 1, start: int = 0, topic: str = "") -> Endpoint:
    named = ("c", f"k{number}", "k", "t", "http://a/", "pull")
    return Endpoint(*named, number, topic, start, [], 0, 0)


class Lab:
    """The jobs of a channel, and the endpoints that were reported as ready."""

    def __init__(
        self, served: Served, opened: OpenTopic, snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN
    ) -> None:
        self.opened, self.ready = opened, list[int]()
        host, clock = served.host, served.broker.world.clock
        self.floors = JobFloors(host.metadata, host.keys, host.ownership.guard)
        self.jobs = ChannelJobs(opened, RULES, clock, self.floors, snapshot_bytes_min)
        self.jobs.watch(self.ready.append)

    async def begin(self, *endpoints: Endpoint) -> ChannelJobs:
        await self.jobs.open(endpoints or [endpoint()])
        return self.jobs

    @property
    def ledger(self) -> JobLedger:
        return self.jobs.ledgers[1]

    def queued(self) -> list[int]:
        return list(map(offset_of, self.ledger.queued_keys(1000)))


async def again(world: World, served: Served) -> tuple[Served, Lab]:
    """The same topic after a crash."""
    restarted = await serve(world, await served.crash())
    return restarted, Lab(restarted, restarted.topics.get(SPEC.name))


async def test_jobs_follow_commits(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, b"a", b"b")
    await lab.opened.log.append(Run(b"s", [b"c"], [URGENT]))

    async def all_created() -> bool:
        return jobs.head == 3

    await eventually(all_created)
    assert lab.queued() == [2, 0, 1]
    assert lab.ready
    assert (await jobs.message(1)) is not None
    assert await jobs.message(99) is None
    await jobs.close()


async def test_deleted_messages_have_no_job(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    await push(lab.opened, *(b"%d" % n for n in range(6)))
    await lab.opened.log.delete(P0, [2, 5])
    await lab.opened.log.purge(P0, 1)  # type: ignore[arg-type]
    jobs = await lab.begin()
    assert lab.queued() == [1, 3, 4]
    assert jobs.head == 6
    await jobs.close()


@pytest.mark.feature("C15")
@pytest.mark.parametrize("clean", [False, True])
async def test_jobs_are_restored_after_a_crash(world: World, clean: bool) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, *(b"%d" % n for n in range(5)))
    await lab.opened.log.append(Run(b"s", [b"c"], [URGENT]))
    await jobs.catch_up()
    now = world.clock.now_us()
    for offset, states in (
        (0, ["INFLIGHT"]),
        (1, ["INFLIGHT", "DELIVERED"]),
        (2, ["INFLIGHT", "DEAD"]),
    ):
        for state in states:
            change = lab.ledger.change_state(offset, state, 0, None, now)
            await jobs.store(change)  # type: ignore[arg-type]
    assert lab.ledger.take(world.clock.now_us()) == 5
    before = [lab.ledger.facts(offset) for offset in range(5)]
    if clean:
        await jobs.close()
    else:
        jobs.stop()
    _, lab = await again(world, served)
    jobs = await lab.begin()
    assert [lab.ledger.facts(offset) for offset in range(5)] == before
    assert lab.queued() == [5, 3, 4]
    assert lab.ledger.counts()[JobState.DELIVERED] == 1
    await jobs.close()


@pytest.mark.feature("C15")
async def test_a_restart_reads_the_last_snapshot_and_the_entries_after_it(
    world: World,
) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create(), snapshot_bytes_min=1)
    jobs = await lab.begin()
    await push(lab.opened, *(b"%d" % n for n in range(50)))
    await jobs.catch_up()
    now = world.clock.now_us()
    for offset in range(40):
        await jobs.store(lab.ledger.change_state(offset, "INFLIGHT", 0, None, now))  # type: ignore[arg-type]
    floor = lab.opened.log.state.settle_floor
    assert floor is not None
    assert floor > 1
    await push(lab.opened, b"new")
    await jobs.catch_up()
    await jobs.store(lab.ledger.change_state(50, "INFLIGHT", 0, None, now))  # type: ignore[arg-type]
    jobs.stop()
    _, lab = await again(world, served)
    await lab.begin()
    assert lab.queued() == list(range(40, 50))
    assert lab.ledger.counts()[JobState.INFLIGHT] == 41
    await lab.jobs.close()


@pytest.mark.feature("C08")
async def test_a_change_that_the_log_refuses_is_reverted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, b"a", b"b")
    await jobs.catch_up()
    now = world.clock.now_us()
    await jobs.store(lab.ledger.change_state(1, "INFLIGHT", 0, None, now))  # type: ignore[arg-type]

    def refuse(body: bytes, count: int) -> None:
        raise LogReadOnly("c", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(jobs.opened.log, "settle", refuse)
        with pytest.raises(LogReadOnly):
            await jobs.store(lab.ledger.change_state(0, "INFLIGHT", 0, None, now))  # type: ignore[arg-type]

        async def reverted() -> bool:
            await jobs.catch_up()
            return lab.queued() == [0]

        await eventually(reverted)
    facts = lab.ledger.facts(1)
    assert facts is not None
    assert facts.state is JobState.INFLIGHT
    await jobs.close()


async def test_waiting_for_durability_covers_all_earlier_changes(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, b"a")
    await jobs.catch_up()
    written = jobs.store(lab.ledger.change_state(0, "INFLIGHT", 0, None, world.clock.now_us()))  # type: ignore[arg-type]
    await jobs.durable()
    assert written.done()
    await jobs.close()


@pytest.mark.feature("C04")
async def test_a_new_endpoint_has_jobs_from_its_start_offset_on(
    world: World,
) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    unique = lab.opened.topic.unique
    jobs = await lab.begin(endpoint(1, 0, unique))
    await push(lab.opened, b"a", b"b", b"c")
    await jobs.catch_up()
    jobs.add(endpoint(2, 1, unique))
    await jobs.catch_up()
    assert list(map(offset_of, jobs.ledgers[2].queued_keys(9))) == [1, 2]
    assert lab.queued() == [0, 1, 2]
    jobs.remove(1)
    assert list(jobs.ledgers) == [2]
    await jobs.close()


async def test_the_start_offset_in_an_earlier_topic_is_ignored(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    await push(lab.opened, b"a")
    jobs = await lab.begin(endpoint(1, 50, "an earlier topic"))
    assert lab.queued() == [0]
    await jobs.close()


@pytest.mark.feature("C10")
async def test_a_job_in_flight_times_out(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, b"a")
    await jobs.catch_up()
    lab.ready.clear()
    await jobs.store(lab.ledger.change_state(0, "INFLIGHT", 0, None, world.clock.now_us()))  # type: ignore[arg-type]
    world.clock.us += RULES.timeout_us + 1
    jobs.tick()
    assert lab.queued() == [0]
    assert lab.ready == [1]
    await jobs.close()


@pytest.mark.feature("C15")
async def test_without_its_disk_a_channel_continues_from_its_floors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, *(b"%d" % n for n in range(6)))
    await jobs.catch_up()
    now = world.clock.now_us()
    for offset in (0, 1, 2, 4):
        for state in ("INFLIGHT", "DELIVERED"):
            await jobs.store(lab.ledger.change_state(offset, state, 0, None, now))  # type: ignore[arg-type]
    await jobs.close()
    assert await lab.floors.load(SPEC.name) == {1: 3}

    async def nothing(kind: str) -> list[object]:
        return []

    monkeypatch.setattr(lab.opened.log.settlements, "read", nothing)
    later = Lab(served, lab.opened)
    await later.begin()
    assert later.queued() == [3, 4, 5]
    await later.jobs.close()


@pytest.mark.feature("C05")
async def test_no_endpoint_is_ready_while_the_log_is_not_writable(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, b"a")
    await jobs.catch_up()
    lab.ready.clear()
    lab.opened.log.refusal = "another broker owns the topic now"
    assert not jobs.writable
    jobs.tick()
    assert lab.ready == []
    lab.opened.log.refusal = ""
    jobs.tick()
    assert lab.ready == [1]
    await jobs.close()


async def test_a_clock_jump_ends_jobs_in_flight(world: World) -> None:
    served = await serve(world)
    lab = Lab(served, await served.create())
    jobs = await lab.begin()
    await push(lab.opened, b"a")
    await jobs.catch_up()
    await jobs.store(lab.ledger.change_state(0, "INFLIGHT", 3600, None, world.clock.now_us()))  # type: ignore[arg-type]
    assert lab.queued() == []
    world.clock.us += 10_000_000_000

    async def queued() -> bool:
        return lab.queued() == [0]

    await eventually(queued)
    await jobs.close()
