"""How requests of the service Admin are read; test_remote_admin.py has the rest."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.doors.grpc.admin import admin_handlers
from penstock.formats.rpc import METHODS, SERVICES, message
from penstock.model.errors import NameInvalid, PenstockError, SchemaInvalid
from tests.unit.metadata.asked import CountingAdmin


async def _answer(name: str, admin: CountingAdmin, /, **fields: Any) -> Any:
    handlers = admin_handlers(admin)
    return await handlers[name](METHODS[name].request(**fields))


def test_every_call_of_the_service_has_its_handler() -> None:
    assert list(admin_handlers(CountingAdmin())) == list(SERVICES["Admin"])


@pytest.mark.feature("F32")
async def test_a_resource_is_made_below_its_parent_by_its_id() -> None:
    admin = CountingAdmin()
    assert (await _answer("CreateTenant", admin, tenant_id="acme")).name == "tenants/acme"
    space = await _answer(
        "CreateNamespace", admin, parent="tenants/acme", namespace_id="shop", namespace={}
    )
    assert (space.name, space.store) == ("tenants/acme/namespaces/shop", "")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)]).serialize().to_pybytes()
    wish = {"schema": schema, "partition_column": "id", "name": "tenants/x/namespaces/y/topics/z"}
    topic = await _answer(
        "CreateTopic", admin, parent=space.name, topic_id="Orders", topic=message("Topic", **wish)
    )
    assert (topic.name, topic.durability, topic.partition_column) == (
        "tenants/acme/namespaces/shop/topics/Orders",
        "fsync",
        "id",
    )
    assert pa.ipc.read_schema(pa.py_buffer(topic.schema)).names == ["id"]
    raw = await _answer("CreateTopic", admin, parent=space.name, topic_id="raw")
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
async def test_a_malformed_request_is_refused_before_anything_is_asked(
    name: str, fields: dict[str, Any], error: type[PenstockError]
) -> None:
    admin = CountingAdmin()
    with pytest.raises(error):
        await _answer(name, admin, **fields)
    assert not admin.asked
