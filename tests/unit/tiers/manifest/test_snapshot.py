from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.objects import MemoryStore
from penstock.tiers.manifest import snapshot
from penstock.tiers.manifest.entries import Head, ObjectEntry, Snapshot
from tests.broker.storage import entry

TOPIC = TopicName("a", "b", "c")
EMPTY = Snapshot(Head(), [], 0)


def content(created_us: int, epoch: int = 1, **head: Any) -> Snapshot:
    return Snapshot(Head(epoch=epoch, **head), [entry(PartitionRange(0, 0, 5))], created_us)


def made(
    name: str,
    frames: tuple[int, int],
    offsets: tuple[int, int] | None = None,
    epoch: int = 1,
    partition: int = 0,
    created_at: int = 0,
) -> ObjectEntry:
    """An object of some frames; its offsets are ten times as many unless told."""
    first, next_ = offsets or (frames[0] * 10, frames[1] * 10)
    return entry(
        PartitionRange(partition, first, next_),
        object_id=name,
        epoch=epoch,
        first_frame=frames[0],
        next_frame=frames[1],
        created_at=created_at,
    )


def covered(candidates: list[ObjectEntry], base: Snapshot = EMPTY) -> list[tuple[str, int, int]]:
    """Names and ranges of the chosen entries, whose offset bounds are checked."""
    chosen = snapshot.cover(candidates, base)
    for one in chosen:
        assert (one.start_offset, one.end_offset) == (one.ranges[0].first, one.ranges[-1].next - 1)
    return [(e.object_id, e.ranges[0].first, e.ranges[0].next) for e in chosen]


# -- writing and reading


@pytest.mark.feature("T18")
async def test_a_snapshot_is_read_back_from_the_bucket() -> None:
    store = MemoryStore()
    assert await snapshot.newest(store, TOPIC) is None
    wanted = content(5, deletes={0: b"\x00\xff"}, reserved=7)
    key = await snapshot.write(store, TOPIC, wanted, "u")
    assert key == "topics/a/b/c/manifest-00000000000000005-u.json.zst"
    assert await snapshot.newest(store, TOPIC) == wanted


@pytest.mark.feature("T18")
async def test_the_newest_snapshots_are_retained_and_the_newest_is_read() -> None:
    store = MemoryStore()
    keys = [await snapshot.write(store, TOPIC, content(n), "u") for n in range(1, 11)]
    assert [info.key async for info in store.list("topics/")] == keys[-snapshot.SNAPSHOTS_MAX :]
    assert await snapshot.newest(store, TOPIC) == content(10)


@pytest.mark.feature("T18")
async def test_a_snapshot_is_the_newest_also_when_the_clock_was_set_back() -> None:
    store = MemoryStore()
    await store.put("topics/a/b/c/manifest-of-nobody", [b"?"])
    for n in (100, 101, 102):
        await snapshot.write(store, TOPIC, content(n), "u")
    keys = [await snapshot.write(store, TOPIC, content(n, reserved=n), "u") for n in (5, 6)]
    assert {info.key async for info in store.list("topics/")} >= set(keys)
    newest = await snapshot.newest(store, TOPIC)
    assert newest is not None
    assert (newest.head.reserved, newest.created_us) == (6, 104)


@pytest.mark.feature("T18", "T26")
async def test_a_late_snapshot_of_a_deposed_owner_is_ignored() -> None:
    store = MemoryStore()
    await snapshot.write(store, TOPIC, content(5, epoch=9), "u")
    await snapshot.write(store, TOPIC, content(6, epoch=9), "u")
    await snapshot.write(store, TOPIC, content(7, epoch=3), "u")
    assert await snapshot.newest(store, TOPIC) == content(6, epoch=9)


@pytest.mark.feature("T16", "T18")
async def test_the_snapshot_before_a_damaged_one_is_used() -> None:
    store = MemoryStore()
    await snapshot.write(store, TOPIC, content(5), "u")
    key = await snapshot.write(store, TOPIC, content(6), "u")
    whole = await store.get(key)
    for data in [
        *(whole[:n] for n in (0, 1, 11, 12, 40, len(whole) - 1)),
        *(whole[:n] + bytes([whole[n] ^ 1 << n % 8]) + whole[n + 1 :] for n in range(len(whole))),
    ]:
        await store.delete(key)
        await store.put(key, [data])
        assert await snapshot.newest(store, TOPIC) in (content(5), content(6))
        if data[:12] != whole[:12]:
            assert await snapshot.newest(store, TOPIC) == content(5)


