"""Counters of the tiers, which the metrics read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.model.metrics import Histogram, Metric, single


@dataclass(slots=True)
class TierCounters:
    """Totals over all topics of a broker."""

    uploads: int = 0
    uploads_in_flight: int = 0
    upload_bytes: int = 0
    upload_ms: Histogram = field(default_factory=Histogram)
    upload_retries: int = 0
    transaction_ms: Histogram = field(default_factory=Histogram)
    sessions_completed: int = 0
    sessions_aborted: int = 0
    merges: int = 0

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count an upload as in flight within this block."""
        self.uploads_in_flight += 1
        try:
            yield
        finally:
            self.uploads_in_flight -= 1

    def uploaded(self, size_bytes: int, duration_ns: int) -> None:
        self.uploads += 1
        self.upload_bytes += size_bytes
        self.upload_ms.observe(duration_ns / 1e6)

    def committed(self, duration_ns: int) -> None:
        self.transaction_ms.observe(duration_ns / 1e6)

    def metrics(self) -> list[Metric]:
        """The counters as metrics."""
        totals = [
            ("upload_objects_total", "Objects uploaded.", self.uploads),
            ("upload_batch_bytes_total", "Bytes of uploaded objects.", self.upload_bytes),
            ("upload_retries_total", "Failed attempts to upload a topic.", self.upload_retries),
            ("manifest_merges_total", "Merges of small objects.", self.merges),
            (
                "session_complete_events_total",
                "Uploads found complete after a crash.",
                self.sessions_completed,
            ),
            (
                "session_abort_events_total",
                "Uploads discarded after a crash.",
                self.sessions_aborted,
            ),
        ]
        return [
            *(single(f"penstock_{name}", "counter", text, value) for name, text, value in totals),
            single(
                "penstock_upload_inflight_parts",
                "gauge",
                "Objects on their way to the bucket.",
                self.uploads_in_flight,
            ),
            single(
                "penstock_upload_latency_ms",
                "histogram",
                "Write of an object, with reading it back.",
                self.upload_ms,
            ),
            single(
                "penstock_manifest_txn_latency_ms",
                "histogram",
                "One transaction of a manifest.",
                self.transaction_ms,
            ),
        ]
