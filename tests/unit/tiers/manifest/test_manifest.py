from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock.metadata import (
    Compare,
    CompareTarget,
    DeleteKeys,
    MetadataUnavailable,
    Put,
    TransactionResult,
)
from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange
from penstock.objects import StoreUnavailable
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest.entries import Head, ObjectEntry, Transactions, Trash, UploadSession
from penstock.tiers.manifest.manifest import REMOVED_MAX, Deposed, Manifest
from penstock.tiers.manifest.stored_manifest import DEFAULT_LIMITS, ManifestLimits
from penstock.topics.partitions import PARTITIONS_MAX
from tests.broker.storage import KEYS, TOPIC, World, entry
from tests.faults import FaultyMetadata, FaultyStore

SMALL = ManifestLimits(inline_bytes_max=29)
"""Delete vectors of 11 bytes do not fit into the head."""


class Owner:
    """A manifest as one owner knows it, in stores that several owners use."""

    def __init__(self, world: World, epoch: int, limits: ManifestLimits) -> None:
        self.metadata = FaultyMetadata(world.metadata)
        self.store = FaultyStore(world.bucket)
        guard = Compare(KEYS.owner(TOPIC), CompareTarget.CREATE_REVISION, epoch)
        self.manifest = Manifest(self.metadata, KEYS, TOPIC, self.store, guard, limits)

    def lose_answer(self, carried_out: bool = True) -> None:
        """Leave the next call to the metadata without a reply."""
        steps = self.metadata.steps
        steps.lose = {len(steps.names): carried_out}


async def owner(world: World, limits: ManifestLimits = DEFAULT_LIMITS) -> Owner:
    """Make this the owner; a former one is deposed."""
    await world.metadata.delete(KEYS.owner(TOPIC))
    epoch = await world.metadata.put(KEYS.owner(TOPIC), b"x")
    made = Owner(world, epoch, limits)
    await made.manifest.load()
    return made


def entries(*numbers: int) -> list[ObjectEntry]:
    """Adjacent entries of ten offsets each."""
    return [entry(PartitionRange(0, n * 10, n * 10 + 10), sequence=n) for n in numbers]


def state(manifest: Manifest) -> tuple[Head, list[ObjectEntry]]:
    return manifest.head, list(manifest.index)


def head(change: str, **fields: Any) -> Head:
    return Head(topic=str(TOPIC), change=change, next_sequence=1000, **fields)


async def test_a_topic_without_a_manifest_has_an_empty_one(world: World) -> None:
    mine = await owner(world)
    assert state(mine.manifest) == (Head(topic=str(TOPIC)), [])
    assert await world.raw_metadata() == {}


@pytest.mark.feature("T17")
async def test_head_and_entries_change_together_and_are_read_back(world: World) -> None:
    mine = await owner(world)
    await mine.manifest.commit(head("a", uploaded_frame=5), entries(0, 1))
    await mine.manifest.commit(head("b", uploaded_frame=9), entries(2))
    wanted = (head("b", uploaded_frame=9), entries(0, 1, 2))
    assert state(mine.manifest) == wanted
    assert state((await owner(world)).manifest) == wanted
    prefix = "/penstock/storage/topics/default/default/t"
    assert sorted(await world.raw_metadata()) == [
        f"{prefix}/objects/cur",
        *(f"{prefix}/objects/list/{n:020d}" for n in range(3)),
    ]


@pytest.mark.feature("T17")
async def test_replaced_entries_go_to_the_trash_with_the_end_of_their_grace_time(
    world: World,
) -> None:
    mine = await owner(world)
    await mine.manifest.commit(head("a"), entries(0, 1, 2))
    merged = entry(PartitionRange(0, 0, 20), sequence=0, object_id="x/merged")
    await mine.manifest.commit(head("b"), [merged], entries(0, 1), trash_until_us=100)
    wanted = (head("b"), [merged, *entries(2)])
    assert state(mine.manifest) == wanted
    assert state((await owner(world)).manifest) == wanted
    mine = await owner(world)
    due = await mine.manifest.trash()
    assert due == [Trash("object-0", 100), Trash("object-1", 100)]
    await mine.manifest.forget_trash(due[:1])
    assert await mine.manifest.trash() == due[1:]
    await mine.manifest.forget_trash([])


