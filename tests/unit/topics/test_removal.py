from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.formats.objects import topic_prefix
from penstock.host.disk import Disk
from penstock.metadata import MetadataUnavailable
from penstock.metadata.ownership import NotOwner
from penstock.model import names
from penstock.model.errors import (
    LogClosed,
    LogError,
    PenstockError,
    ResourceInUse,
    ResourceUnknown,
)
from penstock.model.resources import Durability, TopicSpec
from penstock.model.units import Offset, PartitionRange
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest.entries import UploadSession
from penstock.topics import Fetcher, FetchState, OpenTopic
from tests.broker.storage import KEYS, TOPIC, World, entry, fill, filled, link_fill
from tests.broker.topics import (
    BY_REGION,
    P0,
    SPEC,
    Served,
    left_of,
    payloads,
    push,
    region,
    serve,
    spec,
)
from tests.faults import Crashed
from tests.unit.log.messages import eventually

pytestmark = pytest.mark.feature("F27")

NOTHING: tuple[list[str], list[str], list[str]] = ([], [], [])


async def populated(world: World, served: Served) -> None:
    """A topic with something of everything: files, objects, trash, sessions, subscriptions."""
    opened = await served.create()
    await fill(opened.log, 60)
    await served.broker.tiers.flush(TOPIC)
    assert opened.tier is not None
    await link_fill(world, opened.tier, 1, {0: [5, 5]})
    await served.broker.tiers.flush(TOPIC)
    await opened.tier.remove_entries(list(opened.tier.manifest.index)[:1])
    await fill(opened.log, 20)
    await served.broker.tiers.upkeep(TOPIC)
    session = UploadSession("elsewhere", None, 0, 0, entry(PartitionRange(0, 0, 1)))
    await world.metadata.put(f"{KEYS.upload_session(TOPIC)}/7", forms.encode_record(session))
    await world.metadata.put(KEYS.progress(TOPIC, "sub"), b"?")
    await world.metadata.put(KEYS.partition(TOPIC, 3), b"?")


async def assert_gone_from(world: World, served: Served) -> None:
    """The topic is deleted on this disk; the directory of a crashed broker still has its files."""
    keys, objects, _ = await left_of(world)
    assert (keys, objects) == ([], [])
    assert list(served.broker.directory.glob("*/*/*")) == []


async def assert_gone(world: World, served: Served) -> None:
    with pytest.raises(ResourceUnknown):
        served.topics.get(TOPIC)
    assert await left_of(world) == NOTHING


async def test_a_deleted_topic_leaves_nothing(world: World) -> None:
    served = await serve(world)
    await populated(world, served)
    keys, objects, files = await left_of(world)
    assert len(keys) > 6
    assert any(not key.startswith(topic_prefix(TOPIC)) for key in objects)
    assert files
    await served.topics.delete_topic(TOPIC)
    await assert_gone(world, served)


async def test_a_topic_created_again_has_nothing_of_the_deleted_one(world: World) -> None:
    served = await serve(world)
    for life in range(3):
        opened = await served.create()
        assert await payloads(served.source, opened.topic) == []
        for offset in range(3):
            assert await push(opened, b"%d" % life) == offset
        await served.broker.tiers.flush(TOPIC)
        if life == 1:
            served = await serve(world, await served.crash())
        await served.topics.delete_topic(TOPIC)


@pytest.mark.feature("F26")
async def test_a_partitioned_topic_created_again_has_no_partition(world: World) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    await push(opened, b"x", value=region("eu"))
    await served.topics.delete_topic(BY_REGION.name)
    with pytest.raises(LogClosed):
        await push(opened, b"x", value=region("us"))
    opened = await served.create(BY_REGION)
    assert list(opened.partitions) == []
    assert await push(opened, b"x", value=region("us")) == 0


