"""Ownership of topics by two brokers of one store, on every store."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
import pytest_asyncio

from penstock.metadata import (
    Compare,
    CompareTarget,
    LeaseExpired,
    Metadata,
    MetadataKeys,
    MetadataUnavailable,
    Put,
)
from penstock.metadata.ownership import (
    LEASE_ENDED,
    NOT_OURS,
    Epoch,
    LeaseTerms,
    NotOwner,
    Owner,
    Ownership,
    find_owner,
)
from penstock.model.names import TopicName
from tests.eventually import eventually
from tests.faults import FaultyMetadata

pytestmark = [pytest.mark.feature("T26"), pytest.mark.asyncio(loop_scope="session")]

LONG = LeaseTerms(seconds=600, margin_seconds=60)
SHORT = LeaseTerms(seconds=2, margin_seconds=0.5)
ORDERS = TopicName("default", "default", "orders")
EVENTS = TopicName("default", "default", "events")


class Broker:
    """A broker that does nothing but own, over a connection that can be cut."""

    def __init__(self, store: Metadata, keys: MetadataKeys, name: str, terms: LeaseTerms) -> None:
        self.store = FaultyMetadata(store)
        self.lost: list[tuple[TopicName, Epoch, str]] = []
        self.ownership = Ownership(
            self.store, keys, name, f"{name}:7777", lambda *lost: self.lost.append(lost), terms
        )


Starter = Callable[..., Awaitable[Broker]]


@pytest.fixture
def keys(root: str) -> MetadataKeys:
    return MetadataKeys(root)


@pytest_asyncio.fixture(loop_scope="session")
async def start(store: Metadata, keys: MetadataKeys) -> AsyncIterator[Starter]:
    brokers: list[Broker] = []

    async def start_broker(name: str, terms: LeaseTerms = LONG) -> Broker:
        brokers.append(Broker(store, keys, name, terms))
        await brokers[-1].ownership.start()
        return brokers[-1]

    yield start_broker
    for broker in brokers:
        await broker.ownership.close()


async def test_a_topic_has_one_owner(store: Metadata, keys: MetadataKeys, start: Starter) -> None:
    first, second = await start("first"), await start("second")
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    assert await second.ownership.acquire(ORDERS) is None
    assert await first.ownership.acquire(ORDERS) == epoch
    assert first.ownership.may_ack(ORDERS, epoch)
    assert not second.ownership.may_ack(ORDERS, epoch)
    with pytest.raises(NotOwner):
        second.ownership.guard(ORDERS)
    assert await find_owner(store, keys, ORDERS) == Owner("first", "first:7777", epoch)
    assert await find_owner(store, keys, EVENTS) is None
    entry = await store.get(keys.owner(ORDERS))
    assert entry is not None
    assert json.loads(entry.value) == {"broker": "first", "address": "first:7777"}
    assert Epoch(entry.create_revision) == epoch


async def test_of_many_brokers_at_once_one_gets_the_topic(start: Starter) -> None:
    brokers = [await start(f"broker-{number}") for number in range(10)]
    epochs = await asyncio.gather(*(broker.ownership.acquire(ORDERS) for broker in brokers))
    assert sum(epoch is not None for epoch in epochs) == 1


async def test_a_released_topic_can_be_taken_at_once_under_a_later_epoch(start: Starter) -> None:
    first, second = await start("first"), await start("second")
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    await first.ownership.release(ORDERS)
    assert not first.ownership.may_ack(ORDERS, epoch)
    later = await second.ownership.acquire(ORDERS)
    assert later is not None
    assert later > epoch
    assert await first.ownership.acquire(ORDERS) is None
    await first.ownership.release(ORDERS)
    assert await first.ownership.acquire(ORDERS) is None
    assert first.lost == []


async def test_a_broker_that_closes_gives_everything_back(start: Starter) -> None:
    first, second = await start("first"), await start("second")
    await first.ownership.acquire(ORDERS)
    await first.ownership.acquire(EVENTS)
    await first.ownership.close()
    assert await second.ownership.acquire(ORDERS) is not None
    assert await second.ownership.acquire(EVENTS) is not None
    assert first.lost == []


async def test_a_lease_is_kept_for_as_long_as_the_broker_runs(start: Starter) -> None:
    first, second = await start("first", SHORT), await start("second")
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    began = first.ownership.valid_until_ns

    async def renewed_past_the_first_lease() -> bool:
        return first.ownership.valid_until_ns > began + SHORT.seconds * 1_000_000_000

    await eventually(renewed_past_the_first_lease)
    assert first.ownership.may_ack(ORDERS, epoch)
    assert await second.ownership.acquire(ORDERS) is None
    assert first.lost == []


async def test_when_a_broker_is_cut_off_another_takes_over_after_its_lease(
    store: Metadata, keys: MetadataKeys, start: Starter
) -> None:
    first, second = await start("first", SHORT), await start("second")
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    guard = first.ownership.guard(ORDERS)
    assert (await store.transaction([guard], [Put(keys.manifest(ORDERS), b"mine")])).succeeded
    first.store.cut = True
    later: Epoch | None = None

    async def taken_over() -> bool:
        nonlocal later
        later = await second.ownership.acquire(ORDERS)
        if later is not None:
            assert not first.ownership.may_ack(ORDERS, epoch), "both may ack"
        return later is not None

    await eventually(taken_over)
    assert later is not None
    assert later > epoch
    # The deposed owner does not know yet; its writes are refused all the same.
    assert not (await store.transaction([guard], [Put(keys.manifest(ORDERS), b"late")])).succeeded
    new = [second.ownership.guard(ORDERS)]
    assert (await store.transaction(new, [Put(keys.manifest(ORDERS), b"new")])).succeeded

    async def noticed() -> bool:
        return bool(first.lost)

    await eventually(noticed)
    assert first.lost == [(ORDERS, epoch, LEASE_ENDED)]
    with pytest.raises(NotOwner):
        first.ownership.guard(ORDERS)


async def test_a_broker_that_lost_everything_can_own_again(start: Starter) -> None:
    first = await start("first", SHORT)
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    first.store.cut = True

    async def noticed() -> bool:
        return bool(first.lost)

    await eventually(noticed)
    first.store.cut = False
    later: Epoch | None = None

    async def owns_again() -> bool:
        nonlocal later
        with suppress(LeaseExpired):
            later = await first.ownership.acquire(ORDERS)
        return later is not None

    await eventually(owns_again)
    assert later is not None
    assert later > epoch
    assert first.ownership.may_ack(ORDERS, later)
    assert not first.ownership.may_ack(ORDERS, epoch)


async def test_a_key_that_is_taken_away_is_noticed_for_that_topic_alone(
    store: Metadata, keys: MetadataKeys, start: Starter
) -> None:
    first = await start("first", SHORT)
    orders = await first.ownership.acquire(ORDERS)
    events = await first.ownership.acquire(EVENTS)
    assert orders is not None
    assert events is not None
    await store.delete(keys.owner(ORDERS))

    async def noticed() -> bool:
        return bool(first.lost)

    await eventually(noticed)
    assert first.lost == [(ORDERS, orders, NOT_OURS)]
    assert not first.ownership.may_ack(ORDERS, orders)
    assert first.ownership.may_ack(EVENTS, events)


async def test_an_acquire_without_a_reply_succeeds_when_it_is_repeated(start: Starter) -> None:
    first, second = await start("first"), await start("second")
    first.store.answers_lost = 1
    with pytest.raises(MetadataUnavailable):
        await first.ownership.acquire(ORDERS)
    assert await second.ownership.acquire(ORDERS) is None
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    assert first.ownership.may_ack(ORDERS, epoch)


async def test_what_an_acquire_without_an_answer_left_can_be_released(start: Starter) -> None:
    first, second = await start("first"), await start("second")
    first.store.answers_lost = 1
    with pytest.raises(MetadataUnavailable):
        await first.ownership.acquire(ORDERS)
    await first.ownership.release(ORDERS)
    assert await second.ownership.acquire(ORDERS) is not None


async def test_an_epoch_whose_release_was_not_answered_is_never_used_again(
    store: Metadata, keys: MetadataKeys, start: Starter
) -> None:
    first = await start("first")
    epoch = await first.ownership.acquire(ORDERS)
    assert epoch is not None
    first.store.cut = True
    with pytest.raises(MetadataUnavailable):
        await first.ownership.release(ORDERS)
    first.store.cut = False
    # The key is still there, and the delete could still arrive.
    entry = await store.get(keys.owner(ORDERS))
    assert entry is not None
    assert Epoch(entry.create_revision) == epoch
    later = await first.ownership.acquire(ORDERS)
    assert later is not None
    assert later > epoch
    late = Compare(keys.owner(ORDERS), CompareTarget.CREATE_REVISION, epoch)
    assert not (await store.transaction([late], [])).succeeded


async def test_many_topics_are_verified_together(start: Starter) -> None:
    first = await start("first")
    topics = [TopicName("default", "default", f"topic-{number}") for number in range(300)]
    epochs = await asyncio.gather(*(first.ownership.acquire(topic) for topic in topics))
    assert None not in epochs
    first.store.transactions.clear()
    await first.ownership.verify()
    assert [len(compares) for compares, _ in first.store.transactions] == [128, 128, 44]
    await first.store.delete(MetadataKeys.owner(first.ownership._keys, topics[200]))
    await first.ownership.verify()
    assert first.lost == [(topics[200], epochs[200], NOT_OURS)]
