"""Settings of channels: how jobs are pushed, retried and given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.ledger.job_states import JobRules

CALL_SLACK_US: Final = 250_000
"""How long a call may exceed its timeout before its job counts as lost."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """The settings of all channels; see docs/configuration.md for most of them."""

    workers: int = 200
    concurrency: int = 16
    timeout_seconds: float = 30.0
    retries_max: int = 5
    backoff_seconds: tuple[float, ...] = (5.0, 30.0, 60.0)
    rational_delay_seconds: float = 2.0
    token_header: str = "X-Broker-Consumer-Token"  # noqa: S105 - the name of a header
    user_agent: str = "Penstock"
    allowed_networks: tuple[str, ...] = ()
    loopback: bool = False
    """Whether callbacks may have loopback addresses."""
    disable_after_seconds: int = 432_000
    secret_overlap_seconds: int = 86_400
    schedule_delay_seconds_min: int = 120
    scheduled_bytes_max: int = 768 << 10
    attempts_kept: int = 100
    signed_only: bool = False
    """Whether a gateway signs broadcasts, so that topics of channels admit nothing else."""

    @property
    def rules(self) -> JobRules:
        seconds = self.timeout_seconds + self.rational_delay_seconds
        return JobRules(self.retries_max, int(seconds * 1_000_000) + CALL_SLACK_US)
