"""The tables of docs/formats.md agree with objects and the manifest, field by field."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.objects import OBJECT_VERSION, ObjectFacts, encode, stored_schema
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Offset, PartitionId, PartitionRange
from penstock.tiers.manifest.entries import MANIFEST_VERSION, Head, LinkRecord, ObjectEntry
from tests.unit.formats.test_page import tables

FACTS = ObjectFacts(OBJECT_VERSION, "t", [PartitionRange(0, 0, 2)], 2, 5, 5, 1, 0, 1, False)


@pytest.mark.parametrize(
    ("heading", "kind", "version"),
    [
        ("Description of an object", ObjectFacts, OBJECT_VERSION),
        ("Head of the manifest", Head, MANIFEST_VERSION),
        ("Entry of the manifest", ObjectEntry, None),
        ("Link record of the manifest", LinkRecord, None),
    ],
)
def test_fields_are_on_the_page_as_in_the_code(
    heading: str, kind: type[msgspec.Struct], version: int | None
) -> None:
    rows = {row["Field"]: row["Meaning"] for row in tables(heading)[0]}
    assert list(rows) == list(kind.__struct_fields__)
    assert all(rows.values())
    assert version is None or rows["version"] == str(version)


@pytest.mark.feature("T19")
def test_the_columns_of_an_object_are_encoded_as_the_page_says() -> None:
    rows = tables("Objects")[0]
    schema = stored_schema(FACTS)
    assert [(row["Column"], row["Type"]) for row in rows] == [
        (field.name, str(field.type)) for field in schema
    ]
    content = Columns(
        pa.array([b"a", b"b"], pa.binary()),
        pa.array([b"x", b"y"], pa.binary()),
        pa.array([b"h", b""], pa.binary()),
    )
    batch = Batch(PartitionId(0), Offset(0), 2, Microseconds(5), content)
    group: Any = pq.ParquetFile(pa.BufferReader(encode([batch], FACTS))).metadata.row_group(0)
    for number, row in enumerate(rows):
        encodings = group.column(number).encodings
        wanted = {"plain": "PLAIN", "dictionary": "RLE_DICTIONARY"}
        assert wanted.get(row["Encoding"], row["Encoding"]) in encodings, row
        assert group.column(number).compression == "ZSTD"
