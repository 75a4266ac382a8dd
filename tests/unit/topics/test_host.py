"""Namespaces that name a store of their own."""

from __future__ import annotations

import pytest

from penstock.model.errors import ResourceUnknown
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import TopicSpec
from penstock.objects import MemoryStore, ObjectStore
from penstock.topics.host import no_store
from tests.broker.storage import World
from tests.broker.topics import Served, payloads, push

SPACE = Namespace("acme", "cold")
NAME = TopicName("acme", "cold", "orders")


async def _keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


@pytest.mark.feature("F35")
async def test_a_topics_objects_are_in_the_store_its_namespace_names(world: World) -> None:
    broker = await world.broker()
    archive = MemoryStore()
    served = Served(broker, store_named={"archive": archive}.__getitem__)
    topics = served.topics
    await topics.open()
    await served.admin.create_tenant("acme")
    await served.admin.create_namespace(SPACE, "archive")
    await topics.create_topic(TopicSpec(NAME))
    opened = topics.get(NAME)
    await push(opened, b"a", b"b")
    await broker.tiers.flush(NAME)
    assert any("data-" in key for key in await _keys(archive))
    assert not [key for key in await _keys(broker.store) if "orders" in key]
    assert await payloads(served.source, opened.topic) == [(0, b"a"), (1, b"b")]
    await topics.delete_topic(NAME)
    assert await _keys(archive) == []


async def test_an_unknown_store_is_refused_and_no_namespace_is_created(world: World) -> None:
    broker = await world.broker()
    admin = Served(broker).admin
    await admin.create_tenant("acme")
    with pytest.raises(ResourceUnknown, match="object store archive does not exist"):
        await admin.create_namespace(SPACE, "archive")
    with pytest.raises(ResourceUnknown, match="namespace"):
        await admin.get_namespace(SPACE)


def test_without_other_stores_none_has_a_name() -> None:
    with pytest.raises(ResourceUnknown, match="object store archive does not exist"):
        no_store("archive")
