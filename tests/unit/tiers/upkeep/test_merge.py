from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.formats import objects as form
from penstock.formats.objects import ObjectFacts
from penstock.host.shared_memory import shared_memory
from penstock.log import Collected, Cursor
from penstock.metadata import OPERATIONS_MAX
from penstock.model.batch import Batch
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import Gap, ObjectEntry, new_entry
from penstock.tiers.settings import TierSettings
from penstock.tiers.upkeep import merge
from penstock.tiers.upkeep.merge import MergeLimits, MergeRules
from tests.broker.storage import entry
from tests.unit.formats.contents import HIGH, LOW, NULLABLE, raw, typed
from tests.unit.tiers.upload.building import Built, build

TOPIC = TopicName("a", "b", "c")
NOTHING = Deletions({}, {})
SETTINGS = TierSettings(object_bytes_max=1000, object_seconds_max=100, merge_objects_min=4)
LIMITS = MergeLimits()


def no_gap(gap: PartitionRange) -> bool:
    return False


def small(count: int, first: int = 0, size: int = 10) -> list[ObjectEntry]:
    """Adjacent entries of ten offsets each."""
    return [
        entry(PartitionRange(0, n * 10, n * 10 + 10), sequence=n, size=size, raw_size=size)
        for n in range(first, first + count)
    ]


def chosen(
    entries: Sequence[ObjectEntry],
    now_us: int = 0,
    gaps: Any = no_gap,
    limits: MergeLimits = LIMITS,
) -> list[int]:
    return [
        e.sequence
        for e in merge.choose_run(entries, MergeRules(SETTINGS, gaps, limits=limits), now_us)
    ]


@pytest.mark.feature("T12")
def test_adjacent_objects_are_merged_once_they_are_enough_or_the_topic_is_quiet() -> None:
    late = 100_000_001
    assert [chosen(small(n)) for n in (0, 1, 3, 4, 9)] == [[], [], [], [*range(4)], [*range(9)]]
    assert [chosen(small(n), late) for n in (1, 2, 3)] == [[], [0, 1], [0, 1, 2]]
    assert chosen(small(3), late - 1) == []
    young = msgspec.structs.replace(small(3)[2], created_at=1)
    assert chosen([*small(2), young], late) == []


@pytest.mark.feature("T12")
def test_a_large_object_is_not_rewritten_for_a_few_small_ones() -> None:
    large = entry(PartitionRange(0, 0, 10), sequence=0, size=400)
    assert chosen([large, *small(3, first=1)]) == []
    assert chosen([large, *small(4, first=1)]) == [1, 2, 3, 4]
    assert chosen([large, *small(4, first=1)], 100_000_001) == [1, 2, 3, 4]
    assert chosen([large, entry(PartitionRange(0, 10, 20), sequence=1, size=10)], 100_000_001) == []


@pytest.mark.feature("T12")
def test_small_objects_between_larger_ones_are_merged_with_them() -> None:
    sizes = [100, 1, 100, 1, 100, 1, 100]
    entries = [
        msgspec.structs.replace(e, size=size)
        for e, size in zip(small(len(sizes)), sizes, strict=True)
    ]
    assert chosen(entries[:-1]) == []
    assert chosen(entries) == [*range(7)]


