"""Tenants, namespaces and topics, on every store, also when two brokers work at the same time."""

import asyncio
from collections.abc import Awaitable, Sequence

import pytest
import pytest_asyncio

from penstock.metadata import (
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataKeys,
    Put,
    TopicState,
    TransactionResult,
)
from penstock.metadata.catalog import Catalog, PageQuery
from penstock.model import schema
from penstock.model.errors import (
    PenstockError,
    ResourceExists,
    ResourceInUse,
    ResourceUnknown,
)
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import Durability, TopicSpec
from penstock.model.retention import TopicRetention
from tests.conformance.metadata.conftest import Opener

pytestmark = [pytest.mark.feature("F27"), pytest.mark.asyncio(loop_scope="session")]

PROD = Namespace("acme", "prod")
ORDERS = TopicName("acme", "prod", "orders")
ALL = PageQuery(1000)
ANYTHING = Compare("/nobody/puts/this", CompareTarget.VERSION, 0)
"""A guard that holds."""


@pytest.fixture
def keys(root: str) -> MetadataKeys:
    return MetadataKeys(root)


@pytest_asyncio.fixture(loop_scope="session")
async def catalog(store: Metadata, keys: MetadataKeys) -> Catalog:
    return Catalog(store, keys)


async def outcome(call: Awaitable[object]) -> str:
    """Whether a call worked, or the kind of error it met."""
    try:
        await call
    except PenstockError as error:
        return type(error).__name__
    return "ok"


async def test_a_created_resource_is_read_back(catalog: Catalog) -> None:
    tenant = await catalog.create_tenant("acme")
    namespace = await catalog.create_namespace(PROD)
    spec = TopicSpec(
        ORDERS,
        schema.schema(map(schema.field, ["id:int64", "region:string", "price:float64?"])),
        "region",
        Durability.CLOUD,
        TopicRetention(3600.5, 1 << 40, 7),
    )
    topic = await catalog.record_topic(spec)
    assert await catalog.get_tenant("acme") == tenant
    assert await catalog.get_namespace(PROD) == namespace
    kept = await catalog.find_topic(ORDERS)
    assert kept is not None
    assert (kept.topic, kept.topic.spec, kept.state) == (topic, spec, TopicState.ACTIVE)
    assert [item async for item in catalog.all_topics()] == [kept]


async def test_a_topic_made_again_is_another_one(catalog: Catalog) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    first = await catalog.record_topic(TopicSpec(ORDERS))
    await forget(catalog)
    second = await catalog.record_topic(TopicSpec(ORDERS))
    assert first.unique != second.unique


async def test_what_does_not_exist_is_unknown_by_its_full_name(catalog: Catalog) -> None:
    with pytest.raises(ResourceUnknown, match=r"^tenant tenants/acme does not exist$"):
        await catalog.get_tenant("acme")
    with pytest.raises(ResourceUnknown, match=r"^namespace tenants/acme/namespaces/prod does not"):
        await catalog.get_namespace(PROD)
    with pytest.raises(ResourceUnknown, match=r"^tenant tenants/acme "):
        await catalog.create_namespace(PROD)
    with pytest.raises(ResourceUnknown, match=r"^tenant tenants/acme "):
        await catalog.list_namespaces("acme", ALL)
    await catalog.create_tenant("acme")
    with pytest.raises(ResourceUnknown, match=r"^namespace tenants/acme/namespaces/prod "):
        await catalog.record_topic(TopicSpec(ORDERS))
    with pytest.raises(ResourceUnknown, match=r"^namespace tenants/acme/namespaces/prod "):
        await catalog.list_topics(PROD, ALL)
    with pytest.raises(ResourceUnknown, match=r"^namespace tenants/acme/namespaces/prod "):
        await catalog.delete_namespace(PROD)
    with pytest.raises(ResourceUnknown, match=r"^tenant tenants/other "):
        await catalog.delete_tenant("other")
    assert await catalog.find_topic(ORDERS) is None


