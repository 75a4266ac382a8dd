import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from penstock.client.rows import table_of
from penstock.model.errors import RunInvalid

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_rows_become_a_table_of_the_topic_s_columns() -> None:
    table = table_of(ROWS, SCHEMA)
    assert table.schema == SCHEMA
    assert table.to_pylist() == ROWS
    assert table_of({"id": 1}, SCHEMA).to_pylist() == [{"id": 1}]


def test_arrow_tables_and_data_frames_are_not_changed() -> None:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    assert table_of(table, SCHEMA) is table
    assert table_of(table.to_batches()[0], SCHEMA) == table
    columns = {"id": [1, 2], "name": ["a", "b"]}
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns)):
        assert table_of(frame, SCHEMA).to_pydict() == columns


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"id": 1, "nmae": "a"}], "row 0 has no such column: nmae"),
        ([{"id": 1}, 7], "row 1 is a int, not a mapping"),
        ([{"id": "x"}], "rows do not fit the topic's columns"),
        ([{"id": 1 << 70}], "rows do not fit the topic's columns"),
        (7, "cannot push a int"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: object, complaint: str) -> None:
    with pytest.raises(RunInvalid, match=complaint):
        table_of(rows, SCHEMA)


def test_payloads_become_messages() -> None:
    assert table_of([b"a", "é"], None).to_pylist() == [
        {"payload": b"a"},
        {"payload": "é".encode()},
    ]
    assert table_of("a", None).num_rows == 1


def test_messages_may_have_subjects_and_headers() -> None:
    message = {"payload": b"a", "subject": "s", "headers": [("k", "v")]}
    (row,) = table_of([message], None).to_pylist()
    assert row == {"subject": "s", "headers": b"NATS/1.0\r\nk: v\r\n\r\n", "payload": b"a"}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"payload": b"a", "subjekt": "s"}, "message 0 has no such field: subjekt"),
        ({"subject": "s"}, "message 0 needs a payload of bytes or text"),
        ({"payload": 7}, "message 0 needs a payload of bytes or text"),
        ({"payload": b"a", "subject": 7}, "messages do not fit"),
    ],
)
def test_messages_that_do_not_fit_are_refused(message: object, complaint: str) -> None:
    with pytest.raises(RunInvalid, match=complaint):
        table_of([message], None)
