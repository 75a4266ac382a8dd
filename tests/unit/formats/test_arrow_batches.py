"""What an owner answers in Arrow is the batches it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from penstock.formats import arrow_batches, arrow_stream
from penstock.formats.api import FetchError
from penstock.formats.arrow_batches import Answer
from penstock.model.batch import ENVELOPE, Batch, concat
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.unit.formats.contents import HIGH, LOW, NOON, NULLABLE, SCALARS, raw, typed

NOTE = b'{"_tag":"success","topic":"t","partition_value":null,"start_offset":0,"end_offset":1}'


def answer(batches: Sequence[Batch], schema: pa.Schema | None = None, note: bytes = NOTE) -> bytes:
    """As the HTTP door writes it."""
    told = ENVELOPE if schema is None else pa.schema([*list(ENVELOPE)[:3], *schema])
    return arrow_stream.write(told, [batch.to_arrow() for batch in batches], note)


def rows(batch: Batch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_arrow().to_pylist()
    return found


@pytest.mark.parametrize(
    "batch",
    [
        raw(7, [b"a"]),
        raw(0, [b"", b"x" * 1000], partition=9),
        raw(3, [b"a", b"b", b"c"], headers=[b"", b"NATS/1.0\r\nk: v\r\n\r\n", b""]),
        raw(5, [b"a"] * 6).without(BitMap64([6, 9])),
        Batch(
            PartitionId(0),
            Offset(2),
            2,
            Microseconds(NOON),
            Columns(b"s", pa.array([b"1", b"2"], pa.binary())),
        ),
    ],
)
def test_raw_messages_are_read_back(batch: Batch) -> None:
    error, found = arrow_batches.read(answer([batch]), None)
    assert error is None
    (again,) = found
    assert isinstance(again.content, Columns)
    assert again.offsets().tolist() == batch.offsets().tolist()
    assert [_plain(row) for row in rows(again)] == [_plain(row) for row in rows(batch)]
    assert again.next_offset == batch.offsets()[-1] + 1
    assert rows(again.starting_at(Offset(again.next_offset - 1))) == rows(again)[-1:]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """No headers and empty ones mean the same."""
    return row | {"headers": row["headers"] or None}


def test_rows_of_every_type_are_read_back_under_the_topics_schema() -> None:
    nothing = tuple(None for _ in LOW)
    batch = typed(4, [LOW, HIGH, nothing], NULLABLE).without(BitMap64([5]))
    (again,) = arrow_batches.read(answer([batch], NULLABLE), NULLABLE).batches
    assert isinstance(again.content, pa.RecordBatch)
    assert again.content.schema.equals(NULLABLE, check_metadata=True)
    assert rows(again) == rows(batch)
    assert again.offsets().tolist() == [4, 6]


def test_several_batches_follow_one_another_and_empty_ones_are_left_out() -> None:
    batches = [raw(0, [b"a", b"b"]), raw(2, []), raw(2, [b"c"]), raw(9, [b"d"])]
    found = arrow_batches.read(answer(batches), None).batches
    assert [batch.offsets().tolist() for batch in found] == [[0, 1], [2], [9]]
    joined = concat(found[:2])
    assert joined.offsets().tolist() == [0, 1, 2]


def test_no_messages_are_no_batches() -> None:
    assert arrow_batches.read(answer([]), None) == Answer(None, [])


def test_an_error_is_told() -> None:
    note = msgspec.json.encode(FetchError("t", None, "topic t does not exist"))
    body = arrow_stream.write(pa.schema([]), [], note)
    assert arrow_batches.read(body, None) == Answer("topic t does not exist", [])


@pytest.mark.parametrize(
    ("body", "schema"),
    [
        (b"", None),
        (b"{}", None),
        (answer([raw(0, [b"a"])])[:-40], None),
        (answer([raw(0, [b"a"])], note=b"{"), None),
        (answer([raw(0, [b"a"])], note=b"{}"), None),
        (answer([raw(0, [b"a"])]), NULLABLE),
        (answer([typed(0, [LOW])], SCALARS), None),
        (arrow_stream.write(pa.schema([]), [], b"[]"), None),
    ],
)
def test_anything_else_is_no_answer(body: bytes, schema: pa.Schema | None) -> None:
    with pytest.raises(FormatError, match="not the answer to a fetch"):
        arrow_batches.read(body, schema)