@pytest.mark.feature("F26")
async def test_no_partition_is_created_in_a_topic_that_is_being_deleted(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    catalog, ownership = served.admin, served.broker.ownership
    stored = await catalog.find_topic(BY_REGION.name)
    assert stored is not None
    await catalog.begin_deletion(stored, ownership.guard(BY_REGION.name))
    with pytest.raises(NotOwner):
        await opened.partitions.ensure([region("eu")])
    assert (await world.metadata.range(KEYS.partitions(BY_REGION.name))).entries == []


async def test_neighbours_keep_everything(world: World) -> None:
    served = await serve(world)
    await populated(world, served)
    near = [spec(name) for name in ("t-2", "t2", "T", "tt", "t%2e")]
    for one in near:
        opened = await served.create(one)
        await fill(opened.log, 20)
        await served.broker.tiers.flush(one.name)
    await served.topics.delete_topic(TOPIC)
    served = await serve(world, await served.crash())
    for one in near:
        assert await payloads(served.source, served.topics.get(one.name).topic) == filled(range(20))


# -- faults


async def steps_of_a_deletion(world: World) -> int:
    served = await serve(world)
    await populated(world, served)
    steps = served.broker.use_steps()
    await served.topics.delete_topic(TOPIC)
    await served.broker.stop()
    return len(steps.names)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_deletion_cut_off_at_any_call_is_finished_at_the_next_start(
    world: World, after: bool
) -> None:
    count = await steps_of_a_deletion(world)
    finished = 0
    for step in range(count):
        served = await serve(world)
        await populated(world, served)
        steps = served.broker.use_steps()
        if after:
            steps.crash_after = step
        else:
            steps.crash_before = step
        with suppress(Crashed, LogError):
            await served.topics.delete_topic(TOPIC)
        served = await serve(world, await served.crash())
        if len(served.topics):
            await served.topics.delete_topic(TOPIC)
        else:
            finished += 1
        await assert_gone_from(world, served)
        await served.broker.stop()
    assert finished > count - 8


@pytest.mark.parametrize("answered", [False, True], ids=["not done", "answer lost"])
async def test_a_deletion_that_fails_at_any_call_is_finished_by_deleting_again(
    world: World, answered: bool
) -> None:
    count = await steps_of_a_deletion(world)
    served = await serve(world)
    for step in range(count):
        await populated(world, served)
        steps = served.broker.use_steps()
        steps.lose[step] = answered
        with suppress(PenstockError):
            await served.topics.delete_topic(TOPIC)
        with suppress(ResourceUnknown):
            await served.topics.delete_topic(TOPIC)
        await assert_gone(world, served)


async def test_the_name_of_a_topic_is_in_use_until_its_deletion_is_complete(world: World) -> None:
    served = await serve(world)
    await populated(world, served)
    served.broker.use_steps().fail = lambda name, key: (
        MetadataUnavailable("out") if name == "list" else None
    )
    with pytest.raises(LogError, match=r"is not deleted in full yet: out; delete it again, or"):
        await served.topics.delete_topic(TOPIC)
    with pytest.raises(ResourceUnknown):
        served.topics.get(TOPIC)
    with pytest.raises(ResourceUnknown):
        await served.topics.find(TOPIC)
    with pytest.raises(ResourceUnknown):
        await served.topics.get_topic(TOPIC)
    with pytest.raises(ResourceInUse, match="is still being deleted; retry later"):
        await served.topics.create_topic(SPEC)
    served.broker.use_steps()
    await served.topics.delete_topic(TOPIC)
    await served.topics.create_topic(SPEC)


@pytest.mark.parametrize("call", ["move", "remove", "remove_directory", "sync_directory"])
async def test_a_disk_that_fails_holds_a_deletion_up_and_does_not_break_it(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    served = await serve(world)
    await populated(world, served)
    disk = served.broker.logs._engine.disk
    real: Callable[..., Any] = getattr(disk, call)
    failures = 1

    def fail_once(*args: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EIO, "says the test")
        return real(*args)

    monkeypatch.setattr(disk, call, fail_once)
    with pytest.raises(LogError, match="is not deleted in full yet"):
        await served.topics.delete_topic(TOPIC)
    assert not failures
    served = await serve(world, await served.crash())
    await assert_gone_from(world, served)


async def test_files_set_aside_go_too(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, b"x")
    aside: Path = opened.log.directory.with_name("t.overtaken-7")
    Disk().make_directories(aside)
    (aside / "wal").write_bytes(b"?")
    other = opened.log.directory.with_name("tt")
    Disk().make_directories(other)
    await served.topics.delete_topic(TOPIC)
    assert [path.name for path in aside.parent.iterdir()] == ["tt"]


async def test_a_deposed_owner_deletes_nothing_of_the_next_topic_of_that_name(
    world: World,
) -> None:
    """It was stopped in the middle, for longer than its lease; meanwhile others did it all."""
    one, other = await serve(world), await serve(world, name="b2")
    await populated(world, one)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def stop_there(name: str, key: str) -> None:
        if name == "list":
            reached.set()
            await go_on.wait()

    one.broker.use_steps().wait = stop_there
    deletion = asyncio.create_task(one.topics.delete_topic(TOPIC))
    await reached.wait()
    await world.depose()
    await other.topics.delete_topic(TOPIC)
    opened = await other.create()
    await fill(opened.log, 20)
    await other.broker.tiers.flush(TOPIC)
    objects = await world.keys("")
    await one.broker.ownership.verify()
    go_on.set()
    with pytest.raises(LogError, match="does not own"):
        await deletion
    assert await world.keys("") == objects != []
    other = await serve(world, await other.crash(), name="b2")
    assert await payloads(other.source, opened.topic) == filled(range(20))


async def test_another_broker_finishes_the_deletion_of_a_stopped_broker(world: World) -> None:
    one = await serve(world)
    await populated(world, one)
    one.broker.use_steps().fail = lambda name, key: (
        MetadataUnavailable("out") if name == "list" else None
    )
    with pytest.raises(LogError):
        await one.topics.delete_topic(TOPIC)
    directory = await one.crash()
    other = await serve(world, name="b2")
    assert (await left_of(world))[0]
    with pytest.raises(LogError, match="b1"):
        await other.topics.delete_topic(TOPIC)
    await world.depose()
    other = await serve(world, await other.crash(), name="b2")
    keys, objects, _ = await left_of(world)
    assert (keys, objects) == ([], [])
    one = await serve(world, directory)
    assert len(one.topics) == 0


# -- while others are at work


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.CLOUD])
async def test_deleting_is_safe_while_everybody_is_at_work(
    world: World, durability: Durability
) -> None:
    served = await serve(world, interval_seconds=0.001, linger_seconds=0.001)
    await served.broker.tiers.start()
    fetcher = Fetcher(served.admin, served.source, 100)
    for _ in range(3):
        opened = await served.create(TopicSpec(TOPIC, durability=durability))
        working = [keep_pushing(opened) for _ in range(3)]
        working += [keep_fetching(fetcher, offset) for offset in (0, 0, 1 << 40)]
        work = asyncio.gather(*working)
        await reached(opened, 50)
        await served.topics.delete_topic(TOPIC)
        errors = await asyncio.wait_for(work, 30)
        assert set(errors[:3]) <= {"LogClosed", "LogReadOnly", "DurabilityUnmet"}
        assert errors[3:] == ["ResourceUnknown"] * 3
        await assert_gone(world, served)
    assert fetcher.running == fetcher.parked == 0