async def test_a_rebuild_fails_if_every_snapshot_is_damaged() -> None:
    store = MemoryStore()
    await store.put(snapshot.snapshot_key(TOPIC, 1, "u"), [b"nonsense"])
    with pytest.raises(FormatError, match="all snapshots of topic a/b/c are damaged"):
        await snapshot.newest(store, TOPIC)


async def test_a_snapshot_of_a_later_version_asks_for_an_upgrade() -> None:
    store = MemoryStore()
    await snapshot.write(store, TOPIC, content(1), "u")
    await snapshot.write(store, TOPIC, content(2, version=3), "u")
    with pytest.raises(VersionUnknown):
        await snapshot.newest(store, TOPIC)


async def test_the_snapshots_of_other_topics_are_left_alone() -> None:
    store = MemoryStore()
    other = TopicName("a", "b", "c2")
    await snapshot.write(store, other, content(1), "u")
    for n in range(9):
        await snapshot.write(store, TOPIC, content(n), "u")
    assert await snapshot.newest(store, other) == content(1)


# -- which objects are the manifest


@pytest.mark.feature("T18")
def test_objects_that_follow_one_another_are_the_manifest() -> None:
    objects = [made("a", (0, 5)), made("c", (9, 12)), made("b", (5, 9))]
    assert covered(objects) == [("a", 0, 50), ("b", 50, 90), ("c", 90, 120)]


@pytest.mark.feature("T18")
def test_frames_without_an_object_are_skipped() -> None:
    objects = [made("a", (3, 5)), made("b", (8, 9)), made("c", (20, 21))]
    assert [name for name, *_ in covered(objects)] == ["a", "b", "c"]


@pytest.mark.feature("T18")
def test_the_object_that_reaches_farthest_is_chosen() -> None:
    parts = [made("a", (0, 5)), made("b", (5, 9)), made("merged", (0, 9)), made("c", (9, 10))]
    assert covered(parts) == [("merged", 0, 90), ("c", 90, 100)]


@pytest.mark.feature("T18")
def test_the_later_upload_of_the_same_frames_is_chosen() -> None:
    for objects in (
        [made("failed", (0, 5), created_at=1), made("redone", (0, 5), created_at=2)],
        [made("redone", (0, 5), created_at=2), made("failed", (0, 5), created_at=1)],
    ):
        assert covered(objects) == [("redone", 0, 50)]


@pytest.mark.feature("T18")
def test_an_object_covers_only_offsets_that_no_earlier_one_covers() -> None:
    base = Snapshot(Head(uploaded_frame=9), [made("a", (0, 5)), made("b", (5, 9))], 0)
    assert covered([made("merged", (0, 12))], base) == [("merged", 90, 120)]
    longer = [made("failed", (0, 7)), made("a", (0, 5)), made("b", (5, 9))]
    assert covered(longer) == [("failed", 0, 70), ("b", 70, 90)]


@pytest.mark.feature("T18")
def test_objects_that_end_before_the_snapshot_are_ignored() -> None:
    base = Snapshot(Head(uploaded_frame=9), [made("merged", (0, 9))], 0)
    assert covered([made("a", (0, 5)), made("b", (5, 9)), made("c", (9, 10))], base) == [
        ("c", 90, 100)
    ]


@pytest.mark.feature("T18", "T26")
def test_uploads_of_a_deposed_owner_after_its_time_are_ignored() -> None:
    objects = [
        made("old", (0, 5), epoch=3),
        made("zombie", (5, 20), epoch=3),
        made("zombie too", (20, 30), epoch=3),
        made("new", (5, 9), (1000, 1050), epoch=7),
        made("new too", (9, 11), (1050, 1060), epoch=7),
    ]
    wanted = [("old", 0, 50), ("new", 1000, 1050), ("new too", 1050, 1060)]
    assert covered(objects) == wanted
    # Even if the first frames of the new owner made no object.
    later = [*objects[:3], made("new", (7, 9), (1000, 1050), epoch=7), objects[4]]
    assert covered(later) == wanted
    # Even if its snapshot exists, but none of its messages was uploaded yet.
    base = Snapshot(Head(uploaded_frame=5, epoch=7), [made("old", (0, 5), epoch=3)], 0)
    assert covered(objects[:3], base) == []


