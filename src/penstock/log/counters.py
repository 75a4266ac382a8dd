"""What the logs count, all together: plain numbers, read when somebody asks for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.histogram import Histogram


@dataclass(slots=True)
class LogCounters:
    """Totals over all logs of a broker."""

    messages: int = 0
    groups: int = 0
    append_ms: Histogram = field(default_factory=Histogram)
    """From the forming of a group's frames to its acknowledgement."""
    sync_ms: Histogram = field(default_factory=Histogram)
    read_ms: Histogram = field(default_factory=Histogram)
    """Reads that the cache could not answer."""
    truncations: int = 0
    """Files that recovery cut."""
