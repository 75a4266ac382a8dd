import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import rows
from penstock.model.errors import FormatError
from tests.unit.formats import golden

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
    return pa.py_buffer(b"".join(rows.encode(batch)))


@given(st.lists(ROWS, min_size=1, max_size=5), st.booleans())
def test_rows_are_read_back_with_their_schema(records: list[dict[str, Any]], cut: bool) -> None:
    batch = pa.RecordBatch.from_pylist(records, schema=SCHEMA)
    if cut:
        batch = pa.RecordBatch.from_pylist([records[0], *records, records[0]], schema=SCHEMA)
        batch = batch.slice(1, len(records))
    again = rows.decode(len(records), body(batch))
    again.validate(full=True)
    assert again.schema.equals(SCHEMA, check_metadata=True)
    assert again.to_pylist() == records


def test_a_slice_is_stored_without_the_rows_around_it() -> None:
    whole = pa.record_batch({"s": pa.array(["x" * 100] * 1000)})
    assert body(whole.slice(500, 1)).size < 1000


def test_dictionaries_travel_with_their_rows() -> None:
    batch = pa.record_batch({"k": pa.array(["a", "b", "a"]).dictionary_encode()})
    again = rows.decode(3, body(batch))
    assert again.schema == batch.schema
    assert again.to_pydict() == {"k": ["a", "b", "a"]}


@pytest.mark.feature("T02")
def test_rows_written_by_an_older_pyarrow_are_still_read() -> None:
    old = pa.py_buffer(bytes.fromhex(golden.ARROW_BODY))
    assert rows.decode(1, old).equals(golden.ARROW_ROWS)


@pytest.mark.parametrize("wrong", [b"", b"nonsense", b"\xff\xff\xff\xff\0\0\0\0"])
def test_bytes_that_are_no_stream_are_refused(wrong: bytes) -> None:
    with pytest.raises(FormatError, match="not an Arrow IPC stream"):
        rows.decode(1, pa.py_buffer(wrong))


def test_a_stream_cut_anywhere_is_refused() -> None:
    whole = bytes.fromhex(golden.ARROW_BODY)
    end_mark = 8
    for size in range(len(whole) - end_mark):
        with pytest.raises(FormatError):
            rows.decode(1, pa.py_buffer(whole[:size]))


def test_a_stream_with_another_number_of_rows_is_refused() -> None:
    with pytest.raises(FormatError, match="announces 2 rows, its body has 1"):
        rows.decode(2, pa.py_buffer(bytes.fromhex(golden.ARROW_BODY)))


def sent(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def strict(table: pa.Table) -> pa.RecordBatch:
    """The rows with a schema that allows no nulls, as a topic may have it."""
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
    found = rows.reused(stream, table.schema, batch)
    assert found is not None
    whole = b"".join(found.pieces)
    assert whole == b"".join(rows.encode(batch))
    assert found.crc32c == (crc32c(whole) if count > 1 else None)
    assert np.shares_memory(
        np.frombuffer(found.pieces[1], np.uint8), np.frombuffer(stream, np.uint8)
    )
    again = rows.decode(count, pa.py_buffer(whole))
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
    assert rows.reused(stream, TABLE.schema, strict(TABLE)) is None


def test_a_stream_whose_schema_is_told_in_other_bytes_is_encoded_anew() -> None:
    """Other bytes may mean another order of bytes in the numbers."""
    table = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    stream = sent(table)
    for position in range(table.schema.serialize().size):
        changed = bytearray(stream)
        changed[position] ^= 1
        assert rows.reused(bytes(changed), table.schema, strict(table)) is None
