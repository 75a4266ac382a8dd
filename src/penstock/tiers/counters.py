"""What the tiers count: plain numbers, read when somebody asks for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.model.histogram import Histogram


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
        """While an object is on its way."""
        self.uploads_in_flight += 1
        try:
            yield
        finally:
            self.uploads_in_flight -= 1

    def uploaded(self, size_bytes: int, took_ns: int) -> None:
        self.uploads += 1
        self.upload_bytes += size_bytes
        self.upload_ms.observe(took_ns / 1e6)

    def committed(self, took_ns: int) -> None:
        self.transaction_ms.observe(took_ns / 1e6)
