"""The figures of a broker, by the names dashboards know them by."""

from __future__ import annotations

from penstock.assembly.storage import Storage
from penstock.log.reopen import Mode
from penstock.model.metrics import Metric, single
from penstock.topics.fetcher import Fetcher
from penstock.topics.topics import Topics


def figures_of(storage: Storage) -> list[Metric]:
    """Everything that was counted, and the state of things now."""
    return [*_log_figures(storage), *_tier_figures(storage)]


def topic_figures(topics: Topics, fetcher: Fetcher) -> list[Metric]:
    """The state of topics and fetches now."""
    counted = [
        ("topics_open", "Topics that are served here.", len(topics)),
        ("partitions", "Partitions of these.", sum(len(opened.partitions) for opened in topics)),
    ]
    return [*_gauges(counted), *fetch_figures(fetcher)]


def fetch_figures(fetcher: Fetcher) -> list[Metric]:
    """The state of fetches now."""
    return _gauges(
        [
            ("fetches_running", "Fetches at work or waiting.", fetcher.running),
            ("fetches_parked", "Fetches that wait for messages.", fetcher.parked),
        ]
    )


def _gauges(counted: list[tuple[str, str, int]]) -> list[Metric]:
    return [single(f"penstock_{name}", "gauge", text, value) for name, text, value in counted]


def _log_figures(storage: Storage) -> list[Metric]:
    counters, cache = storage.logs.counters, storage.logs.cache
    looked = cache.hits + cache.misses
    statuses = [log.status() for log in storage.logs]
    by_topic = [({"topic": status.topic}, status) for status in statuses]
    return [
        single(
            "penstock_wal_append_latency_ms",
            "histogram",
            "From the frames of a group to its acknowledgement.",
            counters.append_ms,
        ),
        single(
            "penstock_wal_fsync_latency_ms", "histogram", "One sync of the disk.", counters.sync_ms
        ),
        single(
            "penstock_wal_tail_read_latency_ms",
            "histogram",
            "A read that the cache could not answer.",
            counters.read_ms,
        ),
        single(
            "penstock_messages_appended_total", "counter", "Messages stored.", counters.messages
        ),
        single(
            "penstock_wal_truncate_events_total",
            "counter",
            "Files that recovery cut.",
            counters.truncations,
        ),
        single("penstock_walcache_bytes", "gauge", "Bytes in the tail cache.", cache.size_bytes),
        single(
            "penstock_walcache_hit_ratio",
            "gauge",
            "Share of reads answered by the tail cache.",
            cache.hits / looked if looked else 1.0,
        ),
        Metric(
            "penstock_wal_bytes_total",
            "gauge",
            "Bytes of WAL files.",
            [(labels, status.file_bytes) for labels, status in by_topic],
        ),
        Metric(
            "penstock_log_open",
            "gauge",
            "1 when the log takes messages, 0 when it is read-only.",
            [(labels, float(status.mode is Mode.OPEN)) for labels, status in by_topic],
        ),
        Metric(
            "penstock_log_damaged_offsets",
            "gauge",
            "Offsets that were given out and cannot be read.",
            [(labels, sum(m.next - m.first for m in s.missing)) for labels, s in by_topic],
        ),
    ]


def _tier_figures(storage: Storage) -> list[Metric]:
    counters = storage.counters
    counted = [
        ("upload_objects_total", "Objects uploaded.", counters.uploads),
        ("upload_batch_bytes_total", "Bytes of uploaded objects.", counters.upload_bytes),
        ("upload_retries_total", "Rounds of uploads that failed.", counters.upload_retries),
        ("manifest_merges_total", "Merges of small objects.", counters.merges),
        (
            "session_complete_events_total",
            "Uploads found whole after a crash.",
            counters.sessions_completed,
        ),
        (
            "session_abort_events_total",
            "Uploads thrown away after a crash.",
            counters.sessions_aborted,
        ),
    ]
    tiers = storage.tiers
    lags = [] if tiers is None else [(str(topic), tiers.lag_bytes(topic)) for topic in tiers.topics]
    return [
        *(single(f"penstock_{name}", "counter", text, value) for name, text, value in counted),
        single(
            "penstock_upload_inflight_parts",
            "gauge",
            "Objects on their way to the bucket.",
            counters.uploads_in_flight,
        ),
        single("penstock_upload_latency_ms", "histogram", "Put and read back.", counters.upload_ms),
        single(
            "penstock_manifest_txn_latency_ms",
            "histogram",
            "One transaction of a manifest.",
            counters.transaction_ms,
        ),
        Metric(
            "penstock_upload_lag_bytes",
            "gauge",
            "Bytes that are in no object yet.",
            [({"topic": topic}, lag) for topic, lag in lags],
        ),
    ]
