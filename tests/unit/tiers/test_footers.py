"""What an object says at its end is read, and what is none is refused."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.bodies import ObjectRef
from penstock.model.errors import RunInvalid
from penstock.objects.memory import MemoryStore
from penstock.tiers import footers
from penstock.tiers.footers import MAGIC, footer


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2, 3]}), sink)
    return sink.getvalue()


async def placed(data: bytes, size: int | None = None) -> tuple[MemoryStore, ObjectRef]:
    store = MemoryStore()
    await store.put("k.parquet", [data])
    return store, ObjectRef("k.parquet", 3, len(data) if size is None else size, 0)


@pytest.mark.parametrize("first_read", [16, 1 << 20])
async def test_a_footer_is_read_whole_however_long_it_is(
    monkeypatch: pytest.MonkeyPatch, first_read: int
) -> None:
    monkeypatch.setattr(footers, "TAIL_BYTES", first_read)
    store, ref = await placed(parquet())
    tail = await footer(store, ref)
    assert pq.read_metadata(pa.BufferReader(MAGIC + tail)).num_rows == 3


@pytest.mark.parametrize(
    ("data", "size", "reason"),
    [
        (b"no parquet at all", None, "is not a Parquet file"),
        (b"\xff\xff\xff\x7fPAR1", None, "is not a Parquet file"),
        (b"x" * 40, 39, "is not the one that was staged"),
    ],
)
async def test_what_is_no_such_object_is_refused(
    data: bytes, size: int | None, reason: str
) -> None:
    store, ref = await placed(data, size)
    with pytest.raises(RunInvalid, match=reason):
        await footer(store, ref)


async def test_an_object_that_is_not_there_is_refused() -> None:
    with pytest.raises(RunInvalid):
        await footer(MemoryStore(), ObjectRef("gone.parquet", 1, 10, 0))