async def test_any_offset_is_found_after_a_replacement(world: World) -> None:
    mine = await owner(world)
    await mine.manifest.commit(head("a"), entries(0, 1, 2, 3))
    merged = entry(PartitionRange(0, 10, 30), sequence=1, object_id="merged")
    await mine.manifest.commit(head("b"), [merged], entries(1, 2))
    for manifest in (mine.manifest, (await owner(world)).manifest):
        found = [manifest.index.find(0, offset) for offset in range(40)]
        names = [pair[0].object_id if pair else None for pair in found]
        assert names == ["object-0"] * 10 + ["merged"] * 20 + ["object-3"] * 10


@pytest.mark.feature("T17", "T26")
async def test_no_change_of_a_deposed_owner_takes_effect(world: World) -> None:
    old = await owner(world)
    await old.manifest.commit(head("a"), entries(0, 1))
    session = UploadSession("k", None, 0, 0, entries(2)[0])
    await old.manifest.record_session(session)
    trash = Trash("object-9", 50)
    await world.metadata.put(f"{KEYS.trash(TOPIC)}object-9", forms.encode_record(trash))
    new = await owner(world)
    before = await world.raw_metadata()
    with pytest.raises(Deposed):
        await old.manifest.commit(head("zombie"), entries(2), entries(0))
    with pytest.raises(Deposed):
        await old.manifest.record_session(UploadSession("z", None, 0, 0, entries(9)[0]))
    assert not await old.manifest.abandon_session(session, 7)
    with pytest.raises(Deposed):
        await old.manifest.forget_trash([Trash("object-0", 0)])
    with pytest.raises(Deposed):
        await old.manifest.claim({"object-9"}, due_us=0)
    assert await world.raw_metadata() == before
    await new.manifest.commit(head("new"), entries(2))
    before = await world.raw_metadata()
    with pytest.raises(Deposed) as caught:
        await old.manifest.commit(head("zombie"), entries(3))
    assert caught.value.topic == TOPIC
    assert await world.raw_metadata() == before


@pytest.mark.feature("T17")
async def test_a_change_based_on_another_head_is_refused(world: World) -> None:
    mine = await owner(world)
    twin = Manifest(mine.metadata, KEYS, TOPIC, mine.store, mine.manifest._guard)
    await twin.load()
    await mine.manifest.commit(head("a"), entries(0))
    before = await world.raw_metadata()
    with pytest.raises(Deposed):
        await twin.commit(head("b"), entries(0))
    assert await world.raw_metadata() == before


@pytest.mark.feature("T07", "T17")
@pytest.mark.parametrize("carried_out", [False, True], ids=["lost on the way", "answer lost"])
async def test_an_unanswered_change_that_is_repeated_takes_effect_once(
    world: World, carried_out: bool
) -> None:
    mine = await owner(world)
    await mine.manifest.commit(head("a"), entries(0))
    change = (head("b", uploaded_frame=7), entries(1), entries(0), 50)
    mine.lose_answer(carried_out)
    with pytest.raises(MetadataUnavailable):
        await mine.manifest.commit(*change)
    doubtful = mine.manifest.doubtful
    await mine.manifest.commit(*change)
    assert (doubtful, mine.manifest.doubtful) == (True, False)
    wanted = (head("b", uploaded_frame=7), entries(1))
    assert state(mine.manifest) == wanted
    assert state((await owner(world)).manifest) == wanted


@pytest.mark.feature("T07", "T17")
@pytest.mark.parametrize("carried_out", [False, True], ids=["lost on the way", "answer lost"])
async def test_loading_finds_out_whether_an_unanswered_change_was_made(
    world: World, carried_out: bool
) -> None:
    mine = await owner(world)
    mine.lose_answer(carried_out)
    with pytest.raises(MetadataUnavailable):
        await mine.manifest.commit(head("a"), entries(0))
    await mine.manifest.load()
    assert not mine.manifest.doubtful
    assert state(mine.manifest) == (
        (head("a"), entries(0)) if carried_out else (Head(topic=str(TOPIC)), [])
    )
    await mine.manifest.commit(head("b"), entries(1))
    assert mine.manifest.head == head("b")


class Late(FaultyMetadata):
    """A transaction that times out and takes effect later."""

    held: tuple[Sequence[Compare], Sequence[Put | DeleteKeys]] | None = None
    hold = False

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        if self.hold:
            self.hold, self.held = False, (compares, changes)
            raise MetadataUnavailable("in time")
        return await super().transaction(compares, changes)

    async def arrive(self) -> None:
        assert self.held is not None
        assert (await self.store.transaction(*self.held)).succeeded


