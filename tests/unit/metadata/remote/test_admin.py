"""The remote admin returns what the broker's Admin returns; concurrent gets share a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.metadata.catalog.interface import Admin, ListPage, PageQuery
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.remote.admin import RemoteAdmin
from penstock.model import schema
from penstock.model.errors import ResourceExists, ResourceInUse, ResourceUnknown
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, TopicSpec
from tests.eventually import eventually
from tests.unit.metadata.counting import NOON, served

SPACE = Namespace("acme", "shop")
NAME = TopicName("acme", "shop", "orders")
SPEC = TopicSpec(NAME, schema.schema([schema.field("id:int64")]), "id")

GETS: dict[str, Callable[[Admin], Awaitable[Any]]] = {
    "get_tenant": lambda admin: admin.get_tenant("acme"),
    "get_namespace": lambda admin: admin.get_namespace(SPACE),
    "get_topic": lambda admin: admin.get_topic(NAME),
}


@pytest.mark.feature("F32")
async def test_resources_are_created_read_listed_and_deleted() -> None:
    async with served() as broker:
        admin: Admin = RemoteAdmin(broker.calls)
        assert await admin.create_tenant("acme") == TenantInfo("acme", NOON)
        assert await admin.get_tenant("acme") == TenantInfo("acme", NOON)
        space = NamespaceInfo(SPACE, NOON, "archive")
        assert await admin.create_namespace(SPACE, "archive") == space
        assert await admin.get_namespace(SPACE) == space
        topic = await admin.create_topic(SPEC)
        assert (topic.spec, topic.unique, topic.created_us) == (SPEC, "u0", NOON)
        assert await admin.get_topic(NAME) == topic

        assert await admin.list_tenants(PageQuery()) == ListPage([TenantInfo("acme", NOON)], "")
        assert await admin.list_namespaces("acme", PageQuery()) == ListPage([space], "")
        assert await admin.list_topics(SPACE, PageQuery()) == ListPage([topic], "")

        with pytest.raises(ResourceInUse, match=r"namespace .* is not empty"):
            await admin.delete_namespace(SPACE)
        await admin.delete_topic(NAME)
        await admin.delete_namespace(SPACE)
        await admin.delete_tenant("acme")
        assert not broker.admin.tenants


async def test_a_list_has_pages() -> None:
    async with served() as broker:
        admin = RemoteAdmin(broker.calls)
        for tenant in "abcde":
            await admin.create_tenant(tenant)
        found, token = [], ""
        for _ in range(3):
            page = await admin.list_tenants(PageQuery(2, token))
            found.append([info.tenant for info in page.items])
            token = page.next_token
        assert (found, token) == ([["a", "b"], ["c", "d"], ["e"]], "")


async def test_errors_are_those_of_the_broker() -> None:
    async with served() as broker:
        admin = RemoteAdmin(broker.calls)
        with pytest.raises(ResourceUnknown) as unknown:
            await admin.get_topic(NAME)
        assert (unknown.value.kind, unknown.value.name) == ("topic", NAME.full)
        await admin.create_tenant("acme")
        with pytest.raises(ResourceExists, match="tenant tenants/acme exists already"):
            await admin.create_tenant("acme")


@pytest.mark.feature("F16", "F34")
@pytest.mark.parametrize("what", GETS)
async def test_a_hundred_gets_at_once_are_one_call(what: str) -> None:
    async with served() as broker:
        admin = RemoteAdmin(broker.calls)
        await broker.admin.create_tenant("acme")
        await broker.admin.create_namespace(SPACE)
        await broker.admin.create_topic(SPEC)
        broker.admin.held.clear()
        gets = asyncio.gather(*(GETS[what](admin) for _ in range(100)))

        async def called() -> bool:
            return broker.admin.asked[what] == 1

        await eventually(called)
        broker.admin.held.set()
        answers = await gets
        assert answers == [await GETS[what](broker.admin)] * 100
        assert broker.admin.asked[what] == 2


@pytest.mark.feature("F34")
async def test_a_failed_get_fails_for_all_callers_and_the_next_calls_again() -> None:
    async with served() as broker:
        admin = RemoteAdmin(broker.calls)
        await broker.admin.create_tenant("acme")
        broker.admin.failure = MetadataUnavailable("away")
        failed = await asyncio.gather(
            *(admin.get_tenant("acme") for _ in range(3)), return_exceptions=True
        )
        assert [type(error) for error in failed] == [MetadataUnavailable] * 3
        broker.admin.failure = None
        assert await admin.get_tenant("acme") == TenantInfo("acme", NOON)
        assert broker.admin.asked["get_tenant"] == 2


async def test_a_topic_that_was_deleted_is_unknown_at_once() -> None:
    async with served() as broker:
        admin = RemoteAdmin(broker.calls)
        await broker.admin.create_topic(SPEC)
        await admin.get_topic(NAME)
        await broker.admin.delete_topic(NAME)
        with pytest.raises(ResourceUnknown):
            await admin.get_topic(NAME)
