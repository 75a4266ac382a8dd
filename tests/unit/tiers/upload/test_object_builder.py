from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from pyroaring import BitMap64

from penstock.formats import objects as form
from penstock.formats.bodies import LinkBody
from penstock.formats.objects import ObjectFacts
from penstock.host.shared_memory import SharedFile, shared_memory
from penstock.log import Collected, Cursor, LinkFrame
from penstock.model.batch import Batch
from penstock.model.columns import content_bytes
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.upload.object_builder import ObjectBuilder
from tests.unit.formats.contents import LOW, NOON, SCALARS, raw, typed
from tests.unit.tiers.upload.building import Built, build

TOPIC = TopicName("a", "b", "c")
NOTHING = Deletions({}, {})


@pytest.fixture
def memory() -> Iterator[SharedFile]:
    with shared_memory() as place:
        yield place


def built(batches: Sequence[Batch], deletions: Deletions | None = None) -> Built | None:
    return build(TOPIC, 11, collected(17, batches), deletions or NOTHING, 5, 1234, "u", "s3", 3)


def collected(next_frame: int, batches: Sequence[Batch]) -> Collected:
    found = Collected(Cursor(next_frame, 0, 0))
    found.batches += batches
    return found


def rows(made: Built) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(pa.BufferReader(made.data)).to_pylist()
    return found


@pytest.mark.feature("T12", "T17", "T18")
def test_batches_in_any_order_become_one_object_sorted_by_partition_and_offset() -> None:
    made = built(
        [
            raw(5, [b"a"]),
            raw(90, [b"b"], 2),
            raw(6, [b"c", b"d"]),
            raw(0, [b"e"], 1),
            raw(91, [b"f"], 2),
        ]
    )
    assert made is not None
    assert [(r["partition"], r["offset"], r["payload"]) for r in rows(made)] == [
        *((0, 5, b"a"), (0, 6, b"c"), (0, 7, b"d"), (1, 0, b"e"), (2, 90, b"b"), (2, 91, b"f")),
    ]
    ranges = [PartitionRange(0, 5, 8), PartitionRange(1, 0, 1), PartitionRange(2, 90, 92)]
    assert form.facts_of(pq.read_metadata(pa.BufferReader(made.data))) == ObjectFacts(
        version=1,
        topic="a/b/c",
        ranges=ranges,
        rows=6,
        first_timestamp=NOON,
        last_timestamp=NOON + 91,
        epoch=5,
        first_frame=11,
        next_frame=17,
        typed=False,
    )
    data = made.data
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert made.entry == ObjectEntry(
        object_id="topics/a/b/c/data-00000000000001234-p0-2-0-91-u.parquet",
        start_offset=0,
        end_offset=91,
        size=len(data),
        etag=None,
        created_at=1234,
        completed=True,
        upload_id=None,
        backend="s3",
        sequence=3,
        ranges=ranges,
        rows=6,
        crc32c=crc32c(data),
        footer_bytes=footer,
        footer_crc32c=crc32c(data[-footer:]),
        first_timestamp=NOON,
        last_timestamp=NOON + 91,
        epoch=5,
        first_frame=11,
        next_frame=17,
        raw_size=made.entry.raw_size,
    )
    assert made.entry.raw_size > 0


@pytest.mark.feature("T35")
def test_an_object_leaves_deleted_messages_out_and_covers_their_offsets() -> None:
    deletions = Deletions({1: 2}, {0: BitMap64([0, 3])})
    made = built([raw(0, [b"x"] * 4), raw(0, [b"y"] * 3, 1), raw(3, [b"z"], 1)], deletions)
    assert made is not None
    assert [(r["partition"], r["offset"]) for r in rows(made)] == [(0, 1), (0, 2), (1, 2), (1, 3)]
    assert (made.entry.rows, made.entry.ranges) == (
        4,
        [PartitionRange(0, 0, 4), PartitionRange(1, 0, 4)],
    )


