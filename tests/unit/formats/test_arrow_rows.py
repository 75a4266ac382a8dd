from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import arrow_rows, header_block
from penstock.formats.json_rows import Fixed
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.limits import RUN_BYTES_MAX
from penstock.model.schema import TYPES, field, schema

BLOCK = header_block.encode([("k", "v")])


def _schema(*columns: str) -> pa.Schema:
    return schema(map(field, columns))


def _refused(table: pa.Table, *columns: str, fixed: Fixed | None = None) -> str:
    with pytest.raises(FormatError) as caught:
        arrow_rows.typed(table, _schema(*columns), fixed)
    return str(caught.value)


@pytest.mark.feature("F24")
@pytest.mark.parametrize(
    ("given_type", "kind", "values"),
    [
        (pa.int64(), "int8", [-128, 127, None]),
        (pa.uint8(), "int64", [255]),
        (pa.int32(), "float64", [1]),
        (pa.float32(), "float64", [0.5]),
        (pa.large_string(), "string", ["a", None]),
        (pa.string_view(), "string", ["a", "long enough not to be inline"]),
        (pa.binary_view(), "binary", [b"a", None]),
        (pa.large_binary(), "binary", [b"a"]),
        (pa.binary(2), "binary", [b"ab"]),
        (pa.string(), "binary", [b"ab"]),
        (pa.null(), "int8", [None, None]),
        (pa.bool_(), "bool", [True]),
    ],
)
def test_a_column_of_another_width_is_converted(
    given_type: pa.DataType, kind: str, values: list[Any]
) -> None:
    sent = pa.array(values, pa.binary() if kind == "binary" else given_type)
    table = pa.table({"a": sent.cast(given_type)})
    batch = arrow_rows.typed(table, _schema(f"a:{kind}?"))
    assert batch.schema == _schema(f"a:{kind}?")
    assert batch.column("a").to_pylist() == values


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["1"]), "int64"),
        (pa.array([1.0]), "int64"),
        (pa.array([True]), "int64"),
        (pa.array([1]), "bool"),
        (pa.array([1]), "string"),
        (pa.array([b"a"]), "string"),
        (pa.array([[1]]), "int64"),
        (pa.array(["a"]).dictionary_encode(), "string"),
    ],
)
def test_a_column_of_another_meaning_is_refused(array: pa.Array, kind: str) -> None:
    stored_type = TYPES[kind]
    assert _refused(pa.table({"a": array}), f"a:{kind}") == (
        f"column 'a' is of type {array.type}, which does not fit {stored_type}"
    )


def test_a_value_that_does_not_fit_is_refused() -> None:
    assert _refused(pa.table({"a": [128]}), "a:int8") == (
        "column 'a': Integer value 128 not in range: -128 to 127"
    )
    assert _refused(pa.table({"a": [1, None]}), "a:int64") == (
        "column 'a' must not be null or left out"
    )
    assert _refused(pa.table({"a": [1]}), "a:int64", "b:int64") == (
        "column 'b' must not be null or left out"
    )
    assert _refused(pa.table({"a": [1], "x": [1]}), "a:int64", "b:int8?") == (
        "there is no column 'x' in this topic; known: a, b"
    )
    twice = pa.table([pa.array([1]), pa.array([1])], names=["a", "a"])
    assert _refused(twice, "a:int64") == "a column is there twice"


def test_columns_come_in_the_order_of_the_topic_with_nulls_where_they_are_left_out() -> None:
    table = pa.table({"b": [1, 2], "a": ["x", "y"]})
    batch = arrow_rows.typed(table, _schema("a:string", "c:int8?", "b:int64"))
    assert batch.to_pylist() == [{"a": "x", "c": None, "b": 1}, {"a": "y", "c": None, "b": 2}]


def test_a_partition_column_may_be_left_out_or_agree() -> None:
    columns, fixed = _schema("a:int64", "r:string"), Fixed("r", "eu")
    expected = [{"a": 1, "r": "eu"}]
    assert arrow_rows.typed(pa.table({"a": [1]}), columns, fixed).to_pylist() == expected
    sent = pa.table({"a": [1], "r": ["eu"]})
    assert arrow_rows.typed(sent, columns, fixed).to_pylist() == expected
    assert _refused(pa.table({"a": [1], "r": ["us"]}), "a:int64", "r:string", fixed=fixed) == (
        "column 'r' has other values than that of the partition"
    )


def test_views_that_share_their_bytes_do_not_fill_the_memory() -> None:
    one = pa.array(["x" * (1 << 20)], pa.string_view()).buffers()
    many = pa.py_buffer(one[1].to_pybytes()[:16] * 200)
    views = pa.Array.from_buffers(pa.string_view(), 200, [None, many, *one[2:]])
    assert _refused(pa.table({"a": views}), "a:string") == (
        f"column 'a' has more than {RUN_BYTES_MAX} bytes"
    )


