import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import json_rows
from penstock.formats.json_rows import Fixed
from penstock.model.errors import FormatError
from penstock.model.schema import TYPES, field, schema


def _schema(*columns: str) -> pa.Schema:
    return schema(map(field, columns))


def _refused(columns: pa.Schema, data: object) -> str:
    encoded = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(FormatError) as caught:
        json_rows.rows(columns, encoded)
    return str(caught.value)


INTEGERS = [name for name in TYPES if "int" in name]


@pytest.mark.feature("F25")
@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_accepted_within_their_range_only(kind: str) -> None:
    bits, signed = int(kind.strip("uint")), not kind.startswith("u")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    columns = _schema(f"n:{kind}")
    batch = json_rows.rows(columns, json.dumps([{"n": low}, {"n": high}]).encode())
    assert batch.column("n").to_pylist() == [low, high]
    for outside in (low - 1, high + 1, 1 << 80):
        sentence = _refused(columns, [{"n": low}, {"n": outside}])
        assert sentence.startswith("data[1].n: Expected `int` ")


@pytest.mark.feature("F25")
def test_every_type_and_any_column_name() -> None:
    columns = _schema(
        *(f"{kind} col.\u00fc:{kind}" for kind in TYPES),
        "class:int8",
        "null:string?",
        "__init:bool?"[2:],
    )
    values = {
        **{f"{kind} col.\u00fc": 1 for kind in TYPES if "int" in kind},
        "float32 col.\u00fc": 1.5,
        "float64 col.\u00fc": 0.1,
        "string col.\u00fc": '\u00fc\n"',
        "bool col.\u00fc": True,
        "binary col.\u00fc": "AAH/",
        "class": 2,
    }
    (row,) = json_rows.rows(columns, json.dumps([values]).encode()).to_pylist()
    assert row == {**values, "binary col.\u00fc": b"\x00\x01\xff", "null": None, "init": None}


@pytest.mark.feature("F25")
@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("a:int64", True, "data[1].a: Expected `int`, got `bool`"),
        ("a:int64", 1.0, "data[1].a: Expected `int`, got `float`"),
        ("a:int64", "1", "data[1].a: Expected `int`, got `str`"),
        ("a:int64", None, "data[1].a: Expected `int`, got `null`"),
        ("a:int64?", "x", "data[1].a: Expected `int | null`, got `str`"),
        ("a:bool", 1, "data[1].a: Expected `bool`, got `int`"),
        ("a:string", 1, "data[1].a: Expected `str`, got `int`"),
        ("a:binary", "a", "data[1].a: Invalid base64 encoded string"),
        ("a:float32", 1e39, "data[1].a: Expected `float` <= 3.4028234663852886e+38"),
        ("a:float64", "NaN", "data[1].a: Expected `float`, got `str`"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_row_and_column(
    column: str, value: object, sentence: str
) -> None:
    fine = {"a": {"bool": True, "string": "", "binary": ""}.get(column[2:], 1)}
    assert _refused(_schema(column), [fine, {"a": value}]) == sentence


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([{}], "data[0]: Object missing required field `a`"),
        ([{"a": 1, "b": 2}], "data[0]: Object contains unknown field `b`"),
        ([{"a": 1}, [1]], "data[1]: Expected `object`, got `array`"),
        ({"a": 1}, "Expected `array`, got `object`"),
        (b'[{"a": 1e999}]', "data[0].a: Number out of range"),
        (b'[{"a": 1}', "Input data was truncated"),
        (b'[{"a": \xff}]', "JSON is malformed: invalid character (byte 7)"),
        (b"[" * 100_000, "data[0]: Expected `object`, got `array`"),
        (b'[{"a":' + b"[" * 100_000, "data[0].a: Expected `int`, got `array`"),
    ],
)
def test_json_that_is_no_list_of_rows_is_refused(data: object, sentence: str) -> None:
    assert _refused(_schema("a:int8"), data) == sentence


