"""What the tiers count: plain numbers, read when somebody asks for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierCounters:
    """Totals over all topics of a broker."""

    uploads: int = 0
    upload_bytes: int = 0
    upload_ns: int = 0
    upload_retries: int = 0
    manifest_transactions: int = 0
    manifest_transaction_ns: int = 0
    sessions_completed: int = 0
    sessions_aborted: int = 0
    merges: int = 0

    def uploaded(self, size_bytes: int, took_ns: int) -> None:
        self.uploads += 1
        self.upload_bytes += size_bytes
        self.upload_ns += took_ns

    def committed(self, took_ns: int) -> None:
        self.manifest_transactions += 1
        self.manifest_transaction_ns += took_ns
