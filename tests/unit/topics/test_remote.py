"""The remote source reads each offset once, from the bucket or the owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from pyroaring import BitMap64

from penstock.config import CloudSection
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.threads import WorkerThreads
from penstock.log import READ_BYTES
from penstock.metadata import MetadataUnavailable
from penstock.metadata.catalog import AtOwner, InObject, Location
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import (
    DataDamaged,
    OffsetGone,
    OwnedElsewhere,
    PartitionInvalid,
    ResourceUnknown,
)
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import Topic, TopicSpec
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects import ObjectMissing, Stores
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest import entries
from penstock.topics import Fetcher, FetchState, Source, TopicPartition
from penstock.topics.fetch_state import TIMEOUT_MS_MAX
from penstock.topics.remote import Owners, OwnerUnavailable, RemoteSource
from penstock.topics.remote.source import ATTEMPTS
from tests.eventually import eventually
from tests.unit.formats.contents import raw
from tests.unit.metadata.counting import CountingAdmin, CountingRegistry
from tests.unit.tiers.reading.test_object_reader import built
from tests.unit.topics.owner_server import Owner, owner

NAME = TopicName("acme", "shop", "orders")
TOPIC = Topic(TopicSpec(NAME), "u1", Microseconds(0))
PLACE = TopicPartition(TOPIC, None)

Step = Callable[[], Location | None]


class Node:
    """A source, and what it reads from; the registry answers by `steps`, the last one again."""

    def __init__(
        self, owner: Owner, stores: Stores, threads: WorkerThreads, owners: Owners
    ) -> None:
        self.owner, self.stores = owner, stores
        self.admin, self.registry = CountingAdmin(), CountingRegistry()
        self.steps: list[Step] = []
        self.asked: list[tuple[int, int]] = []
        self.registry.offset_location = self._locate  # type: ignore[method-assign]
        self.source: Source = RemoteSource(
            self.admin, self.registry, stores, owners, threads, Child(), Clock()
        )

    async def _locate(self, topic: Any, value: Any, offset: int, deadline: int) -> Location | None:
        self.asked.append((offset, deadline))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        return step()

    async def put(self, batches: list[Batch], deletions: Deletions | None = None) -> bytes:
        """The entry of an object with these batches."""
        made = built(batches, deletions)
        info = await self.stores.get("").put(made.entry.object_id, [made.data])
        return entries.encode_record(msgspec.structs.replace(made.entry, etag=info.etag))

    def at_owner(self, first: int, next_: int) -> Step:
        return lambda: AtOwner(PartitionId(0), Offset(first), Offset(next_), self.owner.address)

    async def read(self, offset: int, bytes_max: int = READ_BYTES) -> list[tuple[int, bytes]]:
        answer = await self.source.read(PLACE, Offset(offset), bytes_max)
        assert isinstance(answer, list)
        return [pair for batch in answer for pair in _pairs(batch)]


def _pairs(batch: Batch) -> list[tuple[int, bytes]]:
    assert isinstance(batch.content, Columns)
    return list(zip(batch.offsets().tolist(), batch.content.payload.to_pylist(), strict=True))


def _in_object(entry: bytes, first: int, next_: int, deleted: bytes = b"") -> Step:
    return lambda: InObject(PartitionId(0), Offset(first), Offset(next_), entry, deleted)


def _raising(error: Exception) -> Step:
    def step() -> Location | None:
        raise error

    return step


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        threads, owners = WorkerThreads(1, "test"), Owners()
        stores = Stores(CloudSection(backend="memory"), {}, tmp_path)
        for part in (threads, owners, stores):
            stack.push_async_callback(part.close)
        made = Node(await stack.enter_async_context(owner()), stores, threads, owners)
        await made.admin.create_tenant("acme")
        await made.admin.create_namespace(Namespace("acme", "shop"))
        yield made


async def test_rows_of_an_object_come_from_the_bucket(node: Node) -> None:
    entry = await node.put([raw(10, [b"a", b"b", b"c"])])
    node.steps = [_in_object(entry, 10, 13)]
    assert await node.read(10) == [(10, b"a"), (11, b"b"), (12, b"c")]
    assert await node.read(11) == [(11, b"b"), (12, b"c")]
    assert node.owner.requests == []
    assert node.asked == [(10, 0), (11, 0)]


async def test_deleted_rows_of_an_object_are_left_out(node: Node) -> None:
    entry = await node.put([raw(10, [b"a", b"b", b"c", b"d"])])
    node.steps = [_in_object(entry, 10, 14, BitMap64([11, 12]).serialize())]
    assert await node.read(10) == [(10, b"a"), (13, b"d")]


async def test_rows_beyond_the_located_range_are_left_out(node: Node) -> None:
    entry = await node.put([raw(10, [b"a", b"b", b"c", b"d"])])
    node.steps = [_in_object(entry, 11, 13)]
    assert await node.read(10) == [(11, b"b"), (12, b"c")]


async def test_a_range_without_rows_is_stepped_over(node: Node) -> None:
    batches = [raw(10, [b"a", b"b", b"c"])]
    entry = await node.put(batches, Deletions({}, {0: BitMap64([11, 12])}))
    node.steps = [_in_object(entry, 11, 13)]
    answer = await node.source.read(PLACE, Offset(11), READ_BYTES)
    assert isinstance(answer, list)
    assert [(batch.messages, batch.next_offset) for batch in answer] == [(0, 13)]


async def test_the_newest_messages_come_from_the_owner(node: Node) -> None:
    node.owner.batches = [raw(10, [b"a", b"b"]), raw(12, [b"c"])]
    node.steps = [node.at_owner(10, 13)]
    assert await node.read(11) == [(11, b"b"), (12, b"c")]


async def test_a_fetch_from_the_owner_is_limited_by_the_bytes(node: Node) -> None:
    node.owner.batches = [raw(0, [b"x" * 10_000] * 100)]
    node.steps = [node.at_owner(0, 100)]
    await node.read(0, 1)
    await node.read(0, 20 << 10)
    await node.read(0, 1 << 20)
    await node.read(90, 1 << 20)
    asked = [request.max_messages for request in node.owner.requests]
    # Nothing is known at first; from then on a message is 10 KB.
    assert asked == [1, 2, 100, 10]


async def test_past_the_head_is_the_head(node: Node) -> None:
    node.steps = [lambda: None]
    assert await node.source.read(PLACE, Offset(7), READ_BYTES) == AtHead(Offset(7))


@pytest.mark.feature("F22")
async def test_a_deleted_offset_is_reported_with_the_earliest_one(node: Node) -> None:
    node.steps = [_raising(OffsetGone("t", None, Offset(3), Offset(9)))]
    assert await node.source.read(PLACE, Offset(3), READ_BYTES) == Gone(Offset(9))


async def test_the_location_of_a_merged_object_is_looked_up_again(node: Node) -> None:
    gone = await node.put([raw(10, [b"a"])])
    await node.stores.get("").delete(entries.decode_entry(gone).object_id)
    merged = await node.put([raw(5, [b"z"] * 5 + [b"a", b"b"])])
    node.steps = [_in_object(gone, 10, 11), _in_object(merged, 10, 12)]
    assert await node.read(10) == [(10, b"a"), (11, b"b")]
    assert len(node.asked) == 2


async def test_an_object_that_stays_away_is_an_error(node: Node) -> None:
    gone = await node.put([raw(10, [b"a"])])
    await node.stores.get("").delete(entries.decode_entry(gone).object_id)
    node.steps = [_in_object(gone, 10, 11)]
    with pytest.raises(ObjectMissing):
        await node.read(10)
    assert len(node.asked) == ATTEMPTS


async def test_a_damaged_object_is_reported_with_its_offsets(node: Node) -> None:
    entry = await node.put([raw(10, [b"a", b"b"])])
    other = msgspec.structs.replace(entries.decode_entry(entry), size=7)
    node.steps = [_in_object(entries.encode_record(other), 10, 12)]
    with pytest.raises(DataDamaged, match="offsets 10 to 11 are damaged"):
        await node.read(10)


async def test_messages_that_the_owner_has_uploaded_are_read_from_the_bucket(node: Node) -> None:
    entry = await node.put([raw(10, [b"a"])])
    node.steps = [node.at_owner(10, 11), _in_object(entry, 10, 11)]
    assert await node.read(10) == [(10, b"a")]
    assert len(node.owner.requests) == 1


async def test_an_owner_that_does_not_answer_is_an_error_in_the_end(node: Node) -> None:
    node.owner.error = "the disk is away"
    node.steps = [node.at_owner(10, 11)]
    with pytest.raises(OwnerUnavailable, match="the disk is away"):
        await node.read(10)
    assert len(node.owner.requests) == ATTEMPTS


async def test_a_topic_of_another_broker_is_read_from_that_broker(node: Node) -> None:
    node.owner.batches = [raw(10, [b"a"])]
    node.steps = [_raising(OwnedElsewhere("t", "b2", node.owner.address))]
    assert await node.read(10) == [(10, b"a")]
    assert await node.source.read(PLACE, Offset(11), READ_BYTES) == AtHead(Offset(11))


@pytest.mark.parametrize(
    "error", [MetadataUnavailable("away"), ResourceUnknown("topic", "t"), PartitionInvalid("no")]
)
async def test_other_errors_are_those_of_the_registry(node: Node, error: Exception) -> None:
    node.steps = [_raising(error)]
    with pytest.raises(type(error)):
        await node.read(10)
    assert len(node.asked) == 1


@pytest.mark.feature("F35")
async def test_objects_are_read_from_the_store_of_the_namespace(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        threads, owners = WorkerThreads(1, "test"), Owners()
        named = {"archive": CloudSection(root=str(tmp_path / "archive"))}
        stores = Stores(CloudSection(), named, tmp_path / "own")
        for part in (threads, owners, stores):
            stack.push_async_callback(part.close)
        node = Node(Owner(), stores, threads, owners)
        await node.admin.create_tenant("acme")
        await node.admin.create_namespace(Namespace("acme", "shop"), "archive")
        made = built([raw(0, [b"a"])])
        await stores.get("archive").put(made.entry.object_id, [made.data])
        node.steps = [_in_object(entries.encode_record(made.entry), 0, 1)]
        assert await node.read(0) == [(0, b"a")]
        assert await node.read(0) == [(0, b"a")]
        assert node.admin.asked["get_namespace"] == 1


async def test_an_arrival_is_a_wait_at_the_registry_until_the_deadline(node: Node) -> None:
    node.steps = [lambda: None]
    loop, now = asyncio.get_running_loop(), Clock().now_us()
    with node.source.arrival(PLACE, Offset(7), loop.time() + 60) as arrival:
        await arrival
    ((offset, deadline),) = node.asked
    assert offset == 7
    assert now + 59_000_000 < deadline < now + 120_000_000


async def test_leaving_an_arrival_ends_the_wait(node: Node) -> None:
    registry = CountingRegistry()
    node.registry.offset_location = registry.offset_location  # type: ignore[method-assign]
    deadline = asyncio.get_running_loop().time() + 60

    async def waiting() -> bool:
        return registry.waiting == 1

    async def free() -> bool:
        return registry.waiting == 0

    with node.source.arrival(PLACE, Offset(7), deadline) as arrival:
        await eventually(waiting)
        assert not arrival.done()
    await eventually(free)
    assert arrival.cancelled()


async def test_a_wait_that_fails_lets_the_reader_look_again(node: Node) -> None:
    node.steps = [_raising(MetadataUnavailable("away"))]
    deadline = asyncio.get_running_loop().time() + 60
    with node.source.arrival(PLACE, Offset(7), deadline) as arrival:
        await arrival


@pytest.mark.feature("F15")
async def test_a_fetch_reads_objects_and_the_owner_in_offset_order(node: Node) -> None:
    old = await node.put([raw(0, [b"a", b"b"])])
    newer = await node.put([raw(2, [b"c", b"d", b"e"])])
    node.owner.batches = [raw(6, [b"g"])]
    await node.admin.create_topic(TopicSpec(NAME))
    locations = {
        0: _in_object(old, 0, 2),
        2: _in_object(newer, 2, 5, BitMap64([3]).serialize()),
        5: node.at_owner(6, 7),
    }

    async def locate(topic: Any, value: Any, offset: int, deadline: int) -> Location | None:
        first = max((first for first in locations if first <= offset), default=0)
        return locations[first]() if offset < 7 else None

    node.registry.offset_location = locate  # type: ignore[method-assign]
    # The fetch ends at the head; at the deadline it would return what it has read by then.
    state = FetchState(timeout_ms=TIMEOUT_MS_MAX)
    fetched = await Fetcher(node.admin, node.source, 10).fetch(NAME, None, Offset(1), state)
    found = [pair for batch in fetched.batches for pair in _pairs(batch)]
    assert found == [(1, b"b"), (2, b"c"), (4, b"e"), (6, b"g")]
