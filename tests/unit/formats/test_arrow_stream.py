from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from penstock.formats import arrow_stream
from penstock.formats.api import FetchError
from penstock.formats.arrow_stream import FetchReplyBatches
from penstock.model.batch import ENVELOPE, Batch, concat
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.unit.formats.contents import HIGH, LOW, NOON, NULLABLE, SCALARS, raw, typed

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"]})


def _stream(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, table.schema, options=written) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.feature("F24")
def test_a_stream_is_read_back_with_its_note() -> None:
    data = arrow_stream.write(TABLE.schema, TABLE.to_batches(), b'{"x":1}')
    again = arrow_stream.read(data)
    assert again.equals(TABLE)
    assert again.schema.metadata == {b"penstock": b'{"x":1}'}


def test_a_stream_may_have_no_rows_and_no_columns() -> None:
    assert arrow_stream.read(arrow_stream.write(pa.schema([]), [], b"")).num_rows == 0


def test_several_batches_are_one_table() -> None:
    assert arrow_stream.read(_stream(pa.concat_tables([TABLE, TABLE]))).num_rows == 4


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_stream_is_refused_before_it_is_unpacked(compression: str) -> None:
    with pytest.raises(FormatError, match="compressed Arrow streams are not taken"):
        arrow_stream.read(_stream(TABLE, compression=compression))


def test_dictionaries_are_refused() -> None:
    table = pa.table({"a": pa.array(["x", "x"]).dictionary_encode()})
    with pytest.raises(FormatError, match="dictionary-encoded columns are not taken"):
        arrow_stream.read(_stream(table))


