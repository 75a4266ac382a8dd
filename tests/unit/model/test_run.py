"""Size and validation of runs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid
from penstock.model.limits import PARTITION_ID_MAX, RUN_BYTES_MAX, RUN_MESSAGES_MAX
from penstock.model.run import ColumnRun, Run
from penstock.model.units import PartitionId


def binary(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


NOT_UTF8 = "a subject is not UTF-8: 'utf-8' codec can't decode byte"


def test_a_run_measures_the_bytes_of_all_its_columns() -> None:
    run = Run(b"sub", [b"12345", b""], [b"", b"1234"], timestamps=[1, 2])
    assert (run.count, run.measure()) == (2, 3 + 5 + 4)
    spaces_between_subjects = 1
    assert Run([b"s", b"ub"], [b"1", b"2"]).measure() == 3 + 2 + spaces_between_subjects


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (Run([b"a"], [b"1", b"2"]), "a run has 2 payloads but 1 subjects"),
        (Run(b"a", [b"1", b"2"], [b""]), "a run has 2 payloads but 1 headers"),
        (Run(b"a", [b"1"], timestamps=[1, 2]), "a run has 1 payloads but 2 timestamps"),
        (
            Run(b"a\xff", [b"1"]),
            f"{NOT_UTF8} 0xff in position 1: invalid start byte",
        ),
        (
            Run([b"\xc3", b"\xa9"], [b"1", b"2"]),
            f"{NOT_UTF8} 0xc3 in position 0: invalid continuation byte",
        ),
        (Run(b"a", []), f"a run must have 1 to {RUN_MESSAGES_MAX} messages, this one has 0"),
        (
            Run(b"a", [b""] * (RUN_MESSAGES_MAX + 1)),
            f"a run must have 1 to {RUN_MESSAGES_MAX} messages, this one has 1048577",
        ),
        (
            Run(b"a", [bytes(RUN_BYTES_MAX)]),
            f"a run may have {RUN_BYTES_MAX} bytes, this one has 134217729",
        ),
        (
            Run(b"a", [b""], partition=PartitionId(-1)),
            f"partition -1 is not within 0 to {PARTITION_ID_MAX}",
        ),
        (
            Run(b"a", [b""], partition=PartitionId(PARTITION_ID_MAX + 1)),
            f"partition 2147483648 is not within 0 to {PARTITION_ID_MAX}",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_breaks_a_rule_is_refused_by_name(run: Run, sentence: str) -> None:
    with pytest.raises(RunInvalid) as caught:
        run.measure()
    assert str(caught.value) == sentence


def test_columns_are_a_run_too() -> None:
    columns = Columns(b"sub", binary([b"12", b"3"]))
    raw = ColumnRun(columns)
    rows = ColumnRun(pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}))
    assert (raw.count, raw.measure()) == (2, 3 + columns.payload.nbytes)
    assert (rows.count, rows.measure()) == (3, 24)


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (
            ColumnRun(Columns(binary([b"a"]), binary([b"1", b"2"]))),
            "a run has 2 payloads but 1 subjects",
        ),
        (
            ColumnRun(Columns(b"a", binary([b"1", b"2"]), binary([b""]))),
            "a run has 2 payloads but 1 headers",
        ),
        (
            ColumnRun(Columns(binary([b"a", b"\xff"]), binary([b"1", b"2"]))),
            "a subject is not UTF-8: Invalid UTF8 payload",
        ),
        (ColumnRun(Columns(b"a", pa.array([b"1", None], pa.binary()))), "a payload is null"),
        (
            ColumnRun(Columns(b"a", binary([b"1", b"2"])), timestamps=pa.array([1], pa.int64())),
            "a run has 2 payloads but 1 timestamps",
        ),
        (
            ColumnRun(pa.record_batch({"n": [1, 2]}), timestamps=pa.array([1], pa.int64())),
            "a run has 2 payloads but 1 timestamps",
        ),
        (
            ColumnRun(pa.record_batch({"n": pa.array([], pa.int64())})),
            f"a run must have 1 to {RUN_MESSAGES_MAX} messages, this one has 0",
        ),
        (
            ColumnRun(pa.record_batch({"n": pa.nulls(9)})),
            "9 rows in 0 bytes: a row must take a bit or more",
        ),
        (
            ColumnRun(Columns(b"a", binary([b""])), PartitionId(-1)),
            f"partition -1 is not within 0 to {PARTITION_ID_MAX}",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_that_break_a_rule_are_refused_by_name(run: ColumnRun, sentence: str) -> None:
    with pytest.raises(RunInvalid) as caught:
        run.measure()
    assert str(caught.value) == sentence


def test_rows_of_one_bit_each_are_accepted() -> None:
    assert ColumnRun(pa.record_batch({"n": pa.array([True] * 17)})).measure() == 3
