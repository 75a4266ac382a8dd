from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.formats import objects as form
from penstock.host.child import Child
from penstock.host.threads import WorkerThreads
from penstock.log import Collected, Cursor
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.names import TopicName
from penstock.model.units import Offset, PartitionRange
from penstock.objects import MemoryStore, ObjectMissing, ObjectStoreError, StoreUnavailable
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.reading import object_reader
from penstock.tiers.reading.object_reader import ObjectReader, ObjectRowsDamaged
from tests.faults import FaultyStore
from tests.unit.formats.contents import HIGH, LOW, NULLABLE, raw, typed
from tests.unit.tiers.upload.building import Built, build


def built(batches: Sequence[Batch], deletions: Deletions | None = None) -> Built:
    collected = Collected(Cursor(9, 0, 0))
    for batch in batches:
        collected.batches.append(batch)
    topic, nothing = TopicName("a", "b", "c"), Deletions({}, {})
    made = build(topic, 0, collected, deletions or nothing, 1, 1, "u", "fs", 0)
    assert made is not None
    return made


async def put(store: FaultyStore, made: Built) -> ObjectEntry:
    info = await store.put(made.entry.object_id, [made.data])
    return msgspec.structs.replace(made.entry, etag=info.etag)


async def read_range(
    reader: ObjectReader, entry: ObjectEntry, span: PartitionRange, start: int, bytes_max: int
) -> list[tuple[int, bytes]]:
    """All batches of a range, read to its end; they never overlap and leave no gap."""
    found: list[tuple[int, bytes]] = []
    offset = start
    while offset < span.next:
        batches = await reader.read(entry, span, Offset(offset), bytes_max)
        if not batches:
            break
        for batch in batches:
            assert batch.first_offset == offset
            assert isinstance(batch.content, Columns)
            found += zip(batch.offsets().tolist(), batch.content.payload.to_pylist(), strict=True)
            offset = batch.next_offset
    return found


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[tuple[WorkerThreads, Child]]:
    threads, child = WorkerThreads(1, "tier"), Child()
    yield threads, child
    await child.close()
    await threads.close()


@pytest.fixture
def reader(store: FaultyStore, workers: tuple[WorkerThreads, Child]) -> ObjectReader:
    return ObjectReader(store, *workers, b"c")


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 4)


@pytest.mark.feature("T09")
async def test_every_offset_of_every_partition_is_read_from_any_offset_and_at_any_step(
    store: FaultyStore, reader: ObjectReader, small_groups: None
) -> None:
    # Row groups of four, so that partitions share some of them.
    counts = {0: 10, 1: 3, 2: 1, 5: 9}
    batches = [
        raw(100, [b"%d/%d" % (partition, n) for n in range(100, 100 + count)], partition)
        for partition, count in counts.items()
    ]
    entry = await put(store, built(batches))
    assert [span.partition for span in entry.ranges] == list(counts)
    for span in entry.ranges:
        wanted = [(n, b"%d/%d" % (span.partition, n)) for n in range(span.first, span.next)]
        for start in range(span.first, span.next):
            for bytes_max in (1, 400, 1 << 20):
                found = await read_range(reader, entry, span, start, bytes_max)
                assert found == wanted[start - span.first :], (span, start, bytes_max)


@pytest.mark.feature("T35")
async def test_offsets_that_have_no_row_are_covered_by_the_batches_around_them(
    store: FaultyStore, reader: ObjectReader, small_groups: None
) -> None:
    dead = [0, 5, 6, 7, 8, 9, 10, 15, 19]
    entry = await put(store, built([raw(0, [b"x"] * 20)], Deletions({}, {0: BitMap64(dead)})))
    span = entry.ranges[0]
    for start in range(20):
        found = await read_range(reader, entry, span, start, 1)
        assert [n for n, _ in found] == [n for n in range(start, 20) if n not in dead]
    assert await reader.read(entry, span, Offset(19), 1) == []