@pytest.mark.feature("T17")
async def test_a_change_that_takes_effect_late_does_not_depose_its_owner(world: World) -> None:
    mine = await owner(world)
    late = Late(world.metadata)
    manifest = Manifest(late, KEYS, TOPIC, mine.store, mine.manifest._guard)
    await manifest.load()
    late.hold = True
    with pytest.raises(MetadataUnavailable):
        await manifest.commit(head("late"), entries(0))
    await manifest.load()
    await late.arrive()
    with pytest.raises(MetadataUnavailable, match="came through late"):
        await manifest.commit(head("b"), entries(1))
    assert state(manifest) == (head("late"), entries(0))
    await manifest.commit(head("b"), entries(1))
    assert state(manifest) == (head("b"), entries(0, 1))


@pytest.mark.feature("T26")
async def test_an_owner_with_an_unanswered_change_learns_that_it_is_deposed(
    world: World,
) -> None:
    mine = await owner(world)
    mine.lose_answer()
    with pytest.raises(MetadataUnavailable):
        await mine.manifest.commit(head("a"), entries(0))
    await owner(world)
    before = await world.raw_metadata()
    with pytest.raises(MetadataUnavailable, match="came through late"):
        await mine.manifest.commit(head("b"), entries(1))
    with pytest.raises(Deposed):
        await mine.manifest.commit(head("b"), entries(1))
    assert await world.raw_metadata() == before


# -- uploads under way


@pytest.mark.feature("T17")
async def test_sessions_are_listed_oldest_first_and_end_with_their_entries(
    world: World,
) -> None:
    mine = await owner(world)
    noted = [UploadSession(f"k{n}", None, 0, 0, entries(n)[0]) for n in (11, 9, 10)]
    for session in noted:
        await mine.manifest.record_session(session)
    wanted = [noted[1], noted[2], noted[0]]
    assert await mine.manifest.sessions() == wanted
    assert await (await owner(world)).manifest.sessions() == wanted
    mine = await owner(world)
    assert await mine.manifest.sessions() == wanted
    await mine.manifest.commit(head("a"), entries(9))
    assert await mine.manifest.sessions() == wanted[1:]
    assert await mine.manifest.abandon_session(wanted[1], 7)
    assert await mine.manifest.sessions() == wanted[2:]
    assert list(mine.manifest.sessions_recorded) == ["object-11"]
    assert await mine.manifest.trash() == [Trash("object-10", 7, unfinished=True)]
    await mine.manifest.commit(head("b"), entries(12))
    assert await mine.manifest.sessions() == wanted[2:]