def test_bytes_that_are_not_a_stream_are_refused() -> None:
    whole = _stream(TABLE)
    for data in (b"", b"{}", b"\xff" * 100, whole[: len(whole) // 2], whole[8:]):
        with pytest.raises(FormatError, match="not a valid Arrow IPC stream"):
            arrow_stream.read(data)


def test_no_flipped_byte_of_a_stream_does_more_than_fail() -> None:
    whole = _stream(TABLE)
    for position in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(whole)
            data[position] ^= flip
            try:
                arrow_stream.read(bytes(data)).to_pylist()
            except FormatError:
                continue


def test_offsets_that_point_outside_are_refused() -> None:
    fine = _stream(pa.table({"a": ["x" * 8]}))
    assert arrow_stream.read(fine).num_rows == 1
    offsets = b"\0\0\0\0\x08\0\0\0xxxxxxxx"
    assert fine.count(offsets) == 1
    with pytest.raises(FormatError, match="not a valid Arrow IPC stream"):
        arrow_stream.read(fine.replace(offsets, b"\0\0\0\0\0\x01\0\0xxxxxxxx"))


def test_text_that_is_not_utf8_is_refused() -> None:
    data = _stream(pa.table({"a": ["x" * 8]})).replace(b"x" * 8, b"\xff" * 8)
    with pytest.raises(FormatError, match="not a valid Arrow IPC stream"):
        arrow_stream.read(data)


@pytest.mark.parametrize("kind", [pa.null(), pa.binary(0), pa.struct([])], ids=str)
def test_columns_without_bytes_add_no_rows(kind: pa.DataType) -> None:
    many = pa.table({"a": pa.nulls(1 << 20, kind)})
    if kind != pa.null():
        many = _without_validity(kind, 1 << 20)
    with pytest.raises(FormatError, match=r"1048576 rows in a stream of \d+ bytes"):
        arrow_stream.read(_stream(many))


def _without_validity(kind: pa.DataType, rows: int) -> pa.Table:
    buffers = [None] if pa.types.is_struct(kind) else [None, pa.py_buffer(b"")]
    return pa.table({"a": pa.Array.from_buffers(kind, rows, buffers)})


def test_a_row_may_have_one_bit() -> None:
    table = pa.table({"a": pa.array([True] * 4096)})
    assert arrow_stream.read(_stream(table)).num_rows == 4096


def test_columns_batches_and_the_schema_have_limits() -> None:
    columns = pa.table({f"c{number}": [1] for number in range(1001)})
    with pytest.raises(FormatError, match="1001 columns, the limit is 1000"):
        arrow_stream.read(_stream(columns))
    noted = TABLE.replace_schema_metadata({"k": "v" * (1 << 20)})
    with pytest.raises(FormatError, match="the schema has more than 1048576 bytes"):
        arrow_stream.read(_stream(noted))
    limit = arrow_stream.STREAM_BATCHES_MAX
    assert arrow_stream.read(_stream(pa.concat_tables([TABLE] * limit))).num_rows == 2 * limit
    with pytest.raises(FormatError, match="more than 4096 record batches"):
        arrow_stream.read(_stream(pa.concat_tables([TABLE] * (limit + 1))))


def test_types_may_be_nested_deeply() -> None:
    kind = pa.int64()
    for _ in range(60):
        kind = pa.list_(kind)
    assert arrow_stream.read(_stream(pa.table({"a": pa.nulls(1, kind)}))).num_rows == 1


@pytest.mark.parametrize("length", [-1, -(1 << 63), (1 << 63) - 1, 1 << 40, 11])
@pytest.mark.parametrize("values", [range(10), ["x"] * 10], ids=["integers", "texts"])
def test_lengths_that_the_buffers_do_not_have_are_refused(values: Any, length: int) -> None:
    data = _stream(pa.table({"a": list(values)}))
    claimed = data.replace(struct.pack("<q", 10), struct.pack("<q", length))
    assert claimed != data
    with pytest.raises(FormatError, match=r"not a valid Arrow IPC stream|rows in a stream of"):
        arrow_stream.read(claimed)


NOTE = b'{"_tag":"success","topic":"t","partition_value":null,"start_offset":0,"end_offset":1}'


def answer(batches: Sequence[Batch], schema: pa.Schema | None = None, note: bytes = NOTE) -> bytes:
    """A reply as the HTTP server encodes it."""
    expected_schema = ENVELOPE if schema is None else pa.schema([*list(ENVELOPE)[:3], *schema])
    return arrow_stream.write(expected_schema, [batch.to_arrow() for batch in batches], note)


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
    error, found = arrow_stream.read_fetch_reply(answer([batch]), None)
    assert error is None
    (again,) = found
    assert isinstance(again.content, Columns)
    assert again.offsets().tolist() == batch.offsets().tolist()
    assert [_plain(row) for row in rows(again)] == [_plain(row) for row in rows(batch)]
    assert again.next_offset == batch.offsets()[-1] + 1
    assert rows(again.starting_at(Offset(again.next_offset - 1))) == rows(again)[-1:]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Treat empty headers as no headers."""
    return row | {"headers": row["headers"] or None}


def test_rows_of_every_type_are_read_back_under_the_topics_schema() -> None:
    nothing = tuple(None for _ in LOW)
    batch = typed(4, [LOW, HIGH, nothing], NULLABLE).without(BitMap64([5]))
    (again,) = arrow_stream.read_fetch_reply(answer([batch], NULLABLE), NULLABLE).batches
    assert isinstance(again.content, pa.RecordBatch)
    assert again.content.schema.equals(NULLABLE, check_metadata=True)
    assert rows(again) == rows(batch)
    assert again.offsets().tolist() == [4, 6]


def test_several_batches_follow_one_another_and_empty_ones_are_left_out() -> None:
    batches = [raw(0, [b"a", b"b"]), raw(2, []), raw(2, [b"c"]), raw(9, [b"d"])]
    found = arrow_stream.read_fetch_reply(answer(batches), None).batches
    assert [batch.offsets().tolist() for batch in found] == [[0, 1], [2], [9]]
    joined = concat(found[:2])
    assert joined.offsets().tolist() == [0, 1, 2]


def test_no_messages_are_no_batches() -> None:
    assert arrow_stream.read_fetch_reply(answer([]), None) == FetchReplyBatches(None, [])


def test_an_error_reply_has_its_message() -> None:
    note = msgspec.json.encode(FetchError("t", None, "topic t does not exist"))
    body = arrow_stream.write(pa.schema([]), [], note)
    assert arrow_stream.read_fetch_reply(body, None) == FetchReplyBatches(
        "topic t does not exist", []
    )


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
def test_other_bytes_are_not_a_reply(body: bytes, schema: pa.Schema | None) -> None:
    with pytest.raises(FormatError, match="not the answer to a fetch"):
        arrow_stream.read_fetch_reply(body, schema)
