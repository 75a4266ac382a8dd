"""The catalog with a failing store; tests/conformance/metadata tests the catalog itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from penstock.metadata.catalog.catalog import Catalog
from penstock.metadata.catalog.interface import PageQuery
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.sqlite.metadata import SqliteMetadata
from penstock.model.errors import ResourceExists
from penstock.model.names import DEFAULT_NAMESPACE, TopicName
from penstock.model.resources import TopicSpec
from tests.faults import FaultyMetadata

KEYS = MetadataKeys()
SPEC = TopicSpec(TopicName(*DEFAULT_NAMESPACE, "orders"))


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[FaultyMetadata]:
    store = FaultyMetadata(await SqliteMetadata.open(tmp_path))
    yield store
    await store.close()


@pytest.mark.feature("F27")
async def test_a_record_exists_although_the_reply_was_lost(store: FaultyMetadata) -> None:
    catalog = Catalog(store, KEYS)
    await catalog.ensure_default()
    store.answers_lost = 1
    with pytest.raises(MetadataUnavailable):
        await catalog.record_topic(SPEC)
    with pytest.raises(ResourceExists):
        await catalog.record_topic(SPEC)
    (topic,) = (await catalog.list_topics(DEFAULT_NAMESPACE, PageQuery())).items
    assert topic.spec == SPEC


@pytest.mark.feature("F27")
async def test_nothing_is_created_while_the_store_is_unavailable(store: FaultyMetadata) -> None:
    catalog = Catalog(store, KEYS)
    await catalog.ensure_default()
    store.cut = True
    with pytest.raises(MetadataUnavailable):
        await catalog.record_topic(SPEC)
    store.cut = False
    assert await catalog.find_topic(SPEC.name) is None


async def test_one_damaged_record_does_not_hide_the_others(store: FaultyMetadata) -> None:
    catalog = Catalog(store, KEYS)
    await catalog.ensure_default()
    topic = await catalog.record_topic(SPEC)
    for name in ("a", "z"):
        await store.put(KEYS.topic_record(TopicName(*DEFAULT_NAMESPACE, name)), b"?")
    with capture_logs() as events:
        assert [stored.topic async for stored in catalog.all_topics()] == [topic]
    assert [event["event"] for event in events] == ["record_damaged"] * 2


async def test_all_topics_are_listed_over_any_number_of_pages(store: FaultyMetadata) -> None:
    catalog = Catalog(store, KEYS)
    await catalog.ensure_default()
    await catalog.record_topic(SPEC)
    record = await store.get(KEYS.topic_record(SPEC.name))
    assert record is not None
    for number in range(1100):
        name = TopicName(*DEFAULT_NAMESPACE, f"t{number}")
        await store.put(KEYS.topic_record(name), record.value)
    assert len([stored async for stored in catalog.all_topics()]) == 1101