async def test_rows_of_a_typed_topic_are_read_in_their_types(
    store: FaultyStore, reader: ObjectReader
) -> None:
    batch = typed(3, [LOW, (None,) * len(LOW), HIGH], NULLABLE)
    entry = await put(store, built([batch]))
    [found] = await reader.read(entry, entry.ranges[0], Offset(4), 1 << 20)
    assert isinstance(found.content, pa.RecordBatch)
    assert isinstance(batch.content, pa.RecordBatch)
    assert found.content.equals(batch.content.slice(1))
    assert (found.first_offset, found.next_offset) == (4, 6)


@pytest.mark.feature("T09")
async def test_a_read_fetches_the_row_groups_it_needs_and_the_footer_once(
    store: FaultyStore, reader: ObjectReader, small_groups: None
) -> None:
    entry = await put(store, built([raw(0, [b"x" * 1000 + b"%d" % n for n in range(40)])]))
    fetched: list[int] = []
    inner = store.store
    get = inner.get

    async def counting(key: str, start: int = 0, size: int | None = None, **rest: Any) -> bytes:
        data = await get(key, start, size, **rest)
        fetched.append(len(data))
        return data

    inner.get = counting  # type: ignore[method-assign]
    names = store.steps.names
    del names[:]
    await reader.read(entry, entry.ranges[0], Offset(20), 1)
    assert names == ["head", "get", "get"]
    await reader.read(entry, entry.ranges[0], Offset(24), 1)
    assert names == ["head", "get", "get", "get"]
    # The first of them is the ETag of the test's own store.
    _, footer, group, other = fetched
    assert footer == entry.footer_bytes
    assert max(group, other) < entry.size // 8


async def test_only_a_limited_number_of_footers_is_cached(
    store: FaultyStore, workers: tuple[WorkerThreads, Child]
) -> None:
    reader = ObjectReader(store, *workers, b"c", footers_max=2)
    made = [built([raw(n, [b"x"])]) for n in range(3)]
    entries = [await put(store, one) for one in made]
    names = store.steps.names
    for entry, again in ((0, 2), (1, 2), (0, 1), (2, 2), (0, 1), (1, 2)):
        del names[:]
        await reader.read(entries[entry], entries[entry].ranges[0], Offset(entry), 1)
        assert names.count("get") == again


@pytest.mark.feature("T16")
async def test_a_flipped_bit_anywhere_in_an_object_is_noticed_or_changes_nothing(
    store: FaultyStore, small_groups: None
) -> None:
    entry = await put(store, built([raw(0, [b"payload %d" % n for n in range(8)])]))
    entry = msgspec.structs.replace(entry, etag=None)
    span, data = entry.ranges[0], await store.store.get(entry.object_id)
    wanted = [(n, b"payload %d" % n) for n in range(8)]
    threads = WorkerThreads(1, "tier")
    noticed = []
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 8
        damaged = FaultyStore(MemoryStore())
        await damaged.put(entry.object_id, [bytes(broken)])
        try:
            found = await read_range(
                ObjectReader(damaged, threads, Child(), b"c"), entry, span, 0, 1
            )
            assert found == wanted, position
        except ObjectRowsDamaged as error:
            noticed.append(position)
            facts = (error.object_id, error.partition, error.first, error.next)
            assert facts == (entry.object_id, 0, 0, 8)
    await threads.close()
    footer = range(len(data) - entry.footer_bytes, len(data))
    assert noticed[-len(footer) :] == list(footer)
    assert len(noticed) > len(data) // 2


