"""Footers of Parquet objects are read; other objects are refused."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.bodies import ObjectRef
from penstock.host.child import Child, ChildFailed
from penstock.model.errors import FormatError, RunInvalid
from penstock.objects import MemoryStore
from penstock.tiers.reading.footers import PARQUET_MAGIC, check_foreign_footer, read_staged_footer


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2, 3]}), sink)
    return sink.getvalue()


async def placed(data: bytes, size: int | None = None) -> tuple[MemoryStore, ObjectRef]:
    store = MemoryStore()
    await store.put("k.parquet", [data])
    return store, ObjectRef("k.parquet", 3, len(data) if size is None else size, 0)


@pytest.mark.parametrize("first_read", [16, 1 << 20])
async def test_a_footer_is_read_whole_however_long_it_is(first_read: int) -> None:
    store, ref = await placed(parquet())
    tail = await read_staged_footer(store, ref, first_read)
    assert pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + tail)).num_rows == 3


@pytest.mark.parametrize(
    ("data", "size", "reason"),
    [
        (b"no parquet at all", None, "is not a Parquet file"),
        (b"\xff\xff\xff\x7fPAR1", None, "is not a Parquet file"),
        (b"x" * 40, 39, "is not the one that was staged"),
    ],
)
async def test_an_object_that_is_not_the_staged_parquet_file_is_refused(
    data: bytes, size: int | None, reason: str
) -> None:
    store, ref = await placed(data, size)
    with pytest.raises(RunInvalid, match=reason):
        await read_staged_footer(store, ref)


async def test_a_missing_object_is_refused() -> None:
    with pytest.raises(RunInvalid):
        await read_staged_footer(MemoryStore(), ObjectRef("gone.parquet", 1, 10, 0))


async def test_a_footer_that_crashes_the_parquet_library_is_refused() -> None:
    store, ref = await placed(parquet())
    tail = bytearray(await read_staged_footer(store, ref))
    child = Child()
    await check_foreign_footer(child, bytes(tail))
    # The schema says that the column is required; the levels of its statistics say that it is not.
    optional = tail.index(b"\x25\x02\x18\x01n")
    tail[optional + 1] = 0
    with pytest.raises(FormatError, match="ended with status"):
        await check_foreign_footer(child, bytes(tail))
    await child.close()
    with pytest.raises(ChildFailed):
        await check_foreign_footer(child, bytes(tail))


@pytest.mark.parametrize("change", [b"", b"\x00" * 8, b"\xff" * 8])
async def test_a_footer_that_cannot_be_read_is_refused(change: bytes) -> None:
    store, ref = await placed(parquet())
    tail = await read_staged_footer(store, ref)
    child = Child()
    with pytest.raises(FormatError):
        await check_foreign_footer(child, tail[: len(tail) // 2] + change + tail[-8:])
    await child.close()
