"""How the gRPC services read requests; the tests of the remote clients cover the replies."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.formats.rpc import METHODS, message
from penstock.metadata.catalog import InObject
from penstock.model.errors import (
    FetchInvalid,
    NameInvalid,
    PartitionInvalid,
    PenstockError,
    SchemaInvalid,
)
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset, PartitionId
from penstock.protocols.grpc.handlers import admin_handlers, offset_handlers
from tests.unit.metadata.counting import CountingAdmin, CountingRegistry


async def _call_admin(name: str, admin: CountingAdmin, /, **fields: Any) -> Any:
    handlers = admin_handlers(admin)
    return await handlers[name](METHODS[name].request(**fields))


def test_every_call_of_the_admin_service_has_a_handler() -> None:
    calls = [name for name, method in METHODS.items() if ".Admin/" in method.path]
    assert sorted(admin_handlers(CountingAdmin())) == sorted(calls)


@pytest.mark.feature("F32")
async def test_a_resource_is_created_below_its_parent_by_its_id() -> None:
    admin = CountingAdmin()
    assert (await _call_admin("CreateTenant", admin, tenant_id="acme")).name == "tenants/acme"
    space = await _call_admin(
        "CreateNamespace", admin, parent="tenants/acme", namespace_id="shop", namespace={}
    )
    assert (space.name, space.store) == ("tenants/acme/namespaces/shop", "")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)]).serialize().to_pybytes()
    wish = {"schema": schema, "partition_column": "id", "name": "tenants/x/namespaces/y/topics/z"}
    topic = await _call_admin(
        "CreateTopic", admin, parent=space.name, topic_id="Orders", topic=message("Topic", **wish)
    )
    assert (topic.name, topic.durability, topic.partition_column) == (
        "tenants/acme/namespaces/shop/topics/Orders",
        "fsync",
        "id",
    )
    assert pa.ipc.read_schema(pa.py_buffer(topic.schema)).names == ["id"]
    raw = await _call_admin("CreateTopic", admin, parent=space.name, topic_id="raw")
    assert raw.schema == b""


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("CreateTenant", {}, NameInvalid),
        ("CreateTenant", {"tenant_id": "A"}, NameInvalid),
        ("GetTenant", {"name": "tenants/a/b"}, NameInvalid),
        ("CreateNamespace", {"parent": "tenants/a", "namespace_id": "b/c"}, NameInvalid),
        ("CreateNamespace", {"parent": "", "namespace_id": "b"}, NameInvalid),
        ("ListNamespaces", {"parent": "namespaces/a"}, NameInvalid),
        ("CreateTopic", {"parent": "tenants", "topic_id": "t"}, NameInvalid),
        ("CreateTopic", {"parent": "a/b", "topic_id": "c/d"}, NameInvalid),
        ("CreateTopic", {"parent": "a/b", "topic_id": ""}, NameInvalid),
        (
            "CreateTopic",
            {"parent": "a/b", "topic_id": "t", "topic": {"durability": "paper"}},
            SchemaInvalid,
        ),
        ("DeleteTopic", {"name": "a.b"}, NameInvalid),
    ],
)
async def test_a_malformed_admin_request_is_refused_before_the_admin_is_called(
    name: str, fields: dict[str, Any], error: type[PenstockError]
) -> None:
    admin = CountingAdmin()
    with pytest.raises(error):
        await _call_admin(name, admin, **fields)
    assert not admin.asked


TOPIC = "tenants/acme/namespaces/shop/topics/orders"


async def _call_registry(name: str, registry: CountingRegistry, /, **fields: Any) -> Any:
    return await offset_handlers(registry)[name](METHODS[name].request(**fields))


def test_every_call_of_the_offset_registry_has_a_handler() -> None:
    calls = [name for name, method in METHODS.items() if ".OffsetRegistry/" in method.path]
    assert sorted(offset_handlers(CountingRegistry())) == sorted(calls)


@pytest.mark.feature("F32")
async def test_a_request_for_an_offset_is_passed_to_the_registry() -> None:
    registry = CountingRegistry()
    place = InObject(PartitionId(2), Offset(5), Offset(9), b"entry", b"")
    await registry.put(7, place)
    value = message("PartitionValue", int64_value=0)
    answer = await _call_registry(
        "OffsetLocation", registry, topic=TOPIC, partition_value=value, offset=7, deadline={}
    )
    assert (answer.in_object.partition_id, answer.in_object.entry) == (2, b"entry")
    assert (registry.values, registry.deadlines) == ([PartitionValue("Int64", 0)], [0])
    nothing = await _call_registry("OffsetLocation", registry, topic=TOPIC, offset=8)
    assert nothing.WhichOneof("location") is None
    assert registry.values[1] is None


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("OffsetLocation", {"topic": "a.b"}, NameInvalid),
        ("OffsetLocation", {"topic": TOPIC, "offset": -1}, FetchInvalid),
        ("OffsetLocation", {"topic": TOPIC, "partition_value": {}}, PartitionInvalid),
        ("GetPartition", {"topic": ""}, NameInvalid),
        ("ListPartitions", {"parent": "tenants/a"}, NameInvalid),
    ],
)
async def test_a_malformed_offset_request_is_refused_before_the_registry_is_called(
    name: str, fields: dict[str, Any], error: type[PenstockError]
) -> None:
    registry = CountingRegistry()
    with pytest.raises(error):
        await _call_registry(name, registry, **fields)
    assert not registry.asked
