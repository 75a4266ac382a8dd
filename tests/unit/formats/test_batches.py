import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import batches
from penstock.formats.batches import TIMESTAMP_COLUMN
from penstock.formats.frames import FRAME_HEADER_BYTES, Codec, FrameHeader, Kind, encode_frame
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from tests.unit.formats import golden


def binary(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def written(
    content: Columns | pa.RecordBatch, stamps: pa.Int64Array | None, count: int
) -> tuple[FrameHeader, pa.Buffer]:
    codec, flags, pieces = batches.encode(content, stamps)
    size = sum(map(len, pieces))
    header = FrameHeader(9, size, Kind.BATCH, codec, flags, 2, 7, 7, 0, 100, 55, count)
    return header, pa.py_buffer(b"12345678" + b"".join(encode_frame(header, pieces)))


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=40), st.booleans())
def test_raw_messages_are_packed_and_read_back(payloads: list[bytes], stamped: bool) -> None:
    count = len(payloads)
    stamps = pa.array(range(count), pa.int64()) if stamped else None
    header, data = written(Columns(b"s", binary(payloads)), stamps, count)
    batch = batches.decode(header, data, 8)
    assert header.codec == Codec.PACKED
    assert isinstance(batch.content, Columns)
    assert batch.content.payload.to_pylist() == payloads
    assert batch.timestamp_column().to_pylist() == (list(range(count)) if stamped else [55] * count)
    assert (batch.partition, batch.first_offset, batch.count) == (2, 100, count)
    assert (batch.first_timestamp, batch.positions) == (55, None)


@pytest.mark.parametrize("stamped", [False, True])
def test_rows_of_a_typed_topic_are_arrow_and_read_back_with_their_schema(stamped: bool) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"a": "b"})
    content = pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=schema)
    stamps = pa.array([7, 8, 9], pa.int64()) if stamped else None
    header, data = written(content, stamps, 3)
    batch = batches.decode(header, data, 8)
    assert header.codec == Codec.ARROW
    assert isinstance(batch.content, pa.RecordBatch)
    assert batch.content.schema.equals(schema, check_metadata=True)
    assert batch.content.equals(content)
    assert batch.timestamp_column().to_pylist() == ([7, 8, 9] if stamped else [55] * 3)


@pytest.mark.feature("T02")
def test_the_golden_frames_are_the_messages_they_were() -> None:
    hi, full, rows = (
        batches.decode(frame.header, pa.py_buffer(frame.data), 0) for frame in golden.FRAMES[:3]
    )
    when = {"partition": 2, "offset": 3, "timestamp": golden.WHEN}
    assert _rows(hi) == [{**when, "subject": b"a", "headers": None, "payload": b"hi"}]
    assert _rows(full) == [
        {**when, "timestamp": 5, "subject": b"a", "headers": b"", "payload": b"hi"},
        {**when, "offset": 4, "timestamp": 6, "subject": b"bc", "headers": b"h", "payload": b""},
    ]
    assert _rows(rows) == [{**when, "n": 7}]


@pytest.mark.parametrize(
    "content", [Columns(b"s", binary([b"a", b"b"])), pa.record_batch({"n": [1, 2]})]
)
def test_the_last_timestamp_of_a_frame_is_found(content: Columns | pa.RecordBatch) -> None:
    stamped, data = written(content, pa.array([70, 99], pa.int64()), 2)
    body = memoryview(data)[8 + FRAME_HEADER_BYTES :][: stamped.body_bytes]
    assert batches.last_timestamp(stamped, body) == 99
    bare, _ = written(content, None, 2)
    assert batches.last_timestamp(bare, b"not read") == 55
    assert batches.last_timestamp(stamped._replace(kind=Kind.DELETE), b"not read") == 55


def test_an_unknown_codec_is_refused() -> None:
    header = golden.FRAMES[0].header._replace(codec=9)
    with pytest.raises(FormatError, match="unknown codec 9: upgrade this Penstock"):
        batches.decode(header, pa.py_buffer(golden.FRAMES[0].data), 0)


def test_rows_that_miss_their_announced_timestamps_are_refused() -> None:
    header, data = written(pa.record_batch({"n": [1]}), pa.array([7], pa.int64()), 1)
    bare_header, bare = written(pa.record_batch({"n": [1]}), None, 1)
    assert TIMESTAMP_COLUMN not in batches.decode(header, data, 8).to_arrow().schema.names
    with pytest.raises(FormatError, match=TIMESTAMP_COLUMN):
        batches.decode(bare_header._replace(flags=header.flags), bare, 8)


def _rows(batch: object) -> list[dict[str, object]]:
    table = batch.to_arrow()  # type: ignore[attr-defined]
    stamps = table.column("timestamp").view(pa.int64())
    rows: list[dict[str, object]] = table.to_pylist()
    return [{**row, "timestamp": stamp.as_py()} for row, stamp in zip(rows, stamps, strict=True)]


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("when", pa.timestamp("us", tz="UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([pa.field("x", pa.float64())])),
    ],
    metadata={"owner": "penstock"},
)
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "name": st.one_of(st.none(), st.text(max_size=4)),
        "raw": st.one_of(st.none(), st.binary(max_size=4)),
        "when": st.one_of(st.none(), st.just(datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC))),
        "price": st.one_of(st.none(), st.just(decimal.Decimal("1.25"))),
        "tags": st.one_of(st.none(), st.lists(st.text(max_size=2), max_size=2)),
        "place": st.one_of(st.none(), st.just({"x": 0.5})),
    }
)


