"""Values survive their conversion to messages; malformed messages are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.rpc import message, parse
from penstock.metadata.catalog.interface import AtOwner, InObject, PageQuery, PartitionState
from penstock.metadata.remote import values
from penstock.model import names, schema
from penstock.model.errors import FetchInvalid, PartitionInvalid, SchemaInvalid
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
from penstock.model.units import Microseconds, Offset, PartitionId

NOON = Microseconds(1_700_000_000_123_456)
NAME = TopicName("acme", "shop", "Bestellungen-ü")
VALUES = [
    *(PartitionValue(f"Int{bits}", -(1 << bits - 1)) for bits in (8, 16, 32, 64)),
    *(PartitionValue(f"UInt{bits}", (1 << bits) - 1) for bits in (8, 16, 32, 64)),
    PartitionValue("Int64", 0),
    PartitionValue("String", ""),
    PartitionValue("String", "eu ü"),
    PartitionValue("Bytes", b""),
    PartitionValue("Bytes", b"\x00\xff"),
    PartitionValue("Boolean", False),
    PartitionValue("Boolean", True),
]


def sent(kind: str, value: Any) -> Any:
    """The message after a trip over the wire."""
    return parse(kind, value.SerializeToString())


def test_a_tenant_and_a_namespace_are_read_back() -> None:
    tenant = TenantInfo("acme", NOON)
    assert values.from_message(TenantInfo, sent("Tenant", values.to_message(tenant))) == tenant
    for store in ("", "archive"):
        space = NamespaceInfo(Namespace("acme", "shop"), NOON, store)
        assert (
            values.from_message(NamespaceInfo, sent("Namespace", values.to_message(space))) == space
        )


@pytest.mark.parametrize(
    "spec",
    [
        TopicSpec(NAME),
        TopicSpec(NAME, partition_column="subject", durability=Durability.MEMORY),
        TopicSpec(
            NAME,
            schema.schema(
                schema.column(f"c_{kind}", kind, kind == "bool") for kind in schema.TYPES
            ),
            "c_int64",
            Durability.CLOUD,
            TopicRetention(0.5, (1 << 63) - 1, 1),
        ),
    ],
)
def test_a_topic_is_read_back(spec: TopicSpec) -> None:
    topic = Topic(spec, "u1", NOON)
    assert values.from_message(Topic, sent("Topic", values.to_message(topic))) == topic


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(1 << 62, 0), (-(1 << 62), 0), (253_402_300_800, 0), (0, -1), (0, 10**9)],
)
def test_a_time_that_a_timestamp_cannot_have_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(FetchInvalid, match="is out of range"):
        values.read_time(message("google.protobuf.Timestamp", seconds=seconds, nanos=nanos))


def test_every_limit_that_http_takes_can_be_sent() -> None:
    largest = (1 << 63) - 1
    text = b'{"max_bytes":%d,"max_messages":%d}'
    limits = msgspec.json.decode(text % (largest, largest), type=TopicRetention)
    spec = TopicSpec(NAME, retention=limits)
    assert values.from_message(TopicSpec, sent("Topic", values.to_message(spec)), name=NAME) == spec
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text % (largest + 1, 1), type=TopicRetention)


def test_metadata_of_a_schema_is_not_sent() -> None:
    noted = pa.schema([pa.field("id", pa.int64(), metadata={"a": "b"})], {"c": "d"})
    request = message("Topic", schema=noted.serialize().to_pybytes())
    spec = values.from_message(TopicSpec, request, name=NAME)
    assert spec.schema is not None
    assert spec.schema.equals(pa.schema([pa.field("id", pa.int64())]), check_metadata=True)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"schema": b"nonsense"}, "not an Arrow IPC schema"),
        (
            {"schema": pa.schema([("at", pa.date32())]).serialize().to_pybytes()},
            "column 'at' has the type date32",
        ),
        (
            {"schema": pa.schema([("offset", pa.int64())]).serialize().to_pybytes()},
            "belongs to the envelope",
        ),
        ({"partition_column": "id"}, "no column 'id'"),
        ({"durability": "paper"}, "durability 'paper' is unknown; known: memory, fsync, cloud"),
        ({"retention": {"max_bytes": -1}}, "must be at least 0"),
        ({"retention": {"max_age_seconds": float("nan")}}, "must be at least 0"),
        ({"retention": {"max_age_seconds": float("inf")}}, "must be at most 3153600000"),
        ({"retention": {"max_age_seconds": 1e308}}, "must be at most 3153600000"),
    ],
)
def test_a_topic_that_breaks_a_rule_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SchemaInvalid, match=complaint):
        values.from_message(TopicSpec, message("Topic", **fields), name=NAME)


@pytest.mark.parametrize("value", [None, *VALUES], ids=str)
def test_a_partition_value_is_read_back(value: PartitionValue | None) -> None:
    request = message("GetPartitionRequest", partition_value=values.to_partition_value(value))
    assert values.read_partition_value(sent("GetPartitionRequest", request)) == value


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "unknown kind"),
        ({"int8_value": 128}, "128 is not of the kind Int8"),
        ({"uint16_value": 1 << 16}, "65536 is not of the kind UInt16"),
    ],
)
def test_a_partition_value_that_is_none_is_refused(fields: dict[str, int], complaint: str) -> None:
    request = message("GetPartitionRequest", partition_value=message("PartitionValue", **fields))
    with pytest.raises(PartitionInvalid, match=complaint):
        values.read_partition_value(request)


@pytest.mark.parametrize(
    "location",
    [
        None,
        InObject(PartitionId(7), Offset(3), Offset(9), b'{"a":1}', b"\x00"),
        InObject(PartitionId(0), Offset(0), Offset(1), b"", b""),
        AtOwner(PartitionId(0), Offset(0), Offset((1 << 63) - 1), "[::1]:8080"),
    ],
)
def test_a_location_is_read_back(location: InObject | AtOwner | None) -> None:
    answer = sent("OffsetLocationResponse", values.to_location(location))
    assert values.read_location(answer) == location


@pytest.mark.parametrize("value", [None, PartitionValue("Int8", 0)])
def test_a_partition_is_read_back(value: PartitionValue | None) -> None:
    state = PartitionState(value, PartitionId(-1), Offset(2), Offset(5), 3)
    assert values.from_message(PartitionState, sent("Partition", values.to_message(state))) == state


@pytest.mark.feature("F32")
@given(st.integers(0, 250_000_000_000_000_000))
def test_a_deadline_travels_as_a_timestamp_to_the_microsecond(moment: int) -> None:
    time = values.to_time(Microseconds(moment))
    assert (time.seconds, time.nanos) == (moment // 1_000_000, moment % 1_000_000 * 1000)
    assert values.read_time(time) == moment


def test_a_request_without_a_deadline_waits_for_nothing() -> None:
    assert values.read_time(message("OffsetLocationRequest").deadline) == 0


def test_a_page_has_a_default_size() -> None:
    assert values.read_page(message("ListTopicsRequest")) == PageQuery()
    request = message("ListTopicsRequest", page_size=7, page_token="t")
    assert values.read_page(request) == PageQuery(7, "t")


def test_an_offset_is_not_negative() -> None:
    assert values.read_offset(0) == 0
    with pytest.raises(FetchInvalid, match="offset -1"):
        values.read_offset(-1)


def test_names_are_full_names() -> None:
    assert values.to_message(TopicSpec(NAME)).name == NAME.full
    assert names.tenant(values.to_message(TenantInfo("acme", NOON)).name) == "acme"