class Simulated:
    """A manifest that grows by uploads and shrinks by merges, with the bytes written."""

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self.entries: list[ObjectEntry] = []
        self.uploaded = self.rewritten = self.most = self._next = 0

    def upload(self, size: int) -> None:
        span = PartitionRange(0, self._next, self._next + 1)
        self.entries.append(entry(span, sequence=self._next, size=size, raw_size=size))
        self._next += 1
        self.uploaded += size
        while run := merge.choose_run(self.entries, MergeRules(self._settings, no_gap), 0):
            self._merge(run)
        few = [e for e in self.entries if e.size < self._settings.object_bytes_max // 2]
        self.most = max(self.most, len(few))

    def _merge(self, run: list[ObjectEntry]) -> None:
        size = sum(e.size for e in run)
        assert size <= self._settings.object_bytes_max
        at = self.entries.index(run[0])
        ranges = [PartitionRange(0, run[0].ranges[0].first, run[-1].ranges[0].next)]
        new = entry(*ranges, sequence=run[0].sequence, size=size, raw_size=size)
        self.entries[at : at + len(run)] = [new]
        self.rewritten += size


@pytest.mark.feature("T12")
@pytest.mark.parametrize("spread", [1, 3, 50], ids=["alike", "various", "very various"])
def test_a_byte_is_rewritten_a_few_times_however_long_small_uploads_go_on(spread: int) -> None:
    chance = random.Random(3)
    world = Simulated(TierSettings())
    for _ in range(4000):
        world.upload(int(100_000 * spread ** chance.uniform(-1, 1)))
    assert world.rewritten <= 4 * world.uploaded
    assert world.most <= 100
    large = [e for e in world.entries if e.size >= 64 << 20]
    assert len(world.entries) - len(large) <= 40
    assert sum(e.size for e in large) >= world.uploaded * 0.5


@pytest.mark.feature("T12")
def test_objects_are_merged_in_the_order_of_the_manifest_whatever_order_they_come_in() -> None:
    assert chosen(small(5)[::-1]) == [0, 1, 2, 3, 4]


@pytest.mark.feature("T12")
def test_a_merged_object_stays_below_its_limit_and_large_ones_are_left_alone() -> None:
    # At most 1000 bytes; objects of half that size are large.
    assert chosen(small(9, size=200)) == [0, 1, 2, 3, 4]
    assert chosen(small(9, size=201)) == [0, 1, 2, 3]
    assert chosen(small(9, size=500)) == []
    large = [msgspec.structs.replace(small(7)[3], size=500)]
    assert chosen(small(1) + large + small(3, first=4)) == []
    assert chosen(small(1) + large + small(4, first=4)) == [4, 5, 6, 7]


@pytest.mark.feature("T12")
def test_two_objects_are_merged_if_no_more_can_be_added() -> None:
    large = [msgspec.structs.replace(small(7)[2], size=500)]
    assert chosen(small(2)) == []
    assert chosen(small(2) + large) == [0, 1]
    linked = [msgspec.structs.replace(small(7)[2], linked=True)]
    assert chosen(small(2) + linked) == [0, 1]
    assert chosen(small(3, size=400)) == [0, 1], "the third would not fit"


def test_a_merge_is_bounded_in_memory() -> None:
    assert chosen(small(9), limits=MergeLimits(raw_bytes_max=50)) == [0, 1, 2, 3, 4]


@pytest.mark.feature("T12")
def test_the_row_groups_loaded_for_a_sorted_merge_fit_into_memory() -> None:
    limits = MergeLimits(loaded_bytes_max=43, row_group_bytes=8)
    mixed = [
        msgspec.structs.replace(
            e, ranges=[*e.ranges, PartitionRange(1, e.sequence, e.sequence + 1)]
        )
        for e in small(9)
    ]
    assert chosen(mixed, limits=limits) == [0, 1, 2, 3, 4]
    assert chosen(small(9), limits=limits) == [*range(9)]
    assert chosen([*small(5), *mixed[5:]], limits=limits) == [0, 1, 2, 3, 4]
    tiny = [msgspec.structs.replace(e, raw_size=4) for e in mixed]
    assert chosen(tiny, limits=limits) == [*range(9)]


def test_a_merge_fits_into_one_transaction() -> None:
    run = merge.choose_run(small(500, size=1), MergeRules(SETTINGS, no_gap), 0)
    # Head, new entry, session, old delete vector; and every old object out of the list, into trash.
    assert 4 <= len(run) < 500
    assert 4 + 2 * len(run) <= OPERATIONS_MAX


def test_objects_of_different_schemas_are_not_merged() -> None:
    entries = [msgspec.structs.replace(e, schema_crc32c=e.sequence // 4) for e in small(10)]
    assert chosen(entries) == [0, 1, 2, 3]
    assert chosen(entries[3:]) == [4, 5, 6, 7]


@pytest.mark.feature("T12")
def test_objects_are_merged_across_recorded_gaps_and_never_across_damage() -> None:
    entries = small(1) + small(5, first=4)
    assert chosen(entries) == [4, 5, 6, 7, 8]
    asked: list[PartitionRange] = []

    def recorded(gap: PartitionRange) -> bool:
        asked.append(gap)
        return True

    assert chosen(entries, gaps=recorded) == [0, 4, 5, 6, 7, 8]
    assert asked == [PartitionRange(0, 10, 40)]


@pytest.mark.feature("T12", "T26")
def test_nothing_is_merged_across_a_gap_that_a_returning_disk_may_fill() -> None:
    entries = small(8)
    gap = Gap("lineage", frame=0, next=40, sequence=4)

    def across(*gaps: Gap) -> list[int]:
        run = merge.choose_run(entries, MergeRules(SETTINGS, lambda _: True, (), gaps), 100_000_001)
        return [e.sequence for e in run]

    assert across() == [*range(8)]
    assert across(gap) == [*range(4)]
    assert across(gap, msgspec.structs.replace(gap, sequence=1)) == [1, 2, 3]
    assert across(msgspec.structs.replace(gap, sequence=8)) == [*range(8)]


def test_a_partition_that_appears_later_is_no_gap() -> None:
    entries = [
        *small(3),
        entry(PartitionRange(0, 30, 40), PartitionRange(5, 1000, 1001), sequence=3, size=10),
    ]
    assert chosen(entries) == [0, 1, 2, 3]


# -- the merged object


def built(batches: Sequence[Batch], sequence: int, deletions: Deletions = NOTHING) -> Built:
    """An object as the uploader makes it, five frames each."""
    collected = Collected(Cursor(sequence * 5 + 5, 0, 0))
    for batch in batches:
        collected.batches.append(batch)
    facts = (sequence, sequence, f"u{sequence}", "fs", sequence)
    made = build(TOPIC, sequence * 5, collected, deletions, *facts)
    assert made is not None
    return made


def merged(parts: Sequence[Built], deletions: Deletions = NOTHING) -> Built:
    entries, bodies = [part.entry for part in parts], [part.data for part in parts]
    with shared_memory() as memory:
        entry = merge.merge_objects(TOPIC, entries, bodies, deletions, 99, "new", memory)
        return Built.of(entry, memory)


def rows(made: Built) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(pa.BufferReader(made.data)).to_pylist()
    return found


def facts(made: Built) -> ObjectFacts:
    return form.facts_of(pq.read_metadata(pa.BufferReader(made.data)))


@pytest.mark.feature("T12", "T18")
def test_a_merged_object_has_all_rows_by_partition_and_offset_and_describes_itself() -> None:
    parts = [
        built([raw(0, [b"a", b"b"]), raw(7, [b"c"], partition=3)], 0),
        built([raw(2, [b"d"]), raw(0, [b"e"], partition=1)], 1),
        built([raw(3, [b"f"]), raw(8, [b"g", b"h"], partition=3)], 2),
    ]
    new = merged(parts)
    assert [(r["partition"], r["offset"], r["payload"]) for r in rows(new)] == [
        *((0, 0, b"a"), (0, 1, b"b"), (0, 2, b"d"), (0, 3, b"f")),
        (1, 0, b"e"),
        *((3, 7, b"c"), (3, 8, b"g"), (3, 9, b"h")),
    ]
    ranges = [PartitionRange(0, 0, 4), PartitionRange(1, 0, 1), PartitionRange(3, 7, 10)]
    all_rows = [row for part in parts for row in rows(part)]
    stamps = sorted(row["timestamp"].timestamp() * 1e6 for row in all_rows)
    assert facts(new) == ObjectFacts(
        version=1,
        topic="a/b/c",
        ranges=ranges,
        rows=8,
        first_timestamp=int(stamps[0]),
        last_timestamp=int(stamps[-1]),
        epoch=2,
        first_frame=0,
        next_frame=15,
        typed=False,
    )
    key = form.object_key(TOPIC, 99, ranges, "new")
    size = new.entry.raw_size
    assert new.entry == new_entry(key, facts(new), new.data, 99, "fs", 0, size)
    assert size > 0


def test_rows_of_one_partition_are_merged_a_row_group_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 6)
    parts = [built([raw(n * 3, [b"%d" % i for i in range(3)])], n) for n in range(5)]
    writes: list[int] = []
    write = form.ObjectWriter.write

    def watched(self: form.ObjectWriter, table: pa.Table) -> None:
        writes.append(table.num_rows)
        write(self, table)

    monkeypatch.setattr(form.ObjectWriter, "write", watched)
    new = merged(parts, Deletions({0: 2}, {}))
    assert writes == [1, 3, 3, 3, 3]
    metadata = pq.read_metadata(pa.BufferReader(new.data))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [6, 1, 6]
    assert [r["offset"] for r in rows(new)] == list(range(2, 15))
    assert facts(new).rows == 13


@pytest.mark.feature("T35")
def test_deleted_and_purged_rows_are_not_in_the_merged_object_but_it_answers_for_them() -> None:
    parts = [
        built([raw(0, [b"x"] * 4), raw(0, [b"y"] * 4, partition=1)], 0),
        built([raw(4, [b"z"] * 4)], 1),
    ]
    new = merged(parts, Deletions({1: 3}, {0: BitMap64([0, 5, 7])}))
    assert [(r["partition"], r["offset"]) for r in rows(new)] == [
        *((0, 1), (0, 2), (0, 3), (0, 4), (0, 6)),
        (1, 3),
    ]
    assert (facts(new).ranges, facts(new).rows) == (
        [PartitionRange(0, 0, 8), PartitionRange(1, 0, 4)],
        6,
    )


@pytest.mark.feature("T35")
def test_objects_without_live_messages_are_merged() -> None:
    everything = Deletions({}, {0: BitMap64(range(10))})
    parts = [
        built([raw(0, [b"x"] * 5)], 0, everything),
        built([raw(5, [b"y"] * 5)], 1),
        built([raw(10, [b"z"])], 2),
    ]
    assert [r["offset"] for r in rows(merged(parts))] == [5, 6, 7, 8, 9, 10]
    assert [r["offset"] for r in rows(merged(parts, everything))] == [10]
    assert rows(merged(parts[:2], everything)) == []


def test_rows_of_a_typed_topic_are_merged_in_their_types() -> None:
    nulls = (None,) * len(LOW)
    parts = [built([typed(0, [LOW, nulls], NULLABLE)], 0), built([typed(2, [HIGH], NULLABLE)], 1)]
    new = merged(parts)
    whole = built([typed(0, [LOW, nulls, HIGH], NULLABLE)], 0)
    assert rows(new) == rows(whole)
    assert (facts(new).typed, facts(new).schema) == (True, facts(whole).schema)
    assert new.entry.schema_crc32c == whole.entry.schema_crc32c != 0


@pytest.mark.feature("T16")
def test_a_damaged_page_stops_the_merge() -> None:
    parts = [
        built([raw(0, [b"payload %d" % i for i in range(20)])], 0),
        built([raw(20, [b"x"])], 1),
    ]
    data = bytearray(parts[0].data)
    data[len(data) // 4] ^= 1
    parts[0] = parts[0]._replace(data=bytes(data))
    with pytest.raises((OSError, pa.ArrowException)):
        merged(parts)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1),
        min_size=2,
        max_size=4,
    ),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 20))),
)
def test_merging_keeps_every_live_row_of_any_neighbours(
    objects: list[list[tuple[int, int]]], dead: set[tuple[int, int]]
) -> None:
    nexts = dict.fromkeys(range(3), 0)
    parts, live = [], []
    for sequence, batches in enumerate(objects):
        made = []
        for partition, count in batches:
            first = nexts[partition]
            nexts[partition] += count
            made.append(raw(first, [b"%d" % n for n in range(first, first + count)], partition))
            live += [
                (partition, n) for n in range(first, first + count) if (partition, n) not in dead
            ]
        parts.append(built(made, sequence))
    bitmaps = {p: BitMap64([n for q, n in dead if q == p]) for p in range(3)}
    new = merged(parts, Deletions({}, bitmaps))
    assert [(r["partition"], r["offset"], r["payload"]) for r in rows(new)] == [
        (p, n, b"%d" % n) for p, n in sorted(live)
    ]