async def test_nothing_is_made_twice(catalog: Catalog) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    await catalog.record_topic(TopicSpec(ORDERS))
    with pytest.raises(ResourceExists, match=r"^tenant tenants/acme exists already$"):
        await catalog.create_tenant("acme")
    with pytest.raises(ResourceExists, match=r"^namespace "):
        await catalog.create_namespace(PROD)
    with pytest.raises(ResourceExists, match=r"^topic tenants/acme/namespaces/prod/topics/orders "):
        await catalog.record_topic(TopicSpec(ORDERS, durability=Durability.CLOUD))


async def test_only_what_is_empty_is_deleted_and_an_error_names_what_is_in_it(
    catalog: Catalog,
) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    for name in ("d", "a", "c", "b"):
        await catalog.record_topic(TopicSpec(TopicName(*PROD, name)))
    with pytest.raises(ResourceInUse, match=r"^tenant tenants/acme cannot .* namespace prod$"):
        await catalog.delete_tenant("acme")
    with pytest.raises(ResourceInUse, match=r"has the topic a, b, c, \.\.\.$"):
        await catalog.delete_namespace(PROD)
    for name in ("a", "b", "c", "d"):
        await forget(catalog, TopicName(*PROD, name))
    await catalog.delete_namespace(PROD)
    await catalog.delete_tenant("acme")
    assert (await catalog.list_tenants(ALL)).items == []


async def test_names_that_begin_alike_are_not_each_others_children(catalog: Catalog) -> None:
    await catalog.create_tenant("a")
    await catalog.create_tenant("a-b")
    await catalog.create_namespace(Namespace("a-b", "n"))
    await catalog.create_namespace(Namespace("a-b", "n-m"))
    await catalog.record_topic(TopicSpec(TopicName("a-b", "n-m", "t")))
    await catalog.delete_tenant("a")
    await catalog.delete_namespace(Namespace("a-b", "n"))


async def test_defaults_are_made_once_and_may_be_deleted(catalog: Catalog) -> None:
    default = Namespace("default", "default")
    await asyncio.gather(catalog.ensure_default(), catalog.ensure_default())
    assert [info.tenant for info in (await catalog.list_tenants(ALL)).items] == ["default"]
    assert (await catalog.get_namespace(default)).name == default
    await catalog.delete_namespace(default)
    await catalog.ensure_default()
    assert (await catalog.list_namespaces("default", ALL)).items == []
    await catalog.create_tenant("acme")
    await catalog.delete_tenant("default")
    await catalog.ensure_default()
    assert [info.tenant for info in (await catalog.list_tenants(ALL)).items] == ["acme"]


async def test_defaults_that_another_broker_makes_meanwhile_are_left_as_they_are(
    store: Metadata, keys: MetadataKeys
) -> None:
    interrupted = Interrupted(store)
    one, other = Catalog(store, keys), Catalog(interrupted, keys)  # type: ignore[arg-type]
    interrupted.meanwhile = one.ensure_default()
    await other.ensure_default()
    entry = await store.get(keys.tenant("default"))
    assert entry is not None
    assert entry.version == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
async def test_pages_hold_everything_once_in_the_order_of_names(
    catalog: Catalog, size: int
) -> None:
    names = ["B", "a", "b", "a-b", "é", "日本", "_"]
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    for name in names:
        await catalog.record_topic(TopicSpec(TopicName(*PROD, name)))
    found: list[str] = []
    token = ""
    while True:
        page = await catalog.list_topics(PROD, PageQuery(size, token))
        found += [topic.name.topic for topic in page.items]
        token = page.next_token
        if not token:
            break
        assert (len(page.items), token) == (size, found[-1])
    assert found == sorted(names)


async def test_a_page_begins_behind_its_token_even_when_that_is_no_name(catalog: Catalog) -> None:
    for tenant in ("a", "c", "e"):
        await catalog.create_tenant(tenant)
    for token, left in {"a": ["c", "e"], "b": ["c", "e"], "e": [], "z": []}.items():
        page = await catalog.list_tenants(PageQuery(token=token))
        assert ([info.tenant for info in page.items], page.next_token) == (left, "")