async def keep_pushing(opened: OpenTopic) -> str:
    """Until that fails; the kind of error."""
    try:
        while True:
            await push(opened, b"x" * 100)
    except PenstockError as error:
        return type(error).__name__


async def keep_fetching(fetcher: Fetcher, offset: int) -> str:
    """Until that fails; the kind of error."""
    try:
        while True:
            fetched = await fetcher.fetch(TOPIC, None, Offset(offset), FetchState(60_000))
            offset = max(offset, fetched.end_offset + (fetched.messages > 0))
    except PenstockError as error:
        return type(error).__name__


async def reached(opened: OpenTopic, offset: int) -> None:
    await eventually(lambda: opened.log.next_offset(P0) > offset)


@pytest.mark.feature("F26")
async def test_a_reader_of_a_partition_is_woken_when_the_topic_is_deleted(world: World) -> None:
    served = await serve(world)
    await served.create(BY_REGION)
    fetcher = Fetcher(served.admin, served.source, 100)
    fetching = asyncio.create_task(
        fetcher.fetch(BY_REGION.name, region("eu"), Offset(0), FetchState(timeout_ms=60_000))
    )
    await eventually(lambda: fetcher.parked == 1)
    await served.topics.delete_topic(BY_REGION.name)
    with pytest.raises(ResourceUnknown, match="topics/regions does not exist"):
        await fetching


async def test_many_deletions_of_one_topic_are_one(world: World) -> None:
    served = await serve(world)
    await populated(world, served)
    deletions = [served.topics.delete_topic(TOPIC) for _ in range(5)]
    answers = await asyncio.gather(*deletions, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["NoneType"] + ["ResourceUnknown"] * 4
    await assert_gone(world, served)


async def test_a_topic_is_deleted_that_is_not_open(world: World) -> None:
    served = await serve(world)
    await populated(world, served)
    await served.broker.stop()
    other = Served(await world.broker(name="b2"))
    await other.topics.delete_topic(TOPIC)
    keys, objects, _ = await left_of(world)
    assert (keys, objects) == ([], [])
    assert names.topic("t") == TOPIC
