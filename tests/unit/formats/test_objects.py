from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import objects as form
from penstock.formats.objects import ObjectFacts
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.names import TopicName
from penstock.model.units import Offset, PartitionId, PartitionRange
from tests.unit.formats.contents import HIGH, LOW, NOON, NULLABLE, SCALARS, raw, typed

TOPIC: Final = TopicName("acme", "shop", "Orders/eu")


def facts_for(batches: Sequence[Batch]) -> ObjectFacts:
    """Facts as the uploader would write them; ranges are those of the batches."""
    spans: dict[int, PartitionRange] = {}
    for batch in batches:
        first = spans[batch.partition].first if batch.partition in spans else batch.first_offset
        spans[batch.partition] = PartitionRange(batch.partition, first, batch.next_offset)
    content = batches[0].content
    schema = b"" if isinstance(content, Columns) else content.schema.serialize().to_pybytes()
    return ObjectFacts(
        version=1,
        topic=str(TOPIC),
        ranges=list(spans.values()),
        rows=sum(batch.messages for batch in batches),
        first_timestamp=NOON,
        last_timestamp=NOON,
        epoch=7,
        first_frame=3,
        next_frame=9,
        typed=bool(schema),
        schema=schema,
    )


def encoded(batches: Sequence[Batch]) -> bytes:
    return form.encode(batches, facts_for(batches))


def metadata_of(data: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(data))


def at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + np.timedelta64(microseconds, "us").item()


