import pyarrow as pa
import pytest

from penstock.formats import arrow_stream
from penstock.model.errors import FormatError

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


def test_what_is_no_stream_is_refused() -> None:
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