@pytest.mark.feature("T16")
async def test_a_bit_flip_in_transfer_is_not_reported_as_damage(
    store: FaultyStore, reader: ObjectReader
) -> None:
    entry = await put(store, built([raw(0, [b"payload-%d" % n for n in range(20)])]))
    [span] = entry.ranges
    wanted = [(n, b"payload-%d" % n) for n in range(20)]
    assert await read_range(reader, entry, span, 0, 1 << 20) == wanted
    get, flips = store.get, [0, 1]

    async def flip(key: str, start: int = 0, size: int | None = None) -> bytes:
        data = bytearray(await get(key, start, size))
        data[len(data) // 2] ^= flips.pop()
        return bytes(data)

    store.get = flip  # type: ignore[method-assign, assignment]
    assert await read_range(reader, entry, span, 0, 1 << 20) == wanted
    flips[:] = [1, 1]
    with pytest.raises(ObjectRowsDamaged):
        await read_range(reader, entry, span, 0, 1 << 20)
    assert flips == []


@pytest.mark.feature("T16")
@pytest.mark.parametrize(
    "change",
    [
        lambda entry: msgspec.structs.replace(entry, size=entry.size + 1),
        lambda entry: msgspec.structs.replace(entry, etag="another"),
    ],
    ids=["size", "etag"],
)
async def test_an_object_of_another_size_or_version_is_not_the_one_in_the_manifest(
    store: FaultyStore, reader: ObjectReader, change: Any
) -> None:
    entry = change(await put(store, built([raw(5, [b"x"] * 3)])))
    with pytest.raises(ObjectRowsDamaged) as caught:
        await reader.read(entry, entry.ranges[0], Offset(6), 1)
    assert str(caught.value) == (
        f"object {entry.object_id}, partition 0, offsets 5 to 7: "
        "it is not the object the manifest names"
    )


@pytest.mark.feature("T16")
async def test_an_object_cut_short_after_its_footer_was_read_is_damaged(
    store: FaultyStore, reader: ObjectReader
) -> None:
    entry = await put(store, built([raw(0, [b"x" * 100] * 3)]))
    await reader.read(entry, entry.ranges[0], Offset(0), 1)
    await store.damage(entry.object_id, lambda data: data[:20])
    with pytest.raises(ObjectRowsDamaged, match="it is not the object the manifest names"):
        await reader.read(entry, entry.ranges[0], Offset(0), 1)


@pytest.mark.parametrize("failing", ["head", "get"])
@pytest.mark.parametrize(
    "error",
    [ObjectMissing("k"), StoreUnavailable("k", "out"), ObjectStoreError("k", "not allowed")],
    ids=["missing", "unavailable", "refused"],
)
async def test_refusals_of_the_store_are_not_reported_as_damage(
    store: FaultyStore, reader: ObjectReader, failing: str, error: Exception
) -> None:
    entry = await put(store, built([raw(0, [b"x"] * 3)]))
    await reader.read(entry, entry.ranges[0], Offset(0), 1)
    fresh = ObjectReader(store, reader._threads, Child(), b"c")
    store.steps.fail = lambda name, key: error if name == failing else None
    with pytest.raises(type(error)) as caught:
        await fresh.read(entry, entry.ranges[0], Offset(0), 1)
    assert caught.value is error
    if failing == "get":
        with pytest.raises(type(error)) as caught:
            await reader.read(entry, entry.ranges[0], Offset(0), 1)
        assert caught.value is error


async def test_an_object_of_another_writer_is_reported_as_damage(
    store: FaultyStore, reader: ObjectReader
) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset": [1]}), sink)
    data = sink.getvalue().to_pybytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    entry = msgspec.structs.replace(
        built([raw(0, [b"x"])]).entry,
        size=len(data),
        footer_bytes=footer,
        footer_crc32c=crc32c(data[-footer:]),
    )
    await store.put(entry.object_id, [data])
    with pytest.raises(ObjectRowsDamaged, match="not an object of Penstock"):
        await reader.read(entry, entry.ranges[0], Offset(0), 1)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(-1, 60))
def test_a_partial_file_returns_only_the_bytes_in_its_range(
    one: int, other: int, position: int, size: int
) -> None:
    whole = bytes(range(50))
    first, stop = min(one, other), max(one, other)
    file = object_reader._PartialFile(50, first, whole[first:stop])
    assert file.seek(position) == file.tell() == position
    end = 50 if size < 0 else min(position + size, 50)
    if first <= position <= end <= stop:
        assert (file.read(size), file.tell()) == (whole[position:end], end)
    else:
        with pytest.raises(OSError, match="were not fetched"):
            file.read(size)
    assert (file.seek(-1, 2), file.seek(-2, 1), file.size()) == (49, 47, 50)
    kinds = (file.readable(), file.seekable(), file.writable(), file.closed)
    file.close()
    assert (*kinds, file.closed) == (True, True, False, False, True)