def by_duckdb(path: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Types by column, and rows; times as microseconds, which no time zone of a session moves."""
    source = "read_parquet(?)"
    with duckdb.connect() as connection:
        described = connection.execute(f"DESCRIBE SELECT * FROM {source}", [str(path)]).fetchall()
        plain = f"SELECT * REPLACE (epoch_us(timestamp) AS timestamp) FROM {source}"
        found = connection.execute(plain, [str(path)]).fetchall()
    kinds = {name: kind for name, kind, *_ in described}
    rows = [dict(zip(kinds, row, strict=True)) for row in found]
    return kinds, [row | {"timestamp": at(row["timestamp"])} for row in rows]


THREE: Final = [
    raw(0, [b"a", b""], headers=[b"NATS/1.0\r\nk: v\r\n\r\n", b""]),
    raw(2, [b"\x00\xff"]),
    raw(10, [b"d"], partition=4),
]
THREE_ROWS: Final = [
    {
        "partition": partition,
        "offset": offset,
        "timestamp": at(NOON + offset),
        "subject": f"s.{offset}",
        "headers": headers,
        "payload": payload,
    }
    for partition, offset, headers, payload in [
        (0, 0, b"NATS/1.0\r\nk: v\r\n\r\n", b"a"),
        (0, 1, b"", b""),
        (0, 2, None, b"\x00\xff"),
        (4, 10, None, b"d"),
    ]
]


@pytest.mark.feature("T19")
def test_plain_pyarrow_reads_raw_messages_with_their_names_and_types() -> None:
    table = pq.read_table(pa.BufferReader(encoded(THREE)))
    assert table.schema.remove_metadata() == pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("subject", pa.string(), nullable=False),
            pa.field("headers", pa.binary()),
            pa.field("payload", pa.binary(), nullable=False),
        ]
    )
    assert table.to_pylist() == THREE_ROWS


@pytest.mark.feature("T19")
def test_duckdb_reads_raw_messages_with_their_names_and_types(tmp_path: Path) -> None:
    path = tmp_path / "object.parquet"
    path.write_bytes(encoded(THREE))
    assert by_duckdb(path) == (
        {
            "partition": "INTEGER",
            "offset": "BIGINT",
            "timestamp": "TIMESTAMP WITH TIME ZONE",
            "subject": "VARCHAR",
            "headers": "BLOB",
            "payload": "BLOB",
        },
        THREE_ROWS,
    )


@pytest.mark.feature("T19")
@pytest.mark.parametrize("schema", [SCALARS, NULLABLE], ids=["required", "nullable"])
def test_every_scalar_type_is_stored_as_one_that_every_engine_has(
    schema: pa.Schema, tmp_path: Path
) -> None:
    rows: list[tuple[Any, ...]] = [LOW, HIGH]
    if schema is NULLABLE:
        rows.append((None,) * len(SCALARS))
    path = tmp_path / "object.parquet"
    path.write_bytes(encoded([typed(5, rows, schema)]))
    null = schema is NULLABLE
    table = pq.read_table(path)
    assert table.schema.remove_metadata() == pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("i8", pa.int8(), null),
            pa.field("i16", pa.int16(), null),
            pa.field("i32", pa.int32(), null),
            pa.field("i64", pa.int64(), null),
            pa.field("u8", pa.int16(), null),
            pa.field("u16", pa.int32(), null),
            pa.field("u32", pa.int64(), null),
            pa.field("u64", pa.decimal128(20, 0), null),
            pa.field("f32", pa.float32(), null),
            pa.field("f64", pa.float64(), null),
            pa.field("s", pa.string(), null),
            pa.field("b", pa.bool_(), null),
            pa.field("bin", pa.binary(), null),
        ]
    )
    lead = ["partition", "offset", "timestamp"]
    expected = [
        dict(zip([*lead, *SCALARS.names], (0, 5 + i, at(NOON), *_stored(row)), strict=True))
        for i, row in enumerate(rows)
    ]
    assert table.to_pylist() == expected
    kinds, found = by_duckdb(path)
    assert list(kinds.values()) == [
        *("INTEGER", "BIGINT", "TIMESTAMP WITH TIME ZONE"),
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
        *("SMALLINT", "INTEGER", "BIGINT", "DECIMAL(20,0)"),
        *("FLOAT", "DOUBLE", "VARCHAR", "BOOLEAN", "BLOB"),
    ]
    assert found == expected


def _stored(row: tuple[Any, ...]) -> tuple[Any, ...]:
    place = SCALARS.names.index("u64")
    wide = None if row[place] is None else Decimal(row[place])
    return (*row[:place], wide, *row[place + 1 :])


@pytest.mark.feature("T19")
@pytest.mark.parametrize("batches", [THREE, [typed(0, [LOW, HIGH])]], ids=["raw", "typed"])
def test_no_column_is_unsigned_or_in_nanoseconds(batches: list[Batch]) -> None:
    schema = metadata_of(encoded(batches)).schema
    kinds = [str(schema.column(i).logical_type) for i in range(len(schema))]
    assert [kind for kind in kinds if re.search("isSigned=false|nanoseconds", kind)] == []
    assert kinds[2] == (
        "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds, "
        "is_from_converted_type=false, force_set_converted_type=false)"
    )


@pytest.mark.feature("T16", "T19")
def test_every_column_chunk_is_zstd_and_has_the_bounds_of_its_offsets_and_timestamps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 3)
    metadata = metadata_of(encoded([raw(0, [b"x"] * 5), raw(100, [b"y"] * 4, partition=1)]))
    chunks = [
        metadata.row_group(g).column(c)
        for g in range(metadata.num_row_groups)
        for c in range(metadata.num_columns)
    ]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    bounds = {
        name: [
            (chunk.statistics.min, chunk.statistics.max)
            for chunk in chunks
            if chunk.path_in_schema == name
        ]
        for name in ("partition", "offset", "timestamp", "subject")
    }
    assert bounds == {
        "partition": [(0, 0), (0, 1), (1, 1)],
        "offset": [(0, 2), (3, 100), (101, 103)],
        "timestamp": [
            (at(NOON), at(NOON + 2)),
            (at(NOON + 3), at(NOON + 100)),
            (at(NOON + 101), at(NOON + 103)),
        ],
        "subject": [("s.0", "s.2"), ("s.100", "s.4"), ("s.101", "s.103")],
    }


@pytest.mark.feature("T16")
def test_a_flipped_bit_in_any_page_is_noticed_or_changes_nothing() -> None:
    data = encoded([raw(0, [b"payload %d" % i for i in range(20)])])
    expected = pq.read_table(pa.BufferReader(data))
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    noticed = 0
    for position in range(footer):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 8
        try:
            file = pq.ParquetFile(pa.BufferReader(broken), page_checksum_verification=True)
            assert file.read() == expected, position
        except (OSError, pa.ArrowException):
            noticed += 1
    assert noticed > footer // 2


def test_row_groups_are_bounded_in_rows_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    many, large = [raw(0, [b""] * 100)], [raw(0, [b"x" * 1000] * 100)]
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 40)
    monkeypatch.setattr(form, "ROW_GROUP_BYTES", 10_500)
    assert [_group_rows(metadata_of(encoded(b))) for b in (many, large)] == [
        [40, 40, 20],
        [10] * 10,
    ]
    monkeypatch.setattr(form, "ROW_GROUP_BYTES", 1)
    assert _group_rows(metadata_of(encoded(large))) == [1] * 100


def test_rows_that_nearly_fill_a_row_group_are_not_held_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 40)
    batches = [raw(first, [b""] * 36) for first in (0, 36, 72)]
    facts = facts_for(batches)
    sink = pa.BufferOutputStream()
    writer = form.ObjectWriter(sink, form.stored_schema(facts), typed=False)
    for batch in batches:
        writer.write(form.storable([batch]))
    writer.finish(facts)
    assert _group_rows(metadata_of(bytes(sink.getvalue()))) == [36, 36, 36]


def test_an_object_grows_past_any_size() -> None:
    noise = np.random.default_rng(7).bytes(5 << 20)
    batches = [raw(0, [noise, noise[::-1]])]
    rows = pq.read_table(pa.BufferReader(encoded(batches)), page_checksum_verification=True)
    assert rows.column("payload").to_pylist() == [noise, noise[::-1]]


def _group_rows(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]


@pytest.mark.feature("T18")
@pytest.mark.parametrize("batches", [THREE, [typed(0, [LOW])]], ids=["raw", "typed"])
def test_an_object_contains_its_facts(batches: list[Batch]) -> None:
    assert form.facts_of(metadata_of(encoded(batches))) == facts_for(batches)


def test_other_parquet_files_are_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset": [1]}), sink)
    with pytest.raises(FormatError, match="not an object of Penstock"):
        form.facts_of(metadata_of(sink.getvalue().to_pybytes()))


def test_invalid_facts_are_damage() -> None:
    with pytest.raises(FormatError, match="the object's own description is damaged"):
        form.facts_of(metadata_of(_described(b"{}")))


def test_an_object_of_a_later_version_requires_an_upgrade() -> None:
    facts = facts_for(THREE)
    later = {f: getattr(facts, f) for f in facts.__struct_fields__} | {"version": 2}
    data = form.encode(THREE, ObjectFacts(**later))
    with pytest.raises(VersionUnknown) as caught:
        form.facts_of(metadata_of(data))
    assert (caught.value.version, caught.value.known) == (2, 1)


def _described(description: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"offset": [1]})
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"penstock": description})
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.feature("T12")
def test_a_key_has_creation_partitions_and_offsets_and_sorts_by_creation() -> None:
    ranges = [PartitionRange(2, 10, 20), PartitionRange(5, 3, 4)]
    assert form.object_key(TOPIC, 1_700_000_000_000_001, ranges, "u1") == (
        "topics/acme/shop/%4frders%2feu/data-01700000000000001-p2-5-3-19-u1.parquet"
    )
    assert form.topic_prefix(TOPIC) == "topics/acme/shop/%4frders%2feu/"
    earlier = form.object_key(TOPIC, 999, [PartitionRange(9, 10**9, 10**9 + 1)], "z")
    assert earlier < form.object_key(TOPIC, 1000, [PartitionRange(0, 0, 1)], "a")


def _columns(batch: Batch) -> list[tuple[Any, ...]]:
    """Offset, timestamp and content of every row; no headers are empty headers."""
    rows = batch.to_arrow().drop_columns(["partition"]).to_pylist()
    return [tuple(b"" if v is None and k == "headers" else v for k, v in r.items()) for r in rows]


def test_decoding_gives_the_rows_between_two_offsets_and_covers_all_of_them() -> None:
    batches = [raw(10, [b"%d" % i for i in range(10)]), raw(0, [b"other"] * 9, partition=1)]
    table = pq.read_table(pa.BufferReader(encoded(batches)))
    facts = facts_for(batches)
    for first in range(8, 22):
        for next_ in range(first, 23):
            expected = _columns(batches[0])[max(first - 10, 0) : max(next_ - 10, 0)]
            batch = form.decode(table, facts, PartitionId(0), Offset(first), Offset(next_))
            if batch is None:
                assert expected == []
            else:
                assert (batch.first_offset, batch.next_offset) == (first, next_)
                assert batch.first_timestamp == expected[0][1].timestamp() * 1e6
                assert _columns(batch) == expected
    assert form.decode(table, facts, PartitionId(2), Offset(0), Offset(99)) is None
    assert form.decode(table.slice(0, 0), facts, PartitionId(0), Offset(0), Offset(99)) is None


@pytest.mark.parametrize("schema", [SCALARS, NULLABLE], ids=["required", "nullable"])
def test_rows_of_a_typed_topic_come_back_in_the_types_they_had(schema: pa.Schema) -> None:
    rows: list[tuple[Any, ...]] = [LOW, HIGH] + ([(None,) * 13] if schema is NULLABLE else [])
    batch = typed(3, rows, schema)
    table = pq.read_table(pa.BufferReader(encoded([batch])))
    found = form.decode(table, facts_for([batch]), PartitionId(0), Offset(3), Offset(3 + len(rows)))
    assert found is not None
    assert isinstance(found.content, pa.RecordBatch)
    assert found.content.schema == schema
    assert found.content.equals(batch.content)


@pytest.mark.parametrize("full", [THREE, [typed(0, [LOW])]], ids=["raw", "typed"])
def test_an_object_without_rows_has_the_columns_of_one_with_rows(full: list[Batch]) -> None:
    none = full[0].limited_to(0)
    empty, filled = (pq.read_table(pa.BufferReader(encoded(b))) for b in ([none], full))
    assert empty.num_rows == 0
    assert empty.schema.remove_metadata() == filled.schema.remove_metadata()


def test_row_groups_that_may_hold_an_offset_are_chosen_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 4)
    batches = [raw(0, [b""] * 10), raw(0, [b""] * 3, partition=1), raw(50, [b""] * 8, partition=7)]
    metadata = metadata_of(encoded(batches))
    # Groups: 0 1 2 3 | 4 5 6 7 | 8 9, 0 1 | 2, 50 51 52 | 53 54 55 56 | 57
    asked = [(0, 0), (0, 4), (0, 8), (0, 99), (1, 0), (1, 2), (3, 0), (7, 0), (7, 53), (7, 57)]
    assert {at: form.row_groups(metadata, *at) for at in asked} == {
        (0, 0): [0, 1, 2],
        (0, 4): [1, 2],
        (0, 8): [2],
        (0, 99): [2],
        (1, 0): [2, 3],
        (1, 2): [2, 3],
        (3, 0): [3],
        (7, 0): [3, 4, 5],
        (7, 53): [3, 4, 5],
        (7, 57): [3, 5],
    }


@st.composite
def _contents(draw: st.DrawFn) -> list[Batch]:
    """Batches in stored order, with gaps between and within them."""
    batches = []
    for partition in sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=3))):
        offset = draw(st.integers(0, 2**40))
        for payloads in draw(st.lists(st.lists(st.binary(max_size=9), min_size=1), max_size=3)):
            count = len(payloads)
            blocks = st.lists(st.binary(max_size=5), min_size=count, max_size=count)
            headers = draw(st.none() | blocks)
            batches.append(raw(offset, payloads, partition, headers))
            offset = batches[-1].next_offset + draw(st.integers(0, 3))
    return batches or [raw(0, [b""])]


@given(_contents(), st.integers(1, 7))
def test_encoded_rows_are_decoded_for_any_row_groups(batches: list[Batch], group_rows: int) -> None:
    facts = facts_for(batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "ROW_GROUP_ROWS", group_rows)
        table = pq.read_table(pa.BufferReader(form.encode(batches, facts)))
    for span in facts.ranges:
        mine = [batch for batch in batches if batch.partition == span.partition]
        found = form.decode(
            table, facts, PartitionId(span.partition), Offset(span.first), Offset(span.next)
        )
        assert found is not None
        assert _columns(found) == [row for batch in mine for row in _columns(batch)]