def body(batch: pa.RecordBatch) -> pa.Buffer:
    return pa.py_buffer(b"".join(batches.encode_rows(batch)))


@given(st.lists(ROWS, min_size=1, max_size=5), st.booleans())
def test_rows_are_read_back_with_their_schema(records: list[dict[str, Any]], cut: bool) -> None:
    batch = pa.RecordBatch.from_pylist(records, schema=SCHEMA)
    if cut:
        batch = pa.RecordBatch.from_pylist([records[0], *records, records[0]], schema=SCHEMA)
        batch = batch.slice(1, len(records))
    again = batches._decode_rows(len(records), body(batch))
    again.validate(full=True)
    assert again.schema.equals(SCHEMA, check_metadata=True)
    assert again.to_pylist() == records


def test_a_slice_is_stored_without_the_rows_around_it() -> None:
    whole = pa.record_batch({"s": pa.array(["x" * 100] * 1000)})
    assert body(whole.slice(500, 1)).size < 1000


def test_dictionaries_travel_with_their_rows() -> None:
    batch = pa.record_batch({"k": pa.array(["a", "b", "a"]).dictionary_encode()})
    again = batches._decode_rows(3, body(batch))
    assert again.schema == batch.schema
    assert again.to_pydict() == {"k": ["a", "b", "a"]}


@pytest.mark.feature("T02")
def test_rows_written_by_an_older_pyarrow_are_still_read() -> None:
    old = pa.py_buffer(bytes.fromhex(golden.ARROW_BODY))
    assert batches._decode_rows(1, old).equals(golden.ARROW_ROWS)


@pytest.mark.parametrize("wrong", [b"", b"nonsense", b"\xff\xff\xff\xff\0\0\0\0"])
def test_bytes_that_are_no_stream_are_refused(wrong: bytes) -> None:
    with pytest.raises(FormatError, match="not an Arrow IPC stream"):
        batches._decode_rows(1, pa.py_buffer(wrong))


def test_a_stream_cut_anywhere_is_refused() -> None:
    whole = bytes.fromhex(golden.ARROW_BODY)
    end_mark = 8
    for size in range(len(whole) - end_mark):
        with pytest.raises(FormatError):
            batches._decode_rows(1, pa.py_buffer(whole[:size]))


def test_a_stream_with_another_number_of_rows_is_refused() -> None:
    with pytest.raises(FormatError, match="announces 2 rows, its body has 1"):
        batches._decode_rows(2, pa.py_buffer(bytes.fromhex(golden.ARROW_BODY)))


def sent(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def strict(table: pa.Table) -> pa.RecordBatch:
    """The rows with a schema without nullable columns."""
    schema = pa.schema([field.with_nullable(False) for field in table.schema])
    return pa.record_batch(table.combine_chunks().to_batches()[0].columns, schema=schema)


TABLE = pa.table({"n": pa.array(range(9000), pa.int64()), "s": [f"name {n}" for n in range(9000)]})
"""More than JOINED_CHECKSUM_BYTES_MIN."""


@pytest.mark.parametrize("count", [1, 9000])
@pytest.mark.parametrize("metadata", [None, {"from": "a client"}])
def test_a_stream_laid_out_as_ours_is_stored_uncopied_behind_our_schema(
    count: int, metadata: dict[str, str] | None
) -> None:
    table = TABLE.slice(0, count).replace_schema_metadata(metadata)
    stream, batch = sent(table), strict(table)
    found = batches.body_over_stream(stream, table.schema, batch)
    assert found is not None
    whole = b"".join(found.pieces)
    assert whole == b"".join(batches.encode_rows(batch))
    assert found.crc32c == (crc32c(whole) if count > 1 else None)
    assert np.shares_memory(
        np.frombuffer(found.pieces[1], np.uint8), np.frombuffer(stream, np.uint8)
    )
    again = batches._decode_rows(count, pa.py_buffer(whole))
    assert again.schema.equals(batch.schema, check_metadata=True)
    assert again == batch


@pytest.mark.parametrize(
    "stream",
    [
        sent(TABLE) + b"more",
        sent(TABLE)[:-8],
        sent(TABLE, metadata_version=pa.ipc.MetadataVersion.V4),
        sent(TABLE, use_legacy_format=True),
        sent(TABLE, compression="zstd"),
    ],
    ids=["longer", "without its end", "another version", "legacy", "compressed"],
)
def test_a_stream_of_another_layout_is_encoded_anew(stream: bytes) -> None:
    assert batches.body_over_stream(stream, TABLE.schema, strict(TABLE)) is None


def test_a_stream_with_a_schema_of_other_bytes_is_encoded_again() -> None:
    """Another encoding of the schema may mean another byte order of numbers."""
    table = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    stream = sent(table)
    for position in range(table.schema.serialize().size):
        changed = bytearray(stream)
        changed[position] ^= 1
        assert batches.body_over_stream(bytes(changed), table.schema, strict(table)) is None