@pytest.mark.parametrize(("asked", "given"), [(-3, 1), (0, 1), (1, 1), (1000, 1000), (5000, 1000)])
async def test_sizes_of_pages_are_brought_within_limits(
    catalog: Catalog, store: Metadata, keys: MetadataKeys, asked: int, given: int
) -> None:
    await catalog.create_tenant("t")
    template = await store.get(keys.tenant("t"))
    assert template is not None
    names = [f"t{number:04d}" for number in range(1001)]
    for start in range(0, len(names), 100):
        puts = [Put(keys.tenant(name), template.value) for name in names[start : start + 100]]
        await store.transaction([], puts)
    page = await catalog.list_tenants(PageQuery(asked))
    assert len(page.items) == given
    assert page.next_token


async def test_a_topic_on_its_way_out_is_not_listed_but_holds_its_name_and_its_namespace(
    catalog: Catalog,
) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    for name in ("a", "b", "c"):
        await catalog.record_topic(TopicSpec(TopicName(*PROD, name)))
    for name in ("a", "c"):
        kept = await catalog.find_topic(TopicName(*PROD, name))
        assert kept is not None
        gone = await catalog.begin_deletion(kept, ANYTHING)
        assert await catalog.find_topic(TopicName(*PROD, name)) == gone
    page = await catalog.list_topics(PROD, PageQuery(1))
    assert ([topic.name.topic for topic in page.items], page.next_token) == (["b"], "")
    with pytest.raises(ResourceInUse, match=r"topics/a is still being deleted; retry later$"):
        await catalog.record_topic(TopicSpec(TopicName(*PROD, "a")))
    await forget(catalog, TopicName(*PROD, "b"))
    with pytest.raises(ResourceInUse, match=r"has the topic a, c$"):
        await catalog.delete_namespace(PROD)
    await catalog.end_deletion(gone)
    await catalog.end_deletion(gone)
    assert await catalog.find_topic(TopicName(*PROD, "c")) is None
    await catalog.record_topic(TopicSpec(TopicName(*PROD, "c")))
    await catalog.end_deletion(gone)
    assert await catalog.find_topic(TopicName(*PROD, "c")) is not None


async def test_pages_are_full_however_many_topics_are_on_their_way_out(catalog: Catalog) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    for name in "abcdefgh":
        await catalog.record_topic(TopicSpec(TopicName(*PROD, name)))
    for name in "abcef":
        kept = await catalog.find_topic(TopicName(*PROD, name))
        assert kept is not None
        await catalog.begin_deletion(kept, ANYTHING)
    pages = []
    for token in ("", "d", "g"):
        page = await catalog.list_topics(PROD, PageQuery(1, token))
        pages.append(([topic.name.topic for topic in page.items], page.next_token))
    assert pages == [(["d"], "d"), (["g"], "g"), (["h"], "")]


async def test_only_the_owner_begins_a_deletion_and_only_of_what_it_has_read(
    catalog: Catalog,
) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    await catalog.record_topic(TopicSpec(ORDERS))
    kept = await catalog.find_topic(ORDERS)
    assert kept is not None
    deposed = Compare("/somebody/else", CompareTarget.CREATE_REVISION, 1)
    with pytest.raises(ResourceInUse, match=r"has changed meanwhile; retry$"):
        await catalog.begin_deletion(kept, deposed)
    await catalog.begin_deletion(kept, ANYTHING)
    with pytest.raises(ResourceInUse, match=r"has changed meanwhile; retry$"):
        await catalog.begin_deletion(kept, ANYTHING)


async def test_of_many_that_make_the_same_one_does(open_store: Opener, keys: MetadataKeys) -> None:
    store = await open_store()
    catalogs = [Catalog(store, keys) for _ in range(8)]
    made = await asyncio.gather(*(outcome(c.create_tenant("acme")) for c in catalogs))
    assert sorted(made) == ["ResourceExists"] * 7 + ["ok"]
    made = await asyncio.gather(*(outcome(c.create_namespace(PROD)) for c in catalogs))
    assert sorted(made) == ["ResourceExists"] * 7 + ["ok"]
    made = await asyncio.gather(*(outcome(c.record_topic(TopicSpec(ORDERS))) for c in catalogs))
    assert sorted(made) == ["ResourceExists"] * 7 + ["ok"]


