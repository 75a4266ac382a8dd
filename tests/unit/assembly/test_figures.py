"""Every figure the seed of the design names is there, and moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.assembly.figures import figures_of, topic_figures
from penstock.doors.http.metrics import render
from penstock.model import names
from penstock.model.histogram import Histogram
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import TopicSpec
from penstock.model.units import Offset
from penstock.topics.fetch_state import FetchState
from penstock.topics.fetcher import Fetcher
from penstock.topics.local import LocalSource
from penstock.topics.topics import Topics
from tests.unit.assembly.stored import fill, opened
from tests.unit.log.messages import eventually


@pytest.mark.feature("T28")
async def test_figures_count_what_happened(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
        figures = {figure.name: figure for figure in figures_of(storage)}
    values = {name: figure.values[0][1] for name, figure in figures.items() if figure.values}
    for name in (
        "penstock_wal_append_latency_ms",
        "penstock_wal_fsync_latency_ms",
        "penstock_upload_latency_ms",
        "penstock_manifest_txn_latency_ms",
    ):
        histogram = values[name]
        assert isinstance(histogram, Histogram)
        assert histogram.count > 0
    assert values["penstock_messages_appended_total"] == 100
    assert values["penstock_upload_objects_total"] == 1
    assert values["penstock_log_open"] == 1.0
    assert values["penstock_upload_lag_bytes"] == 0
    assert set(figures) >= {
        "penstock_wal_bytes_total",
        "penstock_walcache_hit_ratio",
        "penstock_wal_tail_read_latency_ms",
        "penstock_wal_truncate_events_total",
        "penstock_upload_batch_bytes_total",
        "penstock_upload_inflight_parts",
        "penstock_upload_retries_total",
        "penstock_session_complete_events_total",
        "penstock_session_abort_events_total",
    }


async def test_figures_can_be_scraped(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 1)
        text = render(figures_of(storage)).decode()
    assert 'penstock_log_open{topic="default/default/orders"} 1\n' in text
    assert "# TYPE penstock_wal_fsync_latency_ms histogram\n" in text


@pytest.mark.feature("F06")
async def test_topics_partitions_and_fetches_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        topics = Topics(storage.topic_host())
        await topics.open()
        fetcher = Fetcher(topics, LocalSource(topics), 10)

        def figures() -> dict[str, object]:
            return {
                figure.name.removeprefix("penstock_"): figure.values[0][1]
                for figure in topic_figures(topics, fetcher)
            }

        name, fetches = names.topic("a"), ("fetches_running", "fetches_parked")
        assert figures() == dict.fromkeys(("topics_open", "partitions", *fetches), 0)
        await topics.create_topic(TopicSpec(name))
        await topics.create_topic(TopicSpec(names.topic("b"), partition_column="subject"))
        values = [PartitionValue("String", value) for value in "xyz"]
        await topics.get(names.topic("b")).partitions.ensure(values)
        fetching = asyncio.create_task(fetcher.fetch(name, None, Offset(0), FetchState(60_000)))
        await eventually(lambda: fetcher.parked == 1)
        counted = {"topics_open": 2, "partitions": 4}
        assert figures() == counted | dict.fromkeys(fetches, 1)
        fetching.cancel()
        await asyncio.wait([fetching])
        assert figures() == counted | dict.fromkeys(fetches, 0)
