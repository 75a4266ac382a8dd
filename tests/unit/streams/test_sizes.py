"""The sizes of messages; the sums of streams are tested in test_limits.py."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats import packed
from penstock.model import schema
from penstock.model.columns import Columns
from penstock.model.run import ColumnRun, Run
from penstock.streams.sizes import Measured, SizeCounting, Sizes

MOST = 100


def sizes_of(counting: SizeCounting, run: Run | ColumnRun) -> list[int]:
    sizes, total = counting.count(run)
    each: list[int] = np.broadcast_to(sizes, run.count).tolist()
    assert total == sum(each)
    return each


def test_the_newest_sizes_are_known_single_and_in_sum() -> None:
    sizes = Sizes(10)
    sizes.add(3, [1, 2, 3])
    sizes.add(1, 4)
    assert (sizes.base, sizes.stop, len(sizes)) == (10, 14, 4)
    assert [sizes.get(offset) for offset in (9, 10, 13, 14)] == [None, 1, 4, None]
    assert sizes.total(10, 14) == 10
    assert sizes.total(11, 13) == 5
    assert sizes.total(12, 12) == 0
    assert sizes.total(9, 12) is None


def test_the_oldest_sizes_are_known_once_they_are_set() -> None:
    sizes = Sizes(10)
    sizes.add(1, [100])
    sizes.set_oldest(4, np.arange(1, 7))
    assert sizes.total(4, 11) == 121
    assert sizes.total(6, 10) == 18
    assert sizes.total(3, 10) is None
    sizes.set_oldest(4, np.arange(1, 4))
    assert [sizes.get(offset) for offset in (4, 6, 7, 10)] == [1, 3, None, 100]
    assert sizes.total(4, 7) == 6
    assert sizes.total(4, 8) is None


def test_sizes_of_deleted_messages_are_forgotten() -> None:
    sizes = Sizes(10)
    sizes.set_oldest(4, np.arange(1, 7))
    sizes.forget_before(6)
    sizes.forget_before(5)
    assert (sizes.get(5), sizes.get(6), sizes.total(6, 10)) == (None, 3, 18)
    sizes.forget_before(50)
    assert sizes.get(9) is None


def test_forgotten_new_sizes_extend_the_oldest_up_to_a_limit() -> None:
    sizes = Sizes(0)
    sizes.add(10, range(10))
    sizes.forget(6, 4)
    assert (sizes.base, len(sizes)) == (6, 4)
    assert [sizes.get(offset) for offset in range(10)] == [0, 1, 2, 3, None, None, 6, 7, 8, 9]
    sizes.forget(2, 8)
    assert [sizes.get(offset) for offset in range(8)] == [0, 1, 2, 3, None, None, None, None]


@pytest.mark.parametrize(
    ("in_memory", "expected"),
    [(False, [30 + 5 + 12, 30 + 1 + 4 + 10]), (True, [16 + 5 + 12, 16 + 1 + 10])],
)
def test_a_message_counts_its_parts_and_an_overhead(in_memory: bool, expected: list[int]) -> None:
    counting = SizeCounting(in_memory, b"topic")
    subjects, payloads, headers = [b"world", b"x"], [b"Hello world!", b""], [b"", b"0123456789"]
    assert sizes_of(counting, Run(subjects, payloads, headers)) == expected
    columns = packed.columns(subjects, payloads, headers)
    assert sizes_of(counting, ColumnRun(columns)) == expected
    shared = Run(b"world", [b"Hello world!"] * 2)
    assert sizes_of(counting, shared) == [expected[0]] * 2
    columns = packed.columns(b"world", [b"Hello world!"] * 2, None)
    assert sizes_of(counting, ColumnRun(columns)) == [expected[0]] * 2


def test_null_headers_count_no_bytes() -> None:
    headers = pa.array([None, b"", b"0123456789"], pa.binary())
    columns = Columns(b"s", pa.array([b"", b"", b""], pa.binary()), headers)
    assert sizes_of(SizeCounting(False, b""), ColumnRun(columns)) == [31, 31, 31 + 4 + 10]


def test_sums_do_not_overflow() -> None:
    sizes, large = Sizes(0), (1 << 32) - 1
    sizes.add(1000, large)
    assert (sizes.total(0, 1000), sizes.get(999)) == (1000 * large, large)


def test_many_runs_are_added_in_order() -> None:
    sizes = Sizes(7)
    for number in range(100):
        sizes.add(3, number)
        sizes.add(2, [number, 1])
    assert (sizes.stop, sizes.total(7, 507)) == (507, 4 * sum(range(100)) + 100)
    assert [sizes.get(7 + 5 * number) for number in range(100)] == list(range(100))


def test_rows_of_a_typed_topic_share_the_bytes_of_their_run() -> None:
    content = pa.record_batch([[1, 2]], schema=schema.schema([schema.field("n:int64")]))
    counting = SizeCounting(False, b"topic")
    assert sizes_of(counting, ColumnRun(content)) == [30 + 5 + 8] * 2
    assert counting.subjects(ColumnRun(content)) == [b"topic"] * 2


def test_sizes_are_removed_at_the_start_while_others_are_added() -> None:
    sizes = Sizes(0)
    for number in range(50):
        sizes.add(10, range(number, number + 10))
        sizes.forget(8, 5)
        sizes.forget_before(sizes.base - 2)
    assert (sizes.base, len(sizes)) == (400, 100)
    assert [sizes.get(offset) for offset in range(400, 500)] == [
        number + place for number in range(40, 50) for place in range(10)
    ]


def test_every_message_has_its_subject() -> None:
    counting = SizeCounting(False, b"topic")
    assert counting.subjects(Run(b"s", [b"", b""])) == [b"s", b"s"]
    assert counting.subjects(Run([b"s", b"t"], [b"", b""])) == [b"s", b"t"]
    assert counting.subjects(ColumnRun(packed.columns(b"s", [b"", b""], None))) == [b"s", b"s"]


def test_measured_sizes_are_zero_where_there_is_no_message() -> None:
    measured = Measured(np.array([5, 7, 1 << 62]), np.array([50, 70, 1]))
    assert measured.first(0) == 5
    assert measured.dense(5, 9).tolist() == [50, 0, 70, 0]
    assert measured.dense(6, 7).tolist() == [0]