@pytest.mark.feature("T14", "T17")
async def test_an_abandoned_upload_is_not_committed_by_an_unanswered_change(
    world: World,
) -> None:
    mine = await owner(world)
    [made] = entries(0)
    await mine.manifest.record_session(UploadSession("k", None, 0, 0, made))
    late: list[Any] = []

    async def on_its_way(
        compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        late.append((compares, changes))
        raise MetadataUnavailable("on its way")

    mine.metadata.transaction = on_its_way  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await mine.manifest.commit(head("a"), [made])
    del mine.metadata.transaction
    await mine.manifest.load()
    [session] = await mine.manifest.sessions()
    assert await mine.manifest.abandon_session(session, 7)
    assert not (await world.metadata.transaction(*late[0])).succeeded
    assert await mine.manifest.sessions() == []
    assert await mine.manifest.trash() == [Trash(made.object_id, 7, unfinished=True)]


@pytest.mark.feature("T14", "T17")
async def test_a_committed_upload_cannot_be_abandoned(world: World) -> None:
    mine = await owner(world)
    [made] = entries(0)
    await mine.manifest.record_session(UploadSession("k", None, 0, 0, made))
    [session] = await mine.manifest.sessions()
    mine.lose_answer()
    with pytest.raises(MetadataUnavailable):
        await mine.manifest.commit(head("a"), [made])
    assert not await mine.manifest.abandon_session(session, 7)
    await mine.manifest.load()
    assert (list(mine.manifest.index), mine.manifest.sessions_recorded) == ([made], {})


# -- delete vectors


@pytest.mark.feature("T17", "T35")
async def test_delete_vectors_are_in_the_head_up_to_a_limit_and_above_it_in_an_object(
    world: World,
) -> None:
    mine = await owner(world, SMALL)
    fits, large, larger = {0: b"x" * 10}, {0: b"x" * 5, 7: b"y" * 6}, {0: b"z" * 99}
    place = "topics/default/default/t/deletes-"
    await mine.manifest.commit(head("a", deletes=fits))
    assert (mine.manifest.head.deletes, mine.manifest.head.deletes_object) == (fits, None)
    assert await world.keys() == []

    await mine.manifest.commit(head("b", deletes=large))
    assert mine.manifest.head == head("b", deletes=large, deletes_object=f"{place}b.msgpack")
    assert (await world.manifest())[0] == head("b", deletes_object=f"{place}b.msgpack")
    assert (await owner(world)).manifest.head == mine.manifest.head

    # Equal vectors need no other object, larger ones do.
    mine = await owner(world, SMALL)
    await mine.manifest.commit(head("c", deletes=large))
    assert mine.manifest.head.deletes_object == f"{place}b.msgpack"
    await mine.manifest.commit(head("d", deletes=larger), trash_until_us=5)
    assert mine.manifest.head == head("d", deletes=larger, deletes_object=f"{place}d.msgpack")
    assert await mine.manifest.trash() == [Trash(f"{place}b.msgpack", 5)]

    await mine.manifest.commit(head("e", deletes=fits), trash_until_us=6)
    assert mine.manifest.head == head("e", deletes=fits)
    assert await mine.manifest.trash() == [
        Trash(f"{place}b.msgpack", 5),
        Trash(f"{place}d.msgpack", 6),
    ]
    assert (await owner(world)).manifest.head == mine.manifest.head


@pytest.mark.feature("T15", "T17")
async def test_unreadable_delete_vectors_are_read_later_and_known_ones_are_not_read_again(
    world: World,
) -> None:
    mine, out = await owner(world, SMALL), StoreUnavailable("k", "out")
    large = {0: b"x" * 11}
    await world.bucket.put("vectors", [msgspec.msgpack.encode(large)])
    await keep(world, head("a", deletes_object="vectors"), [])
    mine.store.steps.fail = lambda name, key: out
    before = mine.manifest.head
    with pytest.raises(StoreUnavailable):
        await mine.manifest.load()
    assert mine.manifest.head == before
    mine.store.steps.fail = lambda name, key: None
    await mine.manifest.load()
    assert mine.manifest.head.deletes == large
    mine.store.steps.fail = lambda name, key: out
    await mine.manifest.load()
    assert (mine.manifest.head.deletes, mine.manifest.lacks_deletes) == (large, False)


# -- links


def spread(count: int) -> dict[int, tuple[int, int]]:
    """Offsets of a link into so many partitions."""
    return dict.fromkeys(range(count), (1 << 40, (1 << 40) + 5))


async def links(world: World) -> list[tuple[int, str, int]]:
    """Number, application and epoch of the stored records."""
    page = await world.metadata.range(KEYS.links(TOPIC))
    found = [forms.decode_link(item.value) for item in page.entries]
    return [(record.number, record.app, record.epoch) for record in found]


@pytest.mark.feature("T17", "S03")
async def test_the_links_of_applications_are_records_that_change_with_the_head(
    world: World,
) -> None:
    mine = await owner(world)
    told: Transactions = {"a": (1, {0: (0, 5), 3: (2, 9)}), "b": (7, {0: (5, 6)})}
    await mine.manifest.commit(head("x", transactions=told))
    assert mine.manifest.head == head("x", transactions=told, next_link=2)
    assert (await owner(world)).manifest.head == mine.manifest.head
    assert forms.decode_head((await world.raw_metadata())[KEYS.manifest(TOPIC)]).transactions == {}
    assert await links(world) == [(0, "a", 1), (1, "b", 7)]

    # Unchanged records are not written again; those of dropped links are deleted.
    mine = await owner(world)
    changed: Transactions = {"b": told["b"], "c": (1, {}), "a": (2, {})}
    await mine.manifest.commit(head("y", transactions=changed))
    assert await links(world) == [(1, "b", 7), (2, "c", 1), (3, "a", 2)]
    await mine.manifest.commit(head("z", transactions={"a": (2, {})}))
    assert await links(world) == [(3, "a", 2)]
    assert (await owner(world)).manifest.head == head("z", transactions={"a": (2, {})}, next_link=4)


@pytest.mark.feature("T17", "S03")
@pytest.mark.parametrize("carried_out", [False, True], ids=["lost on the way", "answer lost"])
async def test_links_of_an_unanswered_change_are_recorded_once(
    world: World, carried_out: bool
) -> None:
    mine = await owner(world)
    await mine.manifest.commit(head("a", transactions={"app": (1, {0: (0, 5)})}))
    mine.lose_answer(carried_out)
    change = head("b", transactions={"app": (2, {0: (5, 6)}), "other": (1, {})})
    for _ in range(2):
        try:
            await mine.manifest.commit(change)
        except MetadataUnavailable:
            continue
    assert mine.manifest.head.transactions == change.transactions
    assert (await owner(world)).manifest.head == mine.manifest.head
    assert await links(world) == [(1, "app", 2), (2, "other", 1)]


@pytest.mark.feature("T17", "S03")
async def test_any_number_of_links_into_any_number_of_partitions_fit_into_the_manifest(
    world: World,
) -> None:
    mine = await owner(world)
    told: Transactions = {}
    for number in range(90):
        told = {**told, f"once-{number}": (0, spread(1000))}
        await mine.manifest.commit(head(f"{number}", transactions=told))
    told = {**told, **{f"query-{number}": (number, spread(10_000)) for number in range(3)}}
    await mine.manifest.commit(head("queries", transactions=told), entries(*range(1000, 1300)))
    assert mine.manifest.head.transactions == told
    mine = await owner(world)
    assert mine.manifest.head.transactions == told
    while found := await links(world):
        await mine.manifest.commit(head(f"none-{len(found)}"))
    assert (await owner(world)).manifest.head.transactions == {}


@pytest.mark.feature("T17", "S03")
async def test_links_of_an_unfinished_change_are_ignored(
    world: World,
) -> None:
    old = await owner(world, ManifestLimits(added_max=2))
    await old.manifest.commit(head("a", transactions={"app": (1, {0: (0, 5)})}))
    steps = old.metadata.steps
    steps.lose = {len(steps.names) + 2: False}
    never: Transactions = {"app": (9, {}), **{f"never-{n}": (1, {}) for n in range(4)}}
    with pytest.raises(MetadataUnavailable):
        await old.manifest.commit(head("never", transactions=never))
    assert [number for number, _, _ in await links(world)] == [0, 1, 2, 3, 4]
    new = await owner(world)
    assert new.manifest.head.transactions == {"app": (1, {0: (0, 5)})}
    for epoch in range(2, 7):
        await new.manifest.commit(head(f"{epoch}", transactions={"app": (epoch, {})}))
        again = (await owner(world)).manifest
        assert again.head.transactions == {"app": (epoch, {})}
        new = await owner(world)
    assert await links(world) == [(5, "app", 6)]


async def test_a_head_of_version_1_is_read_and_its_links_become_records(world: World) -> None:
    old = b"""{"version":1,"topic":"default/default/t","next_sequence":1000,"change":"a",
        "transactions":{"app":[3,{"0":[1,2]}],"once-b":[0,{}]}}"""
    await world.metadata.put(KEYS.manifest(TOPIC), old)
    mine = await owner(world)
    told: Transactions = {"app": (3, {0: (1, 2)}), "once-b": (0, {})}
    assert mine.manifest.head == head("a", version=1, transactions=told)
    await mine.manifest.commit(msgspec.structs.replace(mine.manifest.head, change="b", reserved=7))
    assert (await owner(world)).manifest.head == head(
        "b", transactions=told, next_link=2, reserved=7
    )
    assert await links(world) == [(0, "app", 3), (1, "once-b", 0)]


# -- sizes


@pytest.mark.feature("T17", "F26")
async def test_a_merged_object_of_all_partitions_fits_into_a_transaction_with_a_large_head(
    world: World,
) -> None:
    mine, many = await owner(world), PARTITIONS_MAX
    parts = [
        entry(*(PartitionRange(p, n, n + 1) for p in range(many)), sequence=n) for n in range(2)
    ]
    full = {
        "starts": dict.fromkeys(range(many), 10**12),
        "deletes": {p: bytes(9) for p in range(many)},
    }
    for number, part in enumerate(parts):
        await mine.manifest.commit(head(f"{number}", **full), [part])
    spans = [PartitionRange(p, 10**12, 10**12 + 2) for p in range(many)]
    merged = entry(*spans, sequence=0, object_id="merged")
    await mine.manifest.commit(head("merged", **full), [merged], parts)
    mine = await owner(world)
    assert list(mine.manifest.index) == [merged]
    # With links into as many: these need transactions of their own.
    told: Transactions = {"app": (1, spread(10_000))}
    wanted = msgspec.structs.replace(head("more", **full, transactions=told), next_sequence=1001)
    more = entry(*spans, sequence=1000)
    await mine.manifest.commit(wanted, [more])
    found = (await owner(world)).manifest
    assert (list(found.index), found.head.transactions) == ([merged, more], told)


async def keep(world: World, head: Head, many: Sequence[ObjectEntry]) -> None:
    """Store this manifest."""
    await world.metadata.put(KEYS.manifest(TOPIC), forms.encode_record(head))
    for start in range(0, len(many), 100):
        puts = [
            Put(KEYS.object(TOPIC, e.sequence), forms.encode_record(e))
            for e in many[start : start + 100]
        ]
        await world.metadata.transaction([], puts)


async def test_a_manifest_of_many_pages_is_read_whole(world: World) -> None:
    many = entries(*range(2500))
    wanted = msgspec.structs.replace(head("a"), next_sequence=2500)
    await keep(world, wanted, many)
    assert state((await owner(world)).manifest) == (wanted, many)


@pytest.mark.feature("T17")
async def test_a_change_made_while_pages_are_read_is_noticed(
    world: World,
) -> None:
    many = entries(*range(1500))
    large = msgspec.structs.replace(head("a"), next_sequence=1500)
    await keep(world, large, many)
    mine = await owner(world)
    late: list[Any] = []

    async def on_its_way(
        compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        late.append((compares, changes))
        raise MetadataUnavailable("on its way")

    mine.metadata.transaction = on_its_way  # type: ignore[method-assign]
    merged = entry(PartitionRange(0, 0, 20), sequence=0, object_id="merged")
    with pytest.raises(MetadataUnavailable):
        await mine.manifest.commit(msgspec.structs.replace(large, change="b"), [merged], many[:2])
    del mine.metadata.transaction
    calls = mine.metadata.steps.names
    calls.clear()

    async def arrive(name: str, key: str) -> None:
        if "range" in calls[:-1] and late:
            assert (await world.metadata.transaction(*late.pop())).succeeded

    mine.metadata.steps.wait = arrive
    await mine.manifest.load()
    with pytest.raises(MetadataUnavailable, match="an earlier change came through late"):
        await mine.manifest.commit(msgspec.structs.replace(large, change="c"))
    assert list(mine.manifest.index) == [merged, *many[2:]]


async def test_the_largest_allowed_removal_fits_into_one_transaction(
    world: World,
) -> None:
    mine = await owner(world, SMALL)
    await mine.manifest.commit(head("a", deletes={0: b"x" * 11}), entries(*range(REMOVED_MAX)))
    merged = entry(PartitionRange(0, 0, 10 * REMOVED_MAX), sequence=0, object_id="merged")
    await mine.manifest.record_session(UploadSession("merged", None, 0, 0, merged))
    calls = len(mine.metadata.steps.names)
    await mine.manifest.commit(
        head("b", deletes={0: b"y" * 11}), [merged], entries(*range(REMOVED_MAX))
    )
    assert mine.metadata.steps.names[calls:] == ["transaction"]
    assert list((await owner(world)).manifest.index) == [merged]


async def test_trash_of_any_size_is_emptied(world: World) -> None:
    mine = await owner(world)
    items = [Trash(f"x/object-{n:04d}", 5) for n in range(300)]
    for item in items:
        await world.metadata.put(f"{KEYS.trash(TOPIC)}{item.object_id}", forms.encode_record(item))
    due = await mine.manifest.trash()
    assert due == items
    await mine.manifest.forget_trash(due)
    assert await mine.manifest.trash() == []


async def test_objects_without_a_head_are_no_manifest(world: World) -> None:
    await world.metadata.put(KEYS.object(TOPIC, 0), forms.encode_record(entries(0)[0]))
    with pytest.raises(FormatError, match="has objects but no head"):
        await owner(world)


async def test_a_cancelled_change_makes_the_manifest_doubtful(world: World) -> None:
    mine = await owner(world)
    begun = asyncio.Event()

    async def forever(name: str, key: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    mine.metadata.steps.wait = forever
    task = asyncio.create_task(mine.manifest.commit(head("a"), entries(0)))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    mine.metadata.steps.wait = None
    assert mine.manifest.doubtful
    await mine.manifest.load()
    assert state(mine.manifest) == (Head(topic=str(TOPIC)), [])


async def test_delete_vectors_of_a_refused_change_are_not_used(
    world: World,
) -> None:
    mine = await owner(world, SMALL)
    await mine.manifest.commit(head("a"))
    await owner(world)
    with pytest.raises(Deposed):
        await mine.manifest.commit(head("b", deletes={0: b"x" * 11}))
    assert (await owner(world)).manifest.head == head("a")
