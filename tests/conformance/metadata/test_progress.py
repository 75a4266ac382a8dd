"""Positions of subscriptions, on every store."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.metadata import Metadata, MetadataKeys, ProgressUpdater, SubscriptionId
from penstock.metadata.ownership import LeaseTerms, NotOwner, Ownership
from penstock.model.names import TopicName
from penstock.model.units import Offset
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORDERS = TopicName("default", "default", "orders")
EVENTS = TopicName("default", "default", "events")
FAST, SLOW = SubscriptionId(ORDERS, "fast"), SubscriptionId(ORDERS, "slow")
NEVER_SECONDS = 3600.0
NEVER_DELTA = 1_000_000_000


@pytest.fixture
def keys(root: str) -> MetadataKeys:
    return MetadataKeys(root)


@pytest_asyncio.fixture(loop_scope="session")
async def ownership(store: Metadata, keys: MetadataKeys) -> AsyncIterator[Ownership]:
    owner = Ownership(store, keys, "a", "a:1", lambda *_: None, LeaseTerms(600, 60))
    await owner.start()
    await owner.acquire(ORDERS)
    await owner.acquire(EVENTS)
    yield owner
    await owner.close()


async def stored(store: Metadata, keys: MetadataKeys, subscription: SubscriptionId) -> int | None:
    entry = await store.get(keys.progress(*subscription))
    if entry is None:
        return None
    value = json.loads(entry.value)
    assert set(value) == {"offset", "timestamp"}
    return int(value["offset"])


@pytest.mark.feature("T22")
async def test_a_new_subscription_is_in_the_store_when_start_returns(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard)
    assert progress.floor(FAST) is None
    assert await progress.start(FAST, Offset(7)) == 7
    assert await stored(store, keys, FAST) == 7
    assert progress.floor(FAST) == 7
    await progress.close()


@pytest.mark.feature("T22")
async def test_an_existing_subscription_continues_at_its_position(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    before = ProgressUpdater(store, keys, ownership.guard)
    await before.start(FAST, Offset(7))
    before.record(FAST, Offset(20))
    await before.close()
    after = ProgressUpdater(store, keys, ownership.guard)
    assert await after.start(FAST, Offset(0)) == 20
    after.record(FAST, Offset(25))
    assert await after.start(FAST, Offset(0)) == 25
    await after.close()
    assert await stored(store, keys, FAST) == 25


@pytest.mark.feature("T22")
async def test_a_broker_that_does_not_own_the_topic_cannot_start_a_subscription(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard)
    other = SubscriptionId(TopicName("default", "default", "other"), "s")
    with pytest.raises(NotOwner):
        await progress.start(other, Offset(0))
    await store.delete(keys.owner(ORDERS))
    with pytest.raises(NotOwner):
        await progress.start(FAST, Offset(0))
    assert await stored(store, keys, FAST) is None
    await progress.close()


@pytest.mark.feature("T21")
async def test_subscriptions_progress_on_their_own_and_are_saved_when_closed(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, NEVER_DELTA)
    await progress.start(FAST, Offset(0))
    await progress.start(SLOW, Offset(0))
    progress.record(FAST, Offset(100))
    progress.record(SLOW, Offset(3))
    assert (await stored(store, keys, FAST), await stored(store, keys, SLOW)) == (0, 0)
    await progress.close()
    assert (await stored(store, keys, FAST), await stored(store, keys, SLOW)) == (100, 3)


@pytest.mark.feature("T21")
async def test_positions_are_saved_by_time(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, 0.05, NEVER_DELTA)
    await progress.start(FAST, Offset(0))
    progress.record(FAST, Offset(1))

    async def saved() -> bool:
        return await stored(store, keys, FAST) == 1

    await eventually(saved)
    assert progress.floor(FAST) == 1
    await progress.close()


@pytest.mark.feature("T21")
async def test_positions_are_saved_by_distance(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, 10)
    await progress.start(FAST, Offset(0))
    await progress.start(SLOW, Offset(0))
    progress.record(SLOW, Offset(9))
    progress.record(FAST, Offset(10))

    async def saved() -> bool:
        return await stored(store, keys, FAST) == 10

    await eventually(saved)
    assert await stored(store, keys, SLOW) == 0
    await progress.close()


@pytest.mark.feature("T21")
async def test_a_flush_saves_one_topic_or_all(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, NEVER_DELTA)
    other = SubscriptionId(EVENTS, "s")
    for subscription in (FAST, other):
        await progress.start(subscription, Offset(0))
        progress.record(subscription, Offset(5))
    assert await progress.flush(ORDERS)
    assert (await stored(store, keys, FAST), await stored(store, keys, other)) == (5, 0)
    assert await progress.flush()
    assert await stored(store, keys, other) == 5
    await progress.close()


@pytest.mark.feature("T21")
async def test_a_topic_that_is_left_is_saved_before_and_ignored_after(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, NEVER_DELTA)
    await progress.start(FAST, Offset(0))
    progress.record(FAST, Offset(5))
    await progress.leave(ORDERS)
    progress.record(FAST, Offset(6))
    assert progress.floor(FAST) is None
    await progress.close()
    assert await stored(store, keys, FAST) == 5


@pytest.mark.feature("T21")
async def test_a_removed_subscription_leaves_no_key(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, NEVER_DELTA)
    await progress.start(FAST, Offset(0))
    progress.record(FAST, Offset(5))
    await progress.remove(FAST)
    await progress.close()
    assert await stored(store, keys, FAST) is None


@pytest.mark.feature("T21", "T26")
async def test_the_position_of_a_deposed_owner_is_refused(
    store: Metadata, keys: MetadataKeys, ownership: Ownership
) -> None:
    progress = ProgressUpdater(store, keys, ownership.guard, NEVER_SECONDS, NEVER_DELTA)
    await progress.start(FAST, Offset(0))
    progress.record(FAST, Offset(5))
    await store.delete(keys.owner(ORDERS))
    rival = Ownership(store, keys, "b", "b:1", lambda *_: None, LeaseTerms(600, 60))
    await rival.start()
    assert await rival.acquire(ORDERS) is not None
    assert not await progress.flush()
    assert await stored(store, keys, FAST) == 0
    # It is not tried again: the subscription belongs to the other broker now.
    assert progress.floor(FAST) is None
    theirs = ProgressUpdater(store, keys, rival.guard, NEVER_SECONDS, NEVER_DELTA)
    assert await theirs.start(FAST, Offset(0)) == 0
    theirs.record(FAST, Offset(3))
    assert await theirs.flush()
    assert await stored(store, keys, FAST) == 3
    for part in (progress, theirs, rival):
        await part.close()
