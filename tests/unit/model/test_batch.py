from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.model.batch import BATCH_OVERHEAD_BYTES, ENVELOPE, Batch, coalesce, concat
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Offset, OffsetRange, PartitionId

Row = tuple[int, int, int, bytes, bytes, bytes]
"""partition, offset, timestamp, subject, headers (none is empty), payload"""


def binary(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def rows(batch: Batch) -> list[Row]:
    """The messages of a batch, read through its public methods."""
    columns = [column.to_pylist() for column in batch.to_arrow().columns]
    stamps = batch.to_arrow().column("timestamp").view(pa.int64()).to_pylist()
    return [
        (partition, offset, stamp, subject, headers or b"", payload)
        for partition, offset, stamp, subject, headers, payload in zip(
            columns[0], columns[1], stamps, *columns[3:], strict=True
        )
    ]


@st.composite
def messages(draw: st.DrawFn, first: int | None = None) -> tuple[Batch, list[Row]]:
    """A batch of raw messages with its expected rows."""
    count = draw(st.integers(1, 6))
    first = draw(st.integers(0, 1 << 40)) if first is None else first
    column = st.lists(st.binary(max_size=4), min_size=count, max_size=count)
    payloads, subjects = draw(column), draw(st.one_of(st.binary(max_size=3), column))
    headers = draw(st.one_of(st.none(), column))
    stamp = draw(st.integers(0, 1 << 50))
    stamps = draw(st.one_of(st.none(), st.just([stamp + n for n in range(count)])))
    batch = Batch(
        PartitionId(7),
        Offset(first),
        count,
        Microseconds(stamp),
        Columns(
            subjects if isinstance(subjects, bytes) else binary(subjects),
            binary(payloads),
            None if headers is None else binary(headers),
        ),
        None if stamps is None else pa.array(stamps, pa.int64()),
    )
    expected = [
        (
            7,
            first + n,
            stamp if stamps is None else stamps[n],
            subjects if isinstance(subjects, bytes) else subjects[n],
            b"" if headers is None else headers[n],
            payloads[n],
        )
        for n in range(count)
    ]
    return batch, expected


def typed(first: int, values: list[int], name: str = "n") -> Batch:
    content = pa.record_batch({name: pa.array(values, pa.int64())})
    return Batch(PartitionId(0), Offset(first), len(values), Microseconds(5), content)


def test_a_range_counts_its_messages() -> None:
    assert OffsetRange(Offset(3), Offset(7)).messages == 4


# -- batches


@given(messages())
def test_a_batch_converts_to_rows_of_the_envelope(drawn: tuple[Batch, list[Row]]) -> None:
    batch, expected = drawn
    assert batch.to_arrow().schema == ENVELOPE
    assert rows(batch) == expected
    assert batch.next_offset == expected[-1][1] + 1
    assert (batch.first_timestamp, batch.last_timestamp) == (expected[0][2], expected[-1][2])
    assert batch.messages == batch.count == len(expected)
    assert batch.nbytes > BATCH_OVERHEAD_BYTES


@given(messages(), st.integers(-3, 6), st.integers(1, 6))
def test_a_part_of_a_batch_has_the_messages_of_its_offsets(
    drawn: tuple[Batch, list[Row]], skip: int, count: int
) -> None:
    batch, expected = drawn
    start = min(max(skip, 0), batch.count)
    tail = batch.starting_at(Offset(batch.first_offset + min(skip, batch.count)))
    assert rows(tail) == expected[start:]
    assert tail.next_offset == batch.next_offset
    assert rows(batch.limited_to(count)) == expected[:count]
    if start < batch.count:
        assert tail.first_timestamp == expected[start][2]


@given(messages(), st.sets(st.integers(0, 5)), st.integers(0, 5), st.integers(1, 6))
def test_the_order_of_cutting_and_deleting_does_not_matter(
    drawn: tuple[Batch, list[Row]], positions: set[int], start: int, count: int
) -> None:
    batch, expected = drawn
    deleted = BitMap64(batch.first_offset + position for position in positions)
    cut = Offset(batch.first_offset + min(start, batch.count))
    late = batch.without(deleted).starting_at(cut).limited_to(count)
    early = batch.starting_at(cut).limited_to(count).without(deleted)
    stop = min(cut + count, batch.next_offset)
    assert rows(late) == rows(early)
    assert rows(late) == [r for r in expected if cut <= r[1] < stop and r[1] not in deleted]
    assert (late.first_offset, late.next_offset) == (early.first_offset, early.next_offset)
    assert (late.first_offset, late.next_offset) == (cut, stop)


@given(messages(), st.sets(st.integers(0, 7)))
def test_deleted_messages_are_removed_and_their_offsets_remain_in_the_range(
    drawn: tuple[Batch, list[Row]], positions: set[int]
) -> None:
    batch, expected = drawn
    gone = {batch.first_offset + position for position in positions}
    live = [row for row in expected if row[1] not in gone]
    left = batch.without(BitMap64(gone))
    assert rows(left) == live
    assert (left.first_offset, left.count) == (batch.first_offset, batch.count)
    assert left.messages == len(live)
    assert left.offsets().tolist() == [row[1] for row in live]
    assert left.timestamp_column().to_pylist() == [row[2] for row in live]


def test_a_batch_without_deleted_messages_is_returned_as_it_is() -> None:
    batch = typed(10, [1, 2, 3])
    assert batch.without(BitMap64([9, 13])) is batch
    assert batch.starting_at(Offset(10)) is batch
    assert batch.starting_at(Offset(3)) is batch
    assert batch.limited_to(3) is batch


@given(messages(), st.data())
def test_first_messages_returns_the_requested_number_with_any_deletions(
    drawn: tuple[Batch, list[Row]], data: st.DataObject
) -> None:
    batch, expected = drawn
    gone = data.draw(st.sets(st.sampled_from([row[1] for row in expected])))
    left = [row for row in expected if row[1] not in gone]
    if left:
        count = data.draw(st.integers(1, len(left)))
        assert rows(batch.without(BitMap64(gone)).first_messages(count)) == left[:count]


def test_the_part_after_the_last_message_is_empty() -> None:
    columns = Columns(b"s", binary([b"a", b"b"]))
    stamps = pa.array([5, 6], pa.int64())
    batch = Batch(PartitionId(0), Offset(4), 2, Microseconds(5), columns, stamps)
    end = batch.starting_at(Offset(6))
    assert (end.first_offset, end.count, end.messages, rows(end)) == (6, 0, 0, [])


def test_rows_of_a_typed_topic_follow_partition_offset_and_timestamp() -> None:
    batch = typed(10, [1, 2, 3]).without(BitMap64([11]))
    assert batch.to_arrow().schema == pa.schema(
        [*(ENVELOPE.field(n) for n in range(3)), pa.field("n", pa.int64())]
    )
    stamps = batch.to_arrow().column("timestamp").view(pa.int64()).to_pylist()
    columns = batch.to_arrow().to_pydict()
    assert (columns["offset"], columns["n"], stamps) == ([10, 12], [1, 3], [5, 5])


@given(st.data())
def test_joined_batches_have_the_messages_of_their_parts(data: st.DataObject) -> None:
    batches: list[Batch] = []
    expected: list[Row] = []
    first = data.draw(st.integers(0, 100))
    for _ in range(data.draw(st.integers(1, 4))):
        batch, more = data.draw(messages(first))
        batches.append(batch)
        expected += more
        first = int(batch.next_offset)
    assert rows(concat(batches)) == expected
    deleted = BitMap64(data.draw(st.sets(st.integers(batches[0].first_offset, first))))
    live = [row for row in expected if row[1] not in deleted]
    assert rows(concat([batch.without(deleted) for batch in batches])) == live
    limit = data.draw(st.sampled_from([1, 1200, 1 << 20]))
    joined = coalesce(batches, limit)
    assert [row for batch in joined for row in rows(batch)] == expected
    assert all(len(b.content.payload) == b.count for b in joined if isinstance(b.content, Columns))


def test_small_neighbours_are_joined_up_to_the_limit_and_large_batches_are_not() -> None:
    batches = [typed(n, [n]) for n in range(4)]
    size = batches[0].nbytes
    assert [b.count for b in coalesce(batches, 2 * size)] == [2, 2]
    assert [b.count for b in coalesce(batches, size)] == [1, 1, 1, 1]
    assert coalesce(batches, size) == batches
    assert coalesce([], size) == []


def test_batches_of_different_kinds_are_not_joined() -> None:
    raw = Batch(PartitionId(0), Offset(1), 1, Microseconds(5), Columns(b"s", binary([b"x"])))
    batches = [typed(0, [0]), raw, typed(2, [2], "other"), typed(3, [3], "other")]
    joined = coalesce(batches, 1 << 20)
    assert [(b.first_offset, b.count) for b in joined] == [(0, 1), (1, 1), (2, 2)]


def test_rows_with_dictionaries_of_their_own_can_be_joined() -> None:
    def one(first: int, value: str) -> Batch:
        content = pa.record_batch({"k": pa.array([value]).dictionary_encode()})
        return Batch(PartitionId(0), Offset(first), 1, Microseconds(0), content)

    joined: Any = concat([one(0, "a"), one(1, "b")]).content
    assert joined.to_pydict() == {"k": ["a", "b"]}


def test_nbytes_is_the_memory_that_a_batch_keeps_alive() -> None:
    columns = Columns(b"sub", binary([b"x" * 1000, b"3"]), binary([b"", b"h"]))
    batch = Batch(PartitionId(0), Offset(0), 2, Microseconds(0), columns)
    messages, offsets = 3 + 1001 + 1, 2 * 4 * 3
    assert batch.nbytes >= BATCH_OVERHEAD_BYTES + messages + offsets
    assert batch.nbytes < BATCH_OVERHEAD_BYTES + messages + 10 * offsets
    assert batch.starting_at(Offset(1)).nbytes == batch.nbytes
