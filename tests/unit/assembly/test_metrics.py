"""Metrics of storage, topics and fetches: all documented ones exist and change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.model import names
from penstock.model.metrics import Histogram
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import TopicSpec
from penstock.model.units import Offset
from penstock.protocols.http.metrics import render
from penstock.topics import Fetcher, FetchState, LocalAdmin, LocalSource, Topics
from tests.unit.assembly.stored import fill, opened
from tests.unit.log.messages import eventually


@pytest.mark.feature("T28")
async def test_metrics_count_appends_and_uploads(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
        metrics = {metric.name: metric for metric in storage.metrics()}
    values = {name: metric.values[0][1] for name, metric in metrics.items() if metric.values}
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
    assert set(metrics) >= {
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


async def test_metrics_are_rendered_for_prometheus(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 1)
        text = render(storage.metrics()).decode()
    assert 'penstock_log_open{topic="default/default/orders"} 1\n' in text
    assert "# TYPE penstock_wal_fsync_latency_ms histogram\n" in text


@pytest.mark.feature("F06")
async def test_metrics_count_topics_partitions_and_fetches(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        host = storage.topic_host()
        topics = Topics(host)
        await topics.open()
        fetcher = Fetcher(LocalAdmin(topics, host), LocalSource(topics), 10)

        def gauges() -> dict[str, object]:
            return {
                metric.name.removeprefix("penstock_"): metric.values[0][1]
                for metric in [*topics.metrics(), *fetcher.metrics()]
            }

        name, fetches = names.topic("a"), ("fetches_running", "fetches_parked")
        counted = {"topics_open": 0, "topics_unopened": 0, "partitions": 0}
        assert gauges() == counted | dict.fromkeys(fetches, 0)
        await topics.create_topic(TopicSpec(name))
        await topics.create_topic(TopicSpec(names.topic("b"), partition_column="subject"))
        values = [PartitionValue("String", value) for value in "xyz"]
        await topics.get(names.topic("b")).partitions.ensure(values)
        fetching = asyncio.create_task(fetcher.fetch(name, None, Offset(0), FetchState(60_000)))
        await eventually(lambda: fetcher.parked == 1)
        counted |= {"topics_open": 2, "partitions": 4}
        assert gauges() == counted | dict.fromkeys(fetches, 1)
        fetching.cancel()
        await asyncio.wait([fetching])
        assert gauges() == counted | dict.fromkeys(fetches, 0)
