import base64

import pytest
from pyroaring import BitMap64

from penstock.formats.plan_api import StoreReply
from penstock.model.errors import ResourceUnknown
from penstock.model.units import Offset, PartitionId
from penstock.tiers.manifest.entries import Gap
from penstock.topics import PlanGone, Plans
from penstock.topics.plans import PLANS_MAX
from tests.broker.storage import TOPIC, World, fill, flush
from tests.broker.topics import BY_REGION, Served, memory, push, region, serve

STORE = StoreReply("fs", "elsewhere")


def plans(served: Served) -> Plans:
    return Plans(served.topics, lambda name: STORE if not name else StoreReply("s3", name))


async def test_every_committed_offset_is_in_one_object_or_hot(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    await fill(opened.log, 40)
    await flush(opened.tier)
    await fill(opened.log, 7)
    await opened.log.delete(PartitionId(0), [3, 41])
    page = await plans(served).page(TOPIC, "", 100, True)
    (partition,) = page.partitions
    reported = (partition.start_offset, partition.hot_offset, partition.next_offset)
    assert (page.topic, page.store, page.next_token) == (opened.topic, STORE, "")
    assert reported == (0, 40, 47)
    assert list(BitMap64.deserialize(base64.b64decode(partition.deleted))) == [3, 41]
    spans = [span for item in page.objects for span in item.ranges]
    assert [first for _, first, _ in spans] == [0, *(next_ for _, _, next_ in spans[:-1])]
    assert spans[-1][2] == 40
    assert sum(item.rows for item in page.objects) == 40


async def test_all_pages_tell_of_the_moment_of_the_first(world: World) -> None:
    served = await serve(world, batch_bytes_max=300)
    opened = await served.create()
    assert opened.tier is not None
    await fill(opened.log, 30)
    await flush(opened.tier)
    cache = plans(served)
    page = await cache.page(TOPIC, "", 2, True)
    keys = [item.key for item in page.objects]
    expected = [entry.object_id for entry in opened.tier.manifest.index]
    await opened.tier.remove_entries(list(opened.tier.manifest.index)[-2:])
    while page.next_token:
        page = await cache.page(TOPIC, page.next_token, 2, True)
        keys += [item.key for item in page.objects]
        assert not page.partitions
    assert keys == expected
    assert len(keys) > 3


async def test_an_evicted_plan_is_reported_as_gone(world: World) -> None:
    served = await serve(world)
    opened = await served.create(BY_REGION)
    for name in ("eu", "us", "as"):
        await opened.partitions.ensure([region(name)])
    cache = plans(served)
    first = await cache.page(BY_REGION.name, "", 2, True)
    key = first.next_token.partition(".")[0]
    for place in ("9" * 5000, "\u0663", "-1"):
        with pytest.raises(PlanGone):
            await cache.page(BY_REGION.name, f"{key}.{place}", 2, True)
    for _ in range(PLANS_MAX):
        await cache.page(BY_REGION.name, "", 1, False)
    for token in (first.next_token, "nonsense", "a.b"):
        with pytest.raises(PlanGone):
            await cache.page(BY_REGION.name, token, 2, True)
    with pytest.raises(ResourceUnknown):
        await cache.page(TOPIC, "", 2, True)


async def test_a_plan_has_the_values_of_partitions_and_objects_only_on_request(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    await fill(opened.log, 5)
    await flush(opened.tier)
    page = await plans(served).page(TOPIC, "", 10, False)
    assert not page.objects
    assert page.partitions[0].hot_offset == 5
    divided = await served.create(BY_REGION)
    await divided.partitions.ensure([region("eu"), region("us")])
    reported = (await plans(served).page(BY_REGION.name, "", 10, True)).partitions
    assert [(item.partition_id, item.partition_value) for item in reported] == [
        (0, {"String": "eu"}),
        (1, {"String": "us"}),
    ]


async def test_a_topic_in_memory_has_a_hot_tail_only(world: World) -> None:
    served = await serve(world)
    opened = await served.create(memory("m"))
    await push(opened, b"a", b"b")
    page = await plans(served).page(opened.topic.name, "", 10, True)
    assert (page.store, page.objects) == (None, [])
    assert (page.partitions[0].hot_offset, page.partitions[0].next_offset) == (0, 2)


async def test_a_purge_moves_start_and_hot_tail(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await fill(opened.log, 10)
    await opened.log.purge(PartitionId(0), Offset(8))
    (reported,) = (await plans(served).page(TOPIC, "", 10, True)).partitions
    assert (reported.start_offset, reported.hot_offset, reported.next_offset) == (8, 8, 10)


@pytest.mark.feature("S05", "T26")
async def test_a_plan_marks_the_first_object_after_an_open_gap(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    for _ in range(3):
        await fill(opened.log, 10)
        await flush(opened.tier)
    entries = opened.tier.manifest.index.ordered()
    assert len(entries) == 3
    await opened.tier.commit(gaps=[Gap("former", 0, 10, entries[1].sequence)])
    page = await plans(served).page(TOPIC, "", 100, True)
    assert [item.after_gap for item in page.objects] == [False, True, False]
    await opened.tier.commit(gaps=[])
    page = await plans(served).page(TOPIC, "", 100, True)
    assert not any(item.after_gap for item in page.objects)