async def test_many_children_of_one_parent_are_made_at_the_same_time(catalog: Catalog) -> None:
    await catalog.create_tenant("acme")
    await catalog.create_namespace(PROD)
    specs = [TopicSpec(TopicName(*PROD, f"t{number}")) for number in range(40)]
    await asyncio.gather(*map(catalog.record_topic, specs))
    assert len((await catalog.list_topics(PROD, ALL)).items) == 40


class Interrupted:
    """A store in which something else happens right before a transaction, once."""

    def __init__(self, store: Metadata) -> None:
        self.store = store
        self.meanwhile: Awaitable[object] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile
        return await self.store.transaction(compares, changes)


async def test_a_parent_is_not_deleted_under_a_child_that_is_being_made(
    store: Metadata, keys: MetadataKeys
) -> None:
    interrupted = Interrupted(store)
    one, other = Catalog(store, keys), Catalog(interrupted, keys)  # type: ignore[arg-type]
    await one.create_tenant("acme")
    interrupted.meanwhile = one.create_namespace(PROD)
    with pytest.raises(ResourceInUse, match="has the namespace prod"):
        await other.delete_tenant("acme")
    interrupted.meanwhile = one.record_topic(TopicSpec(ORDERS))
    with pytest.raises(ResourceInUse, match="has the topic orders"):
        await other.delete_namespace(PROD)


async def test_a_child_is_not_made_under_a_parent_that_is_being_deleted(
    store: Metadata, keys: MetadataKeys
) -> None:
    interrupted = Interrupted(store)
    one, other = Catalog(store, keys), Catalog(interrupted, keys)  # type: ignore[arg-type]
    await one.create_tenant("acme")
    interrupted.meanwhile = one.delete_tenant("acme")
    with pytest.raises(ResourceUnknown, match=r"^tenant tenants/acme "):
        await other.create_namespace(PROD)
    await one.create_tenant("acme")
    await one.create_namespace(PROD)
    interrupted.meanwhile = one.delete_namespace(PROD)
    with pytest.raises(ResourceUnknown, match=r"^namespace "):
        await other.record_topic(TopicSpec(ORDERS))
    assert await one.find_topic(ORDERS) is None


async def test_a_parent_that_was_made_again_meanwhile_gets_its_child(
    store: Metadata, keys: MetadataKeys
) -> None:
    interrupted = Interrupted(store)
    one, other = Catalog(store, keys), Catalog(interrupted, keys)  # type: ignore[arg-type]
    await one.create_tenant("acme")

    async def again() -> None:
        await one.delete_tenant("acme")
        await one.create_tenant("acme")

    interrupted.meanwhile = again()
    await other.create_namespace(PROD)
    with pytest.raises(ResourceInUse):
        await one.delete_tenant("acme")


async def test_parents_and_children_agree_however_makers_and_deleters_race(
    open_store: Opener, keys: MetadataKeys
) -> None:
    store = await open_store()
    catalogs = [Catalog(store, keys) for _ in range(4)]
    await catalogs[0].create_tenant("acme")

    async def make_and_delete(catalog: Catalog, number: int) -> None:
        mine = Namespace("acme", f"n{number % 2}")
        for _ in range(10):
            await outcome(catalog.create_tenant("acme"))
            await outcome(catalog.create_namespace(mine))
            await outcome(catalog.record_topic(TopicSpec(TopicName(*mine, "t"))))
            if number % 2:
                await forget(catalog, TopicName(*mine, "t"))
            await outcome(catalog.delete_namespace(mine))
            await outcome(catalog.delete_tenant("acme"))

    await asyncio.gather(*(make_and_delete(c, number) for number, c in enumerate(catalogs)))
    tenants = {entry.key for entry in (await store.range(keys.tenants())).entries}
    spaces = [e.key for e in (await store.range(keys.namespaces("acme"))).entries]
    assert not spaces or keys.tenant("acme") in tenants
    async for kept in catalogs[0].all_topics():
        name = Namespace(kept.topic.name.tenant, kept.topic.name.namespace)
        assert keys.namespace(name) in spaces


async def forget(catalog: Catalog, name: TopicName = ORDERS) -> None:
    """A topic's record goes, if there is one."""
    kept = await catalog.find_topic(name)
    if kept is not None:
        await catalog.end_deletion(kept)