@pytest.mark.feature("F25")
@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'[{"a":1,"s":"x"},{"a":1,"s":"x","a":1}]', "data[1].a"),
        (b'[{"a" :1,"s":"x","a" : 2}]', "data[0].a"),
        (b'[{"s":"x","s":"y"},{"a":1}]', "data[0].s"),
        (b'[{"a":null,"a":1},{}]', "data[0].a"),
        (b'[{"a":null,"a":null},{}]', "data[0].a"),
        (b'[{"s":"\\u003a:","s":":"},{}]', "data[0].s"),
        (b'[{"a":1,"\\u0061":1,"s":"\\u003A"},{}]', "data[0].a"),
        (b'[{"s":"::","a":1,"a":2,"x:y":1}]', "data[0].a"),
        (b'[{"x:y":1,"x\\u003ay":2}]', "data[0].x:y"),
        (b'[{"x\\u003ay":1,"x\\u003ay":2}]', "data[0].x:y"),
    ],
)
def test_a_row_with_a_key_twice_is_refused(data: bytes, place: str) -> None:
    columns = _schema("a:int64?", "s:string?", "x:y:int8?")
    assert _refused(columns, data) == f"{place}: the key is there twice"


@pytest.mark.feature("F25")
def test_colons_within_texts_and_names_are_no_keys() -> None:
    columns = _schema("a:int64?", "s:string?", "x:y:int8?", "b:binary?")
    data = rb'[{"s":":\u003a\":","x:y":1},{},{"a":null,"s":":"},{"s":null,"a":1,"b":"AA=="}]'
    empty = {"a": None, "s": None, "x:y": None, "b": None}
    assert json_rows.rows(columns, data).to_pylist() == [
        {**empty, "s": '::":', "x:y": 1},
        empty,
        {**empty, "s": ":"},
        {**empty, "a": 1, "b": b"\0"},
    ]


def test_text_that_is_not_utf8_is_refused() -> None:
    assert "can't decode byte 0xff" in _refused(_schema("a:string"), b'[{"a": "\xff"}]')


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    deep = b'[{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}]"
    assert _refused(_schema("a:int8?"), deep) in (
        "data is nested too deeply",
        "data[0]: Object contains unknown field `b`",
    )


def test_rows_that_leave_out_too_many_columns_do_not_fill_the_memory() -> None:
    columns = _schema(*(f"c{n}:int64?" for n in range(1000)))
    data = b"[" + b"{}," * 20_000 + b"{}]"
    assert _refused(columns, data) == (
        "20001 rows of 1000 columns: at most 16777216 values fit one batch"
    )


def test_the_partition_column_is_not_in_the_rows_and_has_one_value() -> None:
    columns = _schema("a:int8", "region:string", "b:int8?")
    data = b'[{"a": 1, "b": 2}, {"a": 3}]'
    batch = json_rows.rows(columns, data, Fixed("region", "eu"))
    assert batch.schema == columns
    assert batch.to_pylist() == [
        {"a": 1, "region": "eu", "b": 2},
        {"a": 3, "region": "eu", "b": None},
    ]
    with pytest.raises(FormatError, match="unknown field `region`"):
        json_rows.rows(columns, b'[{"a": 1, "region": "eu"}]', Fixed("region", "eu"))


def test_a_partition_column_may_be_all_there_is() -> None:
    batch = json_rows.rows(_schema("region:string"), b"[{}, {}]", Fixed("region", "eu"))
    assert batch.to_pylist() == [{"region": "eu"}] * 2


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.integers(-(1 << 63), (1 << 63) - 1),
            "f": st.floats(allow_nan=False, allow_infinity=False),
            "s": st.text(),
            "t": st.booleans(),
        },
        optional={"u": st.one_of(st.none(), st.integers(0, (1 << 64) - 1))},
    ),
    min_size=1,
)


@given(ROWS)
def test_rows_agree_with_the_standard_json_parser(rows: list[dict[str, Any]]) -> None:
    columns = _schema("i:int64", "f:float64", "s:string", "t:bool", "u:uint64?")
    batch = json_rows.rows(columns, json.dumps(rows).encode())
    batch.validate(full=True)
    assert batch.to_pylist() == [{"u": None, **row} for row in rows]
