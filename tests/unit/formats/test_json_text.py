import base64
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import json_rows, json_text
from penstock.model.schema import TYPES, field, schema

NARROW = 'float32 "col"\\'
EITHER_WAY = pytest.mark.parametrize("few", [0, json_text.FEW], ids=["by kernels", "row by row"])
COLUMNS = schema(field(f'{kind} "col"\\:{kind}?') for kind in TYPES)


def _values(kind: str) -> st.SearchStrategy[Any]:
    if "int" in kind:
        bits = int(kind.strip("uint"))
        low, high = (
            (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
        )
        return st.integers(low, high)
    return {
        "float32": st.floats(width=32),
        "float64": st.floats(),
        "string": st.text(),
        "bool": st.booleans(),
        "binary": st.binary(),
    }[kind]


ROWS = st.lists(
    st.fixed_dictionaries(
        {f'{kind} "col"\\': st.one_of(st.none(), _values(kind)) for kind in TYPES}
    ),
    max_size=6,
)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _written(batch: pa.RecordBatch) -> Any:
    text = b"".join(json_text.text(batch))
    assert text[-1:] in (b"", b",")
    return json.loads(b"[" + text.removesuffix(b",") + b"]")


@given(ROWS)
def test_both_ways_to_write_rows_give_equal_bytes(rows: list[dict[str, Any]]) -> None:
    batch, written = pa.RecordBatch.from_pylist(rows, COLUMNS), set()
    with pytest.MonkeyPatch.context() as patched:
        for few in (0, json_text.FEW):
            patched.setattr(json_text, "FEW", few)
            written.add(b"".join(json_text.text(batch)))
            bare = b"".join(json_text.text(batch.select([])))
            assert bare == b"{}," * len(rows)
    assert len(written) == 1


@EITHER_WAY
@given(ROWS, st.integers(0, 2))
def test_rows_agree_with_the_standard_json_parser(
    few: int, rows: list[dict[str, Any]], skipped: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_text, "FEW", few)
        _check_text(pa.RecordBatch.from_pylist(rows, COLUMNS).slice(skipped), rows[skipped:])


def _check_text(batch: pa.RecordBatch, rows: list[dict[str, Any]]) -> None:
    expected = [{k: _plain(v) for k, v in row.items()} for row in rows]
    written = _written(batch)
    for row in written:
        # As short as tells this one from all others of 32 bits.
        row[NARROW] = None if row[NARROW] is None else float(np.float32(row[NARROW]))
    assert written == json.loads(json.dumps(expected))
    for row in written:
        assert isinstance(row['bool "col"\\'], bool | None)
        assert not isinstance(row['uint64 "col"\\'], float)


def test_float32_is_shown_as_short_as_it_can_be() -> None:
    batch = pa.record_batch([pa.array([0.1, 16777216.0, 3.4e38], pa.float32())], ["f"])
    assert b"".join(json_text.text(batch)) == b'{"f":0.1},{"f":16777216},{"f":3.4e+38},'


@EITHER_WAY
@pytest.mark.parametrize("rare", ["", "\x00", "\x1f"])
def test_control_characters_are_escaped_with_and_without_the_rare_ones(
    rare: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "FEW", few)
    texts = ['"\\\n\r\t', None, f"\u2028\x7f\U0001f600{rare}", ""]
    assert _written(pa.record_batch([pa.array(texts)], ["s"])) == [{"s": text} for text in texts]


def test_only_the_bytes_of_a_slice_decide_how_it_is_escaped() -> None:
    texts = pa.array(["\x00", "plain", "\x00"]).slice(1, 1)
    assert json_text.text_pieces(texts) == ['"', texts, '"']


def test_long_text_comes_in_pieces_that_are_one_list() -> None:
    numbers = pa.array(range(300_000))
    batch = pa.record_batch([numbers, numbers.cast(pa.string())], ["n", "s"])
    pieces = list(json_text.text(batch))
    assert len(pieces) > 1
    assert max(map(len, pieces)) < 2 * json_text.PIECE_BYTES
    text = b"".join(pieces)
    assert json.loads(b"[" + text[:-1] + b"]") == batch.to_pylist()


def test_a_row_larger_than_a_piece_is_a_piece() -> None:
    batch = pa.record_batch([pa.array(["x" * json_text.PIECE_BYTES] * 2)], ["s"])
    assert [len(piece) for piece in json_text.text(batch)] == [json_text.PIECE_BYTES + 9] * 2


def test_encoded_rows_are_decoded_again() -> None:
    columns = schema(map(field, ["a:int64", "b:binary?", "c:float64?", "d:string"]))
    rows = [{"a": 1, "b": b"\xff", "c": 0.1, "d": '"'}, {"a": 2, "b": None, "c": None, "d": ""}]
    batch = pa.RecordBatch.from_pylist(rows, columns)
    text = b"[" + b"".join(json_text.text(batch))[:-1] + b"]"
    assert json_rows.rows(columns, text) == batch
