"""Batches are converted to plain lists."""

from __future__ import annotations

import pyarrow as pa

from penstock.formats import packed
from penstock.model import schema
from penstock.model.batch import Batch
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.streams.rows import NO_ROWS, Rows, joined, row_of, rows_of


def raw(
    first: int,
    subjects: bytes | list[bytes],
    payloads: list[bytes],
    headers: list[bytes] | None = None,
) -> Batch:
    content = packed.columns(subjects, payloads, headers)
    return Batch(PartitionId(0), Offset(first), len(payloads), Microseconds(5), content)


def test_sequences_are_offsets_plus_one() -> None:
    assert Rows([4, 6], [b"s", b"t"], None, [b"a", b"b"], [0, 0]).seqs == [5, 7]
    assert Rows(range(3, 5), [], None, [], []).seqs == range(4, 6)


def test_one_row_of_a_batch_equals_the_row_among_all() -> None:
    stamped = raw(7, b"s", [b"a", b"b", b"c"])
    stamped.timestamps = pa.array([1, 2, 3], pa.int64())
    typed = Batch(
        PartitionId(0),
        Offset(7),
        3,
        Microseconds(5),
        pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}),
    )
    headed = raw(7, [b"s", b"t", b"u"], [b"a", b"b", b"c"], [b"", b"H", b"I"])
    for batch in (raw(7, b"s", [b"a", b"b", b"c"]), headed, stamped, typed):
        for place in range(3):
            row = row_of(batch, 7 + place, b"t")
            assert row == rows_of(batch, b"t").part(place, place + 1)


def test_a_batch_becomes_lists() -> None:
    assert rows_of(raw(7, b"s", [b"a", b"b"]), b"t") == Rows(
        range(7, 9), [b"s", b"s"], None, [b"a", b"b"], [5, 5]
    )
    assert rows_of(raw(7, [b"s", b"t"], [b"a", b"b"], [b"", b"H"]), b"t") == Rows(
        range(7, 9), [b"s", b"t"], [b"", b"H"], [b"a", b"b"], [5, 5]
    )


def test_deleted_messages_are_left_out_and_the_others_keep_their_offsets() -> None:
    from pyroaring import BitMap64

    batch = raw(10, [b"a", b"b", b"c", b"d"], [b"0", b"1", b"2", b"3"]).without(BitMap64([11, 12]))
    rows = rows_of(batch, b"t")
    assert list(rows.offsets) == [10, 13]
    assert list(rows.subjects) == [b"a", b"d"]
    assert list(rows.payloads) == [b"0", b"3"]


def test_messages_retain_their_own_timestamps() -> None:
    content = packed.columns(b"s", [b"a", b"b"], None)
    stamps = pa.array([7, 9], pa.int64())
    batch = Batch(PartitionId(0), Offset(0), 2, Microseconds(7), content, stamps)
    assert list(rows_of(batch, b"t").timestamps) == [7, 9]


def test_rows_of_a_typed_topic_are_json_under_its_subject() -> None:
    fields = schema.schema([schema.field("n:int32"), schema.field("t:string?")])
    content = pa.record_batch([[1, 2, 3], ["a,b", None, '"x"}']], schema=fields)
    batch = Batch(PartitionId(0), Offset(3), 3, Microseconds(5), content)
    rows = rows_of(batch, b"topic")
    assert rows == Rows(
        range(3, 6),
        [b"topic"] * 3,
        None,
        [b'{"n":1,"t":"a,b"}', b'{"n":2,"t":null}', b'{"n":3,"t":"\\"x\\"}"}'],
        [5, 5, 5],
    )


ROWS = Rows([1, 2, 5], [b"a", b"b", b"c"], [b"", b"H", b""], [b"1", b"2", b"3"], [7, 8, 9])


def test_parts_and_selections_of_rows() -> None:
    assert ROWS.part(1, 3) == Rows([2, 5], [b"b", b"c"], [b"H", b""], [b"2", b"3"], [8, 9])
    assert ROWS.take([2, 0]) == Rows([5, 1], [b"c", b"a"], [b"", b""], [b"3", b"1"], [9, 7])
    plain = Rows(range(3), [b"a"] * 3, None, [b"x"] * 3, [1] * 3)
    assert plain.part(1, 2) == Rows(range(1, 2), [b"a"], None, [b"x"], [1])
    assert plain.take([1]) == Rows([1], [b"a"], None, [b"x"], [1])
    assert (ROWS.count, NO_ROWS.count) == (3, 0)


def test_rows_that_follow_one_another_are_joined() -> None:
    one = Rows(range(2), [b"a"] * 2, None, [b"0", b"1"], [1, 1])
    other = Rows(range(2, 3), [b"b"], [b"H"], [b"2"], [2])
    assert joined([one]) is one
    assert joined([one, other]) == Rows(
        range(3), [b"a", b"a", b"b"], [b"", b"", b"H"], [b"0", b"1", b"2"], [1, 1, 2]
    )
    assert joined([one, ROWS.part(2, 3)]).offsets == [0, 1, 5]
    assert joined([one, Rows(range(2, 3), [b"b"], None, [b"2"], [2])]).headers is None
