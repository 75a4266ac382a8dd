import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata import records
from penstock.metadata.interface import MetadataEntry, Revision
from penstock.metadata.records import (
    NamespaceRecord,
    PartitionRecord,
    StoredTopic,
    TenantRecord,
    TopicRecord,
    TopicState,
)
from penstock.model import schema
from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import (
    Durability,
    NamespaceInfo,
    TenantInfo,
    Topic,
    TopicSpec,
)
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds
from tests.unit.formats.test_page import tables

NAME = TopicName("acme", "prod", "orders")
AT = Microseconds(1_700_000_000_000_000)
RAW = Topic(TopicSpec(NAME), "u" * 32, AT)
TYPED = Topic(
    TopicSpec(
        NAME,
        schema.schema([schema.column(f"c-{kind}", kind, kind < "i") for kind in schema.TYPES]),
        "c-int64",
        Durability.CLOUD,
        TopicRetention(1.5, 2, 3),
    ),
    "u" * 32,
    AT,
)
VALUES = st.one_of(
    st.builds(PartitionValue, st.just("String"), st.text()),
    st.builds(PartitionValue, st.just("Bytes"), st.binary()),
    st.builds(PartitionValue, st.just("Boolean"), st.booleans()),
    st.builds(PartitionValue, st.just("Int64"), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(PartitionValue, st.just("UInt64"), st.integers(0, (1 << 64) - 1)),
)


def entry(value: bytes) -> MetadataEntry:
    return MetadataEntry("/penstock/k", value, Revision(3), Revision(5), 2, None)


def test_records_of_tenants_and_namespaces_are_read_back() -> None:
    tenant = TenantInfo("acme", AT)
    namespace = NamespaceInfo(Namespace("acme", "prod"), AT, "cold")
    assert records.decode_tenant(entry(records.encode_tenant(tenant))) == tenant
    assert records.decode_namespace(entry(records.encode_namespace(namespace))) == namespace


@pytest.mark.feature("F27")
@pytest.mark.parametrize("state", TopicState)
@pytest.mark.parametrize("topic", [RAW, TYPED], ids=["raw", "typed"])
def test_records_of_topics_are_read_back(topic: Topic, state: TopicState) -> None:
    decoded = records.decode_topic(entry(records.encode_topic(topic, state)))
    assert decoded == StoredTopic(topic, state, Revision(5))


@pytest.mark.feature("F26")
@given(VALUES)
def test_records_of_partition_values_are_read_back(value: PartitionValue) -> None:
    assert records.decode_partition(entry(records.encode_partition(value))) == value


def test_the_record_of_a_topic_is_readable_json() -> None:
    columns = schema.schema([schema.field("id:int64"), schema.field("note:string?")])
    topic = Topic(TopicSpec(NAME, columns, "id"), "u1", AT)
    assert json.loads(records.encode_topic(topic, TopicState.ACTIVE)) == {
        "name": "acme/prod/orders",
        "fields": [
            {"name": "id", "type": "int64", "nullable": False},
            {"name": "note", "type": "string", "nullable": True},
        ],
        "partition_column": "id",
        "durability": "fsync",
        "retention": {"age_seconds_max": None, "bytes_max": None, "messages_max": None},
        "unique": "u1",
        "created_us": AT,
        "state": "active",
        "version": 1,
        "first_offset": 0,
    }


def test_a_record_may_have_fields_that_are_not_known_yet() -> None:
    record = json.loads(records.encode_tenant(TenantInfo("acme", AT))) | {"colour": "blue"}
    assert records.decode_tenant(entry(json.dumps(record).encode())) == TenantInfo("acme", AT)


def test_a_record_of_a_later_version_is_refused_whatever_it_looks_like() -> None:
    later = entry(b'{"version": 2, "anything": []}')
    for decode in (records.decode_tenant, records.decode_namespace, records.decode_topic):
        with pytest.raises(VersionUnknown, match=r"/penstock/k has format version 2, .* upgrade"):
            decode(later)


def damaged(**changes: Any) -> bytes:
    return json.dumps(json.loads(records.encode_topic(TYPED, TopicState.ACTIVE)) | changes).encode()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        damaged(name="acme/prod"),
        damaged(state="half"),
        damaged(durability="paper"),
        damaged(fields=[]),
        damaged(fields=[{"name": "id", "type": "decimal", "nullable": False}]),
        damaged(partition_column="elsewhere"),
        damaged(unique=7),
        damaged(retention={"age_seconds_max": "long"}),
    ],
)
def test_the_error_of_a_damaged_record_names_its_key(value: bytes) -> None:
    with pytest.raises(FormatError, match=r"^the record /penstock/k is damaged: "):
        records.decode_topic(entry(value))


def test_a_damaged_partition_value_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"^the record /penstock/k is damaged: "):
        records.decode_partition(entry(b'{"value": {"Int64": "x"}, "version": 1}'))


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("Tenant", TenantRecord),
        ("Namespace", NamespaceRecord),
        ("Topic", TopicRecord),
        ("Partition", PartitionRecord),
    ],
)
def test_the_page_of_formats_describes_every_field(
    heading: str, kind: type[msgspec.Struct]
) -> None:
    (rows,) = tables(heading)
    assert [row["Field"] for row in rows] == list(kind.__struct_fields__)
    assert rows[-1] == {"Field": "version", "Meaning": str(records.RECORD_VERSION)}