@pytest.mark.feature("T35")
def test_an_object_without_live_messages_still_covers_its_offsets() -> None:
    made = built([raw(7, [b"x"] * 2)], Deletions({0: 9}, {}))
    assert made is not None
    assert rows(made) == []
    assert (made.entry.rows, made.entry.ranges) == (0, [PartitionRange(0, 7, 9)])


def test_rows_of_a_typed_topic_carry_their_schema_in_the_types_it_has() -> None:
    made = built([typed(0, [LOW])])
    assert made is not None
    facts = form.facts_of(pq.read_metadata(pa.BufferReader(made.data)))
    assert facts.typed
    assert pa.ipc.read_schema(pa.py_buffer(facts.schema)) == SCALARS
    assert made.entry.schema_crc32c == crc32c(facts.schema)


def test_frames_without_messages_make_no_object() -> None:
    assert built([]) is None


# -- objects that grow


def recorded(gap: PartitionRange) -> bool:
    return gap == PartitionRange(0, 4, 6)


@pytest.mark.feature("T12", "T14")
def test_an_object_that_is_built_in_steps_has_full_row_groups(
    monkeypatch: pytest.MonkeyPatch, memory: SharedFile
) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 3)
    building = ObjectBuilder(TOPIC, 3, memory)
    parts = [[raw(0, [b"a", b"b"])], [raw(2, [b"c"]), raw(3, [b"d"])], [], [raw(6, [b"e"])]]
    for number, part in enumerate(parts, 4):
        more = collected(number, part)
        assert building.can_add(more, recorded)
        building.add(more, Deletions({}, {0: BitMap64([2])}))
    entry = building.finish(5, 1234, "u", "s3", 3)
    assert entry is not None
    made = Built.of(entry, memory)
    assert [r["payload"] for r in rows(made)] == [b"a", b"b", b"d", b"e"]
    metadata = pq.read_metadata(pa.BufferReader(made.data))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [3, 1]
    assert form.facts_of(metadata).ranges == made.entry.ranges == [PartitionRange(0, 0, 7)]
    assert (made.entry.first_frame, made.entry.next_frame, made.entry.rows) == (3, 7, 4)
    assert (made.entry.first_timestamp, made.entry.last_timestamp) == (NOON, NOON + 6)
    one_by_one = sum(content_bytes(batch.content) for part in parts for batch in part)
    assert 0 < made.entry.raw_size <= one_by_one


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ([raw(4, [b"x"], 1)], "another partition"),
        ([raw(4, [b"x"]), raw(0, [b"x"], 1)], "a second partition"),
        ([typed(4, [LOW])], "another kind"),
        ([raw(5, [b"x"])], "a gap that nobody recorded"),
    ],
)
def test_messages_that_do_not_fit_an_object_are_left_for_the_next_one(
    more: Sequence[Batch], why: str, memory: SharedFile
) -> None:
    building = ObjectBuilder(TOPIC, 0, memory)
    building.add(collected(1, [raw(0, [b"a"] * 4)]), NOTHING)
    assert not building.can_add(collected(2, more), recorded), why
    assert building.can_add(collected(2, [raw(4, [b"x"])]), recorded)
    assert building.can_add(collected(2, [raw(6, [b"x"])]), recorded)


def test_links_are_no_part_of_an_object(memory: SharedFile) -> None:
    linked = collected(2, [])
    linked.links.append(LinkFrame(0, LinkBody("app", 1, [])))
    assert not ObjectBuilder(TOPIC, 0, memory).can_add(linked, recorded)


def test_rows_of_a_typed_topic_grow_as_long_as_they_have_one_schema(memory: SharedFile) -> None:
    building = ObjectBuilder(TOPIC, 0, memory)
    building.add(collected(1, [typed(0, [LOW])]), NOTHING)
    assert building.can_add(collected(2, [typed(1, [LOW])]), recorded)
    assert not building.can_add(collected(2, [raw(1, [b"x"])]), recorded)
    building.add(collected(2, [typed(1, [LOW])]), NOTHING)
    entry = building.finish(5, 1234, "u", "s3", 3)
    assert entry is not None
    made = Built.of(entry, memory)
    assert len(rows(made)) == 2
    assert form.facts_of(pq.read_metadata(pa.BufferReader(made.data))).typed