@pytest.mark.feature("T18")
def test_an_object_merged_from_several_owners_replaces_all_inputs() -> None:
    objects = [
        made("a", (0, 5), epoch=3),
        made("b", (5, 9), epoch=7),
        made("ab", (0, 9), epoch=7),
        made("c", (9, 10), epoch=8),
    ]
    assert covered(objects) == [("ab", 0, 90), ("c", 90, 100)]


def test_an_object_with_nothing_new_is_left_out() -> None:
    base = Snapshot(Head(uploaded_frame=5), [made("a", (0, 5))], 0)
    assert covered([made("again", (4, 6), (40, 50))], base) == []


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(0, 8),
    st.data(),
)
def test_a_rebuild_distinguishes_uploads_merges_and_failures(
    lengths: list[int], known: int, data: st.DataObject
) -> None:
    """Every offset is covered once, with any other objects in the bucket."""
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    starts = [0, *ends]
    parts = [made(f"part-{n}", (starts[n], ends[n]), created_at=n) for n in range(len(ends))]
    known = min(known, len(parts))
    base = Snapshot(Head(uploaded_frame=starts[known]), parts[:known], 0)
    garbage = []
    for n in range(data.draw(st.integers(0, 4))):
        first = data.draw(st.sampled_from(range(len(parts))))
        last = data.draw(st.sampled_from(range(first, len(parts))))
        garbage.append(made(f"merged-{n}", (starts[first], ends[last]), created_at=100 + n))
    chosen = covered(data.draw(st.permutations([*parts, *garbage])), base)
    offsets = [n for _, first, next_ in chosen for n in range(first, next_)]
    assert offsets == list(range(starts[known] * 10, ends[-1] * 10))


# -- the rebuilt manifest


@pytest.mark.feature("T18")
def test_a_rebuilt_manifest_has_the_snapshot_and_the_later_objects_behind_it() -> None:
    head = Head(
        topic="a/b/c",
        next_sequence=40,
        uploaded_frame=9,
        starts={0: 3},
        deletes={0: b"d"},
        transactions={"app": (1, {0: (5, 6)})},
        reserved=95,
        epoch=1,
        lineage="l",
        durability="cloud",
        change="x",
    )
    base = Snapshot(head, [entry(PartitionRange(0, 0, 90), sequence=31, object_id="m")], 77)
    later = [made("c", (9, 10)), made("d", (12, 13))]
    found = snapshot.rebuilt(base, Head(), later)
    assert [(e.sequence, e.object_id) for e in found.entries] == [(31, "m"), (40, "c"), (41, "d")]
    assert found.head == Head(
        topic="a/b/c",
        next_sequence=42,
        uploaded_frame=13,
        starts={0: 3},
        deletes={0: b"d"},
        transactions={"app": (1, {0: (5, 6)})},
        reserved=130,
        epoch=1,
        lineage="l",
        durability="cloud",
        change="x",
    )
    assert found.created_us == 77


@pytest.mark.feature("T18")
def test_without_a_snapshot_the_objects_alone_are_the_manifest() -> None:
    found = snapshot.rebuilt(None, Head(topic="a/b/c"), [made("a", (0, 5)), made("b", (6, 7))])
    assert [e.object_id for e in found.entries] == ["a", "b"]
    assert found.head == Head(topic="a/b/c", next_sequence=2, uploaded_frame=7, reserved=70)


def test_with_nothing_later_the_snapshot_is_the_manifest() -> None:
    base = Snapshot(Head(uploaded_frame=9, reserved=500), [entry(PartitionRange(0, 0, 90))], 7)
    found = snapshot.rebuilt(base, Head(), [])
    assert found == Snapshot(Head(uploaded_frame=9, reserved=500, next_sequence=1), base.entries, 7)
