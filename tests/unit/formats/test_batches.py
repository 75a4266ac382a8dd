import pyarrow as pa
import pytest
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
def test_a_frame_tells_its_last_timestamp(content: Columns | pa.RecordBatch) -> None:
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
