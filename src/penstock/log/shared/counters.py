"""Counts what all logs of a broker do, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.metrics import Histogram, Metric, single


@dataclass(slots=True)
class LogCounters:
    """Totals of all logs of a broker."""

    messages: int = 0
    groups: int = 0
    append_ms: Histogram = field(default_factory=Histogram)
    """From the encoding of a group to its acknowledgement."""
    sync_ms: Histogram = field(default_factory=Histogram)
    read_ms: Histogram = field(default_factory=Histogram)
    """Reads from files."""
    truncations: int = 0
    """Files that recovery has cut."""

    def metrics(self) -> list[Metric]:
        """The totals as metrics."""
        return [
            single(
                "penstock_wal_append_latency_ms",
                "histogram",
                "From the frames of a group to its acknowledgement.",
                self.append_ms,
            ),
            single(
                "penstock_wal_fsync_latency_ms", "histogram", "One sync of the disk.", self.sync_ms
            ),
            single(
                "penstock_wal_tail_read_latency_ms",
                "histogram",
                "Reads that the tail cache could not answer.",
                self.read_ms,
            ),
            single(
                "penstock_messages_appended_total", "counter", "Messages stored.", self.messages
            ),
            single(
                "penstock_wal_truncate_events_total",
                "counter",
                "WAL files that recovery has cut.",
                self.truncations,
            ),
        ]
