"""The law of readers: from any offset, every live message once and in order, whatever is going on
in the tiers meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.model.batch import Batch
from penstock.model.errors import OffsetGone
from penstock.model.retention import TopicRetention
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from penstock.tiers.topic_tier import TopicTier
from tests.broker.storage import (
    TOPIC,
    Broker,
    World,
    fill,
    filled,
    indexed,
    link_fill,
    nothing_uncaught,
    payload,
    read_all,
    rows_of,
    verify,
)
from tests.log_reader import LogReader
from tests.unit.log.messages import eventually

PARTITIONS: Final = (0, 1)
SETTINGS: Final[dict[str, Any]] = {
    "batch_bytes_max": 900,
    "merge_objects_min": 3,
    "object_bytes_max": 12_000,
    "trash_seconds": 0,
    "reserve_offsets": 3000,
}


class Model:
    """The expected messages."""

    def __init__(self) -> None:
        self.nexts = dict.fromkeys(PARTITIONS, 0)
        self.dead: dict[int, set[int]] = {p: set() for p in PARTITIONS}

    def live(self, partition: int, start: int = 0) -> list[int]:
        dead = self.dead[partition]
        return [n for n in range(start, self.nexts[partition]) if n not in dead]

    def keep_newest(self, partition: int, count: int) -> None:
        live = self.live(partition)
        if len(live) > count:
            self.dead[partition] |= set(range(live[-count]))


class Follower:
    """A reader that continues at its offset after every restart."""

    def __init__(self, model: Model, partition: int, start: int, bytes_max: int) -> None:
        self._model, self.partition, self._bytes_max = model, partition, bytes_max
        self.start = self.position = start
        self.got: list[int] = []
        self.task: asyncio.Task[None] | None = None

    def begin(self, tier: TopicTier) -> None:
        self.task = asyncio.create_task(self._follow(tier))

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()

    @property
    def done(self) -> bool:
        """Whether it has read everything; raises its error."""
        if self.task is not None and self.task.done():
            self.task.result()
        return not self._model.live(self.partition, self.position)

    async def _follow(self, tier: TopicTier) -> None:
        reader = LogReader(
            tier.log, PartitionId(self.partition), Offset(self.position), self._bytes_max, tier.read
        )
        while True:
            try:
                self._take(await anext(reader))
            except OffsetGone as gone:
                reader.next_offset = gone.earliest
            self.position = reader.next_offset

    def _take(self, batch: Batch) -> None:
        for offset, content in rows_of(batch):
            assert content == payload(offset, self.partition)
            assert offset not in self._model.dead[self.partition], "deleted, and delivered after"
            assert offset >= (self.got[-1] + 1 if self.got else self.start)
            self.got.append(offset)

    def check(self) -> None:
        """Every message that was not deleted was seen."""
        missed = set(self._model.live(self.partition, self.start)) - set(self.got)
        assert not missed


class Life:
    """A topic that is written, uploaded, merged and moved, and its readers."""

    def __init__(self, world: World, limits: TopicRetention) -> None:
        self.world, self._limits = world, limits
        self.model = Model()
        self.followers: list[Follower] = []
        self._epoch = 0
        self.broker: Broker
        self.tier: TopicTier

    async def begin(self, broker: Broker) -> None:
        self.broker = broker
        self.tier = await broker.tier(limits=self._limits)
        broker.store.steps.wait = _yield
        for follower in self.followers:
            follower.begin(self.tier)

    async def append(self, partition: int, count: int) -> None:
        await fill(self.tier.log, count, partition)
        self.model.nexts[partition] += count

    async def link(self, rows: dict[int, list[int]]) -> None:
        self._epoch += 1
        await link_fill(self.world, self.tier, self._epoch, rows)
        for partition, counts in rows.items():
            self.model.nexts[partition] += sum(counts)

    async def delete(self, partition: int, places: list[float]) -> None:
        next_ = self.model.nexts[partition]
        offsets = {int(place * next_) for place in places if next_}
        await self.tier.log.delete(PartitionId(partition), offsets)
        self.model.dead[partition] |= offsets

    async def purge(self, partition: int, place: float) -> None:
        start = int(place * self.model.nexts[partition])
        await self.tier.log.purge(PartitionId(partition), Offset(start))
        self.model.dead[partition] |= set(range(start))

    async def follow(self, partition: int, place: float, bytes_max: int) -> None:
        start = int(place * self.model.nexts[partition])
        self.followers.append(Follower(self.model, partition, start, bytes_max))
        self.followers[-1].begin(self.tier)

    async def round(self) -> None:
        await self.tier.upload_round()

    async def upload(self) -> None:
        await self.broker.tiers.flush(TOPIC)

    async def upkeep(self) -> None:
        await self.broker.tiers.upkeep(TOPIC)
        if self._limits.max_messages is not None:
            for partition in PARTITIONS:
                self.model.keep_newest(partition, self._limits.max_messages)

    async def rotate(self) -> None:
        self.tier.log.rotate()
        await asyncio.sleep(0)

    async def evict(self) -> None:
        self.tier.log._tail.clear()

    async def crash(self) -> None:
        await self._end_readers()
        await self._begin_again(await self.broker.crash())

    async def restart(self) -> None:
        await self._end_readers()
        await self.broker.stop()
        await self._begin_again(self.broker.directory)

    async def take_over(self) -> None:
        """Another broker continues from the bucket; a gap records the offsets that it skips."""
        await self.upload()
        await self._end_readers()
        await self.broker.drop()
        await self.world.depose()
        await self.begin(await self.world.broker(name=f"b{self.broker.name}", **SETTINGS))
        for partition in PARTITIONS:
            first, next_ = (
                self.model.nexts[partition],
                self.tier.log.next_offset(PartitionId(partition)),
            )
            self.model.dead[partition] |= set(range(first, next_))
            self.model.nexts[partition] = next_

    async def finish(self) -> None:
        """Check that running readers have read all messages, and that new ones do."""
        await eventually(lambda: all(follower.done for follower in self.followers))
        await self._end_readers()
        for follower in self.followers:
            follower.check()
        self.broker.store.steps.wait = None
        await verify(self.world, self.tier, {p: self.model.live(p) for p in PARTITIONS})
        for partition in PARTITIONS:
            starts = [*self.model.live(partition)[::17], self.model.nexts[partition]]
            for start in starts:
                found = await read_all(self.tier, start, partition)
                assert found == filled(self.model.live(partition, start), partition)

    async def _begin_again(self, directory: Path) -> None:
        await self.begin(await self.world.broker(directory, self.broker.name, **SETTINGS))

    async def _end_readers(self) -> None:
        for follower in self.followers:
            await follower.end()


async def _yield(name: str, key: str) -> None:
    await asyncio.sleep(0)


Action = Callable[[Life], Awaitable[None]]

_partitions = st.sampled_from(PARTITIONS)
_places = st.floats(0, 1, exclude_max=True)
_actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(lambda p, n: lambda life: life.append(p, n), _partitions, st.integers(1, 40)),
    st.builds(lambda p, n: lambda life: life.append(p, n), _partitions, st.integers(20, 60)),
    st.builds(
        lambda rows: lambda life: life.link(rows),
        st.dictionaries(_partitions, st.lists(st.integers(0, 12), max_size=3), min_size=1),
    ),
    st.builds(
        lambda p, places: lambda life: life.delete(p, places),
        _partitions,
        st.lists(_places, min_size=1, max_size=5),
    ),
    st.builds(lambda p, place: lambda life: life.purge(p, place), _partitions, _places),
    st.builds(
        lambda p, place, size: lambda life: life.follow(p, place, size),
        _partitions,
        _places,
        st.sampled_from([1, 500, 1 << 20]),
    ),
    *(
        st.just(action)
        for action in (
            *(Life.round, Life.upload, Life.upkeep, Life.upkeep),
            *(Life.rotate, Life.evict, Life.crash, Life.restart, Life.take_over),
        )
    ),
)


@pytest.mark.feature("T09", "T10", "T26", "T35")
@settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_actions, min_size=5, max_size=30), st.sampled_from([None, 70]))
def test_every_live_message_is_read_once_and_in_order_from_any_offset(
    tmp_path_factory: pytest.TempPathFactory,
    light: None,
    actions: list[Action],
    messages_max: int | None,
) -> None:
    async def run() -> None:
        async with nothing_uncaught():
            world = World(tmp_path_factory.mktemp("life"))
            world.log_settings = replace(world.log_settings, file_bytes_max=2000)
            await world.open()
            life = Life(world, TopicRetention(max_messages=messages_max))
            await life.begin(await world.broker(**SETTINGS))
            await life.follow(0, 0.0, 300)
            for action in actions:
                await action(life)
            await life.finish()
            await world.close()

    asyncio.run(run())


@pytest.mark.feature("T09", "T10", "T11")
async def test_readers_get_every_message_once_while_all_jobs_run(
    world: World,
) -> None:
    world.log_settings = replace(world.log_settings, file_bytes_max=4000)
    chance = random.Random(7)
    life = Life(world, TopicRetention())
    await life.begin(await world.broker(interval_seconds=0.002, upkeep_seconds=0.005, **SETTINGS))
    await life.broker.tiers.start()
    for partition in PARTITIONS:
        await life.follow(partition, 0.0, 200)
    for step in range(150):
        await life.append(chance.choice(PARTITIONS), chance.randrange(1, 25))
        if step % 3 == 0:
            await life.delete(chance.choice(PARTITIONS), [chance.random() for _ in range(3)])
        if step % 12 == 4:
            await life.link({p: [chance.randrange(1, 9)] for p in PARTITIONS})
        if step % 20 == 10:
            await life.purge(chance.choice(PARTITIONS), chance.random() * 0.3)
        if step % 10 == 5:
            await life.follow(chance.choice(PARTITIONS), chance.random(), 1 << chance.randrange(20))
        if step % 7 == 0:
            await life.evict()
            await asyncio.sleep(0.005)
    await eventually(lambda: life.broker.tiers.lag_bytes(TOPIC) == 0)
    await eventually(lambda: life.broker.counters.merges > 2)
    await eventually(lambda: life.tier.log.files.start(PartitionId(0)) > 0)
    await life.broker.tiers.close()
    await life.finish()
    assert len(life.followers) > 10


@pytest.mark.feature("T11")
async def test_a_lagging_reader_does_not_delay_a_reader_at_the_head(world: World) -> None:
    life = Life(world, TopicRetention())
    await life.begin(await world.broker(**SETTINGS))
    await life.append(0, 300)
    await life.upload()
    await indexed(life.tier.log)
    await life.upkeep()
    never = asyncio.Event()

    async def stuck(name: str, key: str) -> None:
        if name in ("get", "head"):
            await never.wait()

    await life.evict()
    life.broker.store.steps.wait = stuck
    await life.follow(0, 0.0, 1)
    await asyncio.sleep(0.01)
    behind = life.followers[0]
    await life.follow(0, 0.999, 1)
    await life.append(0, 50)
    head = life.followers[1]
    await eventually(lambda: head.done)
    assert behind.got == []
    never.set()
    life.broker.store.steps.wait = None
    await life.finish()


async def test_a_reader_waits_at_the_head_for_new_messages(world: World) -> None:
    life = Life(world, TopicRetention())
    await life.begin(await world.broker(**SETTINGS))
    await life.follow(0, 0.0, 100)
    for _ in range(5):
        await life.append(0, 3)
        await eventually(lambda: life.followers[0].done)
    await life.tier.log.append(Run(b"s", [payload(15)]))
    life.model.nexts[0] += 1
    await life.finish()