def test_rows_without_bytes_do_not_fill_the_memory() -> None:
    table = pa.table({"a": pa.nulls(arrow_rows.ROWS_MAX + 1)})
    assert _refused(table, "a:int8?") == "16777217 rows in one push, the limit is 16777216"
    table = pa.table({"a": pa.nulls(arrow_rows.ROWS_MAX)})
    assert _refused(table, "a:int8?", "b:int8?", "c:int8?") == (
        "2 columns are left out: push fewer rows at a time"
    )


def test_too_many_bytes_are_refused() -> None:
    half = pa.array([bytes(RUN_BYTES_MAX // 2)])
    assert _refused(pa.table({"a": half, "b": half}), "a:binary", "b:binary").endswith(
        f"bytes in one push, the limit is {RUN_BYTES_MAX}"
    )


@pytest.mark.feature("F24")
def test_raw_messages_have_payloads_and_optional_columns() -> None:
    payloads = pa.array([b"1", b"2"])
    assert arrow_rows.raw(pa.table({"payload": ["1", "2"]}), "t") == Columns(b"t", payloads)
    sent = pa.table({"payload": payloads, "subject": ["a.b", None], "headers": [None, BLOCK]})
    assert arrow_rows.raw(sent, "t") == Columns(
        pa.array([b"a.b", b"t"]), payloads, pa.array([b"", BLOCK])
    )
    same = pa.table({"payload": payloads, "subject": ["a", "a"], "headers": [None, b""]})
    assert arrow_rows.raw(same, "t") == Columns(b"a", payloads)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"subject": ["a"]}, "column 'payload' is missing"),
        ({"payload": [None]}, "column 'payload' must not be null"),
        (
            {"payload": ["a"], "key": [1]},
            "there is no column 'key' in this topic; known: payload, ",
        ),
        ({"payload": [1]}, "column 'payload' is of type int64, which does not fit binary"),
        ({"payload": ["a"], "subject": ["a b"]}, "column 'subject': 'a b' is not a subject"),
        ({"payload": ["a"] * 2, "subject": ["a", "b.>"]}, "column 'subject': 'b.>' is not a subj"),
        ({"payload": ["a"], "subject": ["x" * 4097]}, "column 'subject': 'xxx"),
        (
            {"payload": ["a"], "headers": [b"k: v"]},
            "column 'headers': a value is not a header block",
        ),
    ],
)
def test_invalid_raw_messages_are_refused(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FormatError) as caught:
        arrow_rows.raw(pa.table(table), "t")
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("subject", ["a", "a.b", "a*", "*a.>b", "\u00fc.\u2028"])
def test_subjects_are_those_a_message_may_carry(subject: str) -> None:
    assert arrow_rows.raw(pa.table({"payload": ["a"], "subject": [subject]}), "t").subject == (
        subject.encode()
    )


def test_messages_of_one_partition_have_its_subject() -> None:
    table = pa.table({"payload": ["a"], "subject": ["b"]})
    assert arrow_rows.raw(table, "b", only=True).subject == b"b"
    with pytest.raises(FormatError, match="other values than that of the partition, 'c'"):
        arrow_rows.raw(table, "c", only=True)


@given(st.lists(st.sampled_from(["eu", "us", "as"]), min_size=1))
def test_rows_are_divided_by_value_and_keep_their_order(regions: list[str]) -> None:
    rows = [{"n": number, "r": region} for number, region in enumerate(regions)]
    batch = pa.RecordBatch.from_pylist(rows)
    parts = list(arrow_rows.divided(batch, batch.column("r")))
    assert [value for value, _ in parts] == list(dict.fromkeys(regions))
    for value, part in parts:
        assert part.to_pylist() == [row for row in rows if row["r"] == value]


def test_messages_are_divided_too() -> None:
    content = Columns(pa.array([b"a", b"b", b"a"]), pa.array([b"1", b"2", b"3"]))
    parts = dict(arrow_rows.divided(content, content.subjects()))
    assert parts[b"a"].payload.to_pylist() == [b"1", b"3"]
    assert parts[b"b"].payload.to_pylist() == [b"2"]


def test_rows_of_too_many_partitions_are_refused() -> None:
    batch = pa.record_batch([pa.array(range(arrow_rows.PARTITIONS_MAX + 1))], ["n"])
    with pytest.raises(FormatError, match="rows of 10001 partitions in one push"):
        list(arrow_rows.divided(batch, batch.column("n")))
